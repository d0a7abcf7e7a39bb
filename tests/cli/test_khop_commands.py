"""Blocks around labelled vertices from the command line: what `partition` prints, where it trains, and refusals."""

import json
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.graph.graph import MASKS

KHOP = ["--set", "partition.kind=khop-blocks"]
GRAPH = ["graph.vertices=1200", "graph.edges=5000", "graph.classes=4", "graph.feature_width=8", "graph.labelled=0.1"]
DISTDGL = ["distdgl", *KHOP, *[word for setting in GRAPH for word in ("--set", setting)]]
SMALL_MODEL = ["--set", "model.layers=2", "--set", "batching.fanouts=[4,4]", "--set", "batching.batch_size=16"]
TWO_HOSTS = ["--set", "cluster.hosts=2", "--set", "cluster.ranks_per_host=2"]


def test_partition_prints_labels_by_part_and_rows_that_samples_need(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", *DISTDGL, *SMALL_MODEL, *TWO_HOSTS]
    assert invoke([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counted"]["blocks"] == 120
    assert told["counted"]["forced_blocks"] == 0
    mine, *others = told["labels"]
    assert [one["choice"] for one in (mine, *others)][:2] == ["khop-blocks", "metis, [vertices]"]
    assert others[-1]["choice"] == "random"
    assert mine["hosts"] == [0, 0, 1, 1]
    assert sum(mine["vertices"]) == 1200
    assert [sum(mine[name]) for name in MASKS] == [72, 24, 24]
    for name in MASKS:
        assert mine["rows_from"][name] < others[-1]["rows_from"][name], "fewer than at random"
    assert mine["exact"]
    assert [one["choice"] for one in told["balances"]] == [one["choice"] for one in told["labels"]]
    assert invoke([*words, "--no-alternatives"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for title in ("labelled vertices by part", "rows of other hosts in a pass", "forced blocks", "from validation"):
        assert title in text


def test_partition_for_the_full_graph_samples_nothing(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["partition", str(small), *KHOP, "--ranks", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(one["rows_from"] == {} for one in told["labels"])
    assert invoke(["partition", str(small), *KHOP, "--ranks", "2", "--no-alternatives"]) == 0
    text = capsys.readouterr().out
    assert "labelled vertices by part" in text
    assert "rows of other hosts" not in text


def test_statistics_of_other_hops_are_refused(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats = tmp_path / "khop.toml"
    assert invoke(["partition", str(small), *KHOP, "--ranks", "2", "--no-alternatives", "--stats", str(stats)]) == 0
    text = tmp_path / "from_stats.toml"
    for layers, status in ((2, 0), (3, 2)):
        text.write_text(f"[model]\nlayers = {layers}\nhidden = 8\n[train]\nepochs = 2\n")
        for words in (KHOP, []):  # the file decides where nothing is stated
            capsys.readouterr()
            source = ["--set", f"graph.source=stats:{stats}", *words, "--hardware", "cpu-25gbe-4"]
            assert invoke(["simulate", str(text), *source]) == status
            told = capsys.readouterr().err
            assert ("partition.hops: the partition in" in told) == (status == 2)
            assert "another model" not in told, "weights of labels are no work of a model"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--set", "partition.hops=2"], "partition.hops"),
        (["--set", "partition.weights=[0,0,0]"], "partition.weights"),
        (["--set", "partition.weights=[1,-1,1]"], "partition.weights"),
        (["--set", "graph.labelled=0"], "graph.labelled"),
        (["--set", "graph.labelled=1.5"], "graph.labelled"),
        (["--set", "graph.classes=0"], "graph.classes"),
    ],
    ids=lambda words: words[-1] if isinstance(words, list) else "",
)
def test_bad_input_ends_with_status_2(words: list[str], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["partition", *DISTDGL, *words, "--ranks", "2"]) == 2
    assert key in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("system", ["vanilla", "distdgl"])
def test_it_trains_on_blocks(
    system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], forked_ranks: None
) -> None:
    sampled = SMALL_MODEL if system == "distdgl" else []
    words = [system, *DISTDGL[1:], *sampled, "--set", "cluster.hosts=2", "--set", "cluster.ranks_per_host=1"]
    assert invoke(["run", *words, "--epochs", "2", "--out", str(tmp_path / "run"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "ok"
    assert any(note.startswith("labelled: 120 of 1,200") for note in result["notes"])
    assert invoke(["simulate", *words, "--epochs", "2", "--hardware", "cpu-25gbe-4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_sent"] == result["bytes_sent"]
