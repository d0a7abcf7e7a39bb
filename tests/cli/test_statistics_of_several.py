"""``stats:`` files of several partitions, edits of them, and the page that describes them."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.partition.statistics import file as statistics_file
from simgnn.partition.statistics.file import load_partitions, load_stats
from simgnn.partition.statistics.schema import CountedFrom, GraphSection, PartitionSection, table_forms
from simgnn.tomlfile import load_toml, write_toml

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "statistics.md").read_text()


@pytest.fixture
def several(small: Path, tmp_path: Path) -> Path:
    """Partitions into 2 and 4 by METIS, and one into 4 at random."""
    path, other = tmp_path / "several.toml", tmp_path / "random.toml"
    assert invoke(["partition", str(small), "--ranks", "2,4", "--no-alternatives", "--stats", str(path)]) == 0
    at_random = ["--set", "partition.kind=random", "--set", "partition.seed=1"]
    assert invoke(["partition", str(small), "--ranks", "4", *at_random, "--stats", str(other)]) == 0
    table = load_toml(path)
    table["partition"].append(load_toml(other)["partition"])
    write_toml(path, table)
    return path


def simulated(path: Path, *words: str) -> int:
    out = str(path.parent / "out")
    common = ["--set", f"graph.source=stats:{path}", "--set", "train.epochs=2", "--json", "--out", out, "--force"]
    return invoke(["simulate", "vanilla", *common, *words])


def test_the_partition_of_the_ranks_and_partitioner_is_taken(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digests = [stats.digest for stats in load_partitions(several)]
    assert len(set(digests)) == 3
    for words, kind, ranks in (
        (["--ranks", "2"], "metis", 2),
        (["--ranks", "4", "--set", "partition.balance=auto"], "metis", 4),
        (["--ranks", "4", "--set", "partition.kind=random", "--set", "partition.seed=1"], "random", 4),
    ):
        capsys.readouterr()
        assert simulated(several, *words) == 0
        assert json.loads(capsys.readouterr().out)["ranks"] == ranks
        made = tomllib.loads((several.parent / "out" / "experiment.toml").read_text())["partition"]
        assert made["kind"] == kind


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ranks", "3"], ["got a total of 3", "use --ranks 2 or 4", "holds metis into 2, metis into 4"]),
        ([], ["cluster.ranks_per_host: missing", "set --ranks"]),
        (["--ranks", "4", "--set", "partition.kind=block-row"], ["kind: got 'block-row'", "to metis or random"]),
        (["--ranks", "4", "--set", "partition.kind=random", "--set", "partition.seed=2"], ["kind: got 'random'"]),
        (["--ranks", "2", "--set", "partition.imbalance=2"], ["partition.imbalance: got 2.0, but the partition in"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_what_to_set(
    words: list[str], expected: list[str], several: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(several, *words) == 2
    told = " ".join(capsys.readouterr().err.split())
    for part in expected:
        assert part in told


def test_partitions_that_the_experiment_does_not_tell_apart_are_refused(
    small: Path, several: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, table = several.with_name("other.toml"), load_toml(several)
    words = ["--ranks", "4", "--no-alternatives", "--set", "partition.imbalance=1.2", "--stats", str(other)]
    assert invoke(["partition", str(small), *words]) == 0
    write_toml(several, {**table, "partition": [*table["partition"], load_toml(other)["partition"]]})
    assert simulated(several, "--ranks", "4") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "2 partitions" in told
    assert "set partition.imbalance (1.03 or 1.2)" in told
    assert simulated(several, "--ranks", "4", "--set", "partition.imbalance=1.2") == 0


def test_several_partitions_with_many_numbers_have_a_file_each(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_file, "INLINE_NUMBERS", 0)
    path = tmp_path / "s.toml"
    assert invoke(["partition", str(small), "--ranks", "2,3", "--no-alternatives", "--stats", str(path)]) == 0
    assert sorted(entry.name for entry in tmp_path.glob("s[.-]*")) == ["s-1.npz", "s-2.npz", "s.toml"]
    assert [stats.ranks for stats in load_partitions(path)] == [2, 3]
    with pytest.raises(ConfigError, match="got 2 partitions, expected one"):
        load_stats(path)
    np.savez(tmp_path / "s-2.npz", rows=np.arange(3))
    with pytest.raises(ConfigError, match=r"s\.toml: partition\.arrays: 's-2\.npz' lacks"):
        load_partitions(path)


@pytest.mark.parametrize("text", ["", "0", "2,2", "2,x", "2,,4", "-1"])
def test_bad_numbers_of_ranks_are_refused(
    text: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["partition", str(small), "--ranks", text, "--stats", str(tmp_path / "s.toml")]) == 2
    assert "--ranks: got" in capsys.readouterr().err
    assert not list(tmp_path.glob("s.*"))


def repartitioned(table: dict) -> None:
    table["partition"][1]["made_by"]["imbalance"] = 1.5


def noted(table: dict) -> None:
    table["partition"][1]["notes"] = []
    table["partition"][1]["notes"].append("measured")


def recounted(table: dict) -> None:
    table["partition"][1]["tables"]["train_rows"][0] += 1


@pytest.mark.parametrize(
    ("edit", "key"),
    [(repartitioned, "labels"), (noted, "labels"), (recounted, "numbers")],
)
def test_an_edited_file_is_refused_until_it_says_so(edit: Callable[[dict], None], key: str, several: Path) -> None:
    table = load_toml(several)
    edit(table)
    write_toml(several, table)
    with pytest.raises(ConfigError, match=rf"counted_from\.{key}: .*remove \[partition\.counted_from\]"):
        load_partitions(several)
    for section in table["partition"]:
        del section["counted_from"]
    write_toml(several, table)
    if edit is recounted:  # its totals do not fit either
        with pytest.raises(ConfigError, match=r"train_rows: add up to"):
            load_partitions(several)
    else:
        assert all(stats.origin is None for stats in load_partitions(several))


def test_results_note_that_nothing_says_what_was_counted(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def noted_origin() -> bool:
        capsys.readouterr()
        assert simulated(several, "--ranks", "2") == 0
        return any("from which graph it was counted" in note for note in json.loads(capsys.readouterr().out)["notes"])

    assert not noted_origin()
    table = load_toml(several)
    for section in table["partition"]:
        del section["counted_from"]
    write_toml(several, table)
    assert noted_origin()


def test_results_note_that_a_partition_was_balanced_for_another_model(
    several: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def noted(*words: str) -> bool:
        capsys.readouterr()
        assert simulated(several, "--ranks", "2", *words) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        return any("balances the work of another model" in note for note in notes)

    model = tomllib.loads((several.parent / "small.toml").read_text())["model"]
    same = [word for key, value in model.items() for word in ("--set", f"model.{key}={value}")]
    assert not noted(*same)
    assert noted(*same, "--set", "model.kind=sage", "--set", "model.layers=3")


def test_the_page_describes_every_key_and_table_and_its_example_is_read(several: Path, tmp_path: Path) -> None:
    example, chunks = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "chunks.toml").write_text(f"{example}\n{chunks}")
    assert "chunks/needed" in load_stats(tmp_path / "chunks.toml").tables
    (tmp_path / "hand.toml").write_text(example)
    by_hand = load_stats(tmp_path / "hand.toml")
    assert (by_hand.ranks, by_hand.facts.name) == (16, "papers100M")
    named = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.S)))
    named |= {f"graph.{key}" for key in named} | {f"partition.{key}" for key in named}  # the second of a list
    for schema in (GraphSection, PartitionSection, CountedFrom):
        for key in schema.model_fields:
            section = {"GraphSection": "graph.", "PartitionSection": "partition."}.get(schema.__name__, "")
            assert {key, section + key} & named, f"docs/statistics.md does not describe {section}{key}"
    for table in table_forms(by_hand):
        assert table in named, f"docs/statistics.md does not describe the table {table}"
