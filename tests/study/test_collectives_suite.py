"""The suite of measured collectives: it runs where the tables are, and says what is missing where they are not."""

from pathlib import Path

import pytest

from simgnn.analysis.nccl.measured_tables import find_tables
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.report.validation import print_collectives
from simgnn.study.collectives import CollectiveBoard, TableLine, load_collectives, score_collectives
from simgnn.study.validate.suite_file import find_suite


def test_without_tables_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGNN_DATA", str(tmp_path / "data"))
    with pytest.raises(ConfigError, match="measured/nccl"):
        score_collectives(load_collectives(find_suite("nccl")))
    assert invoke(["validate", "nccl"]) == 2
    assert invoke(["validate", "nccl", "--keep", str(tmp_path)]) == 2


def test_faults_of_the_file_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(find_suite("nccl").read_text().replace("across_hosts = true", 'across = "yes"'))
    with pytest.raises(ConfigError) as caught:
        load_collectives(path)
    assert len(caught.value.problems) == 2


def test_bars_are_held_against_means(capsys: pytest.CaptureFixture[str]) -> None:
    line = TableLine("sizes_held_out", "a100_all_reduce_2ranks", 10, 0.05, 0.04)
    bars = {"sizes_held_out": 0.06, "ranks_held_out": 0.10}
    good = CollectiveBoard("nccl", (line,), {"sizes_held_out": 0.04, "ranks_held_out": 0.09}, bars)
    bad = CollectiveBoard("nccl", (line,), {"sizes_held_out": 0.04, "ranks_held_out": 0.11}, bars)
    assert good.holds
    assert not bad.holds
    print_collectives(bad)
    assert "FAILS" in capsys.readouterr().out


@pytest.mark.realdata
def test_held_out_sizes_of_one_machine(data_dir: Path) -> None:
    folder = find_tables(data_dir.parent / "measured" / "nccl")
    if folder is None:
        pytest.skip("measured NCCL tables not found beside the real graphs")
    suite = load_collectives(find_suite("nccl"))
    board = score_collectives(suite.model_copy(update={"machines": suite.machines[1:]}), folder)
    assert {line.held_out for line in board.lines} == {"sizes_held_out", "ranks_held_out"}
    assert board.means["sizes_held_out"] <= board.bars["sizes_held_out"]
