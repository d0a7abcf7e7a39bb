"""``stats:`` files remember which partition policy made them; an experiment that says otherwise is refused."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.random import Random
from simgnn.registry import shipped

MADE = ["--set", "partition.imbalance=1.1", "--set", 'partition.balance=["vertices"]']


@pytest.fixture
def statistics(small: Path, tmp_path: Path) -> Path:
    path = tmp_path / "made" / "here" / "stats.toml"  # its folder is made
    assert invoke(["partition", str(small), "--ranks", "2", "--no-alternatives", "--stats", str(path), *MADE]) == 0
    return path


def simulated(statistics: Path, tmp_path: Path, *sets: str) -> int:
    path = tmp_path / "from-stats.toml"
    path.write_text(f'[graph]\nsource = "stats:{statistics}"\n[train]\nepochs = 2\n')
    return invoke(["simulate", str(path), "--json", "--out", str(tmp_path / "out"), *sets])


def test_the_policy_is_recorded_and_taken_over(
    statistics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = tomllib.loads(statistics.read_text())["partition"]["made_by"]
    assert recorded == {
        "kind": "metis", "reorder": "rcm", "inter_machine": "halo", "balance": ["vertices"], "imbalance": 1.1,
        "across": "ranks",
    }  # fmt: skip
    capsys.readouterr()
    assert simulated(statistics, tmp_path, "--set", "partition.kind=metis") == 0
    assert not [note for note in json.loads(capsys.readouterr().out)["notes"] if "partition policy" in note]
    assert tomllib.loads((tmp_path / "out" / "experiment.toml").read_text())["partition"] == recorded


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["partition.kind=random"], ["partition.kind: got 'random', but the partition in ", "was made with 'metis'"]),
        (
            ["partition.kind=random", "partition.reorder=none", "partition.seed=3"],
            [
                "kind: got 'random'",
                "partition.reorder: got 'none', but",
                "was made with 'rcm'",
                "seed: got 3, but",
                "was made with none",
            ],
        ),
        (["partition.imbalance=1.2"], ["partition.imbalance: got 1.2, but", "was made with 1.1"]),
        (['partition.balance=["edges"]'], ["partition.balance: got ['edges'], but", "was made with ['vertices']"]),
    ],
)
def test_another_policy_is_refused(
    sets: list[str], expected: list[str], statistics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(statistics, tmp_path, *(part for each in sets for part in ("--set", each))) == 2
    told = capsys.readouterr().err
    for part in expected:
        assert part in told
    assert not (tmp_path / "out").exists()


def test_a_file_that_does_not_say_is_taken_with_a_note(
    statistics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = statistics.read_text()
    recorded = text.index("[partition.made_by]")
    rest = text.find("\n[", recorded)
    earlier = text[:recorded] + (text[rest:] if rest >= 0 else "")
    statistics.write_text(re.sub(r"^labels = .*\n", "", earlier, flags=re.M))  # as an earlier version wrote it
    capsys.readouterr()
    assert simulated(statistics, tmp_path, "--set", "partition.kind=random") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert [note for note in notes if "stats.toml does not say how its partition was made" in note]


def test_a_policy_states_what_it_was_given_and_what_it_took() -> None:
    assert Random().resolved(7).stated() == {
        "reorder": "rcm", "inter_machine": "halo", "kind": "random", "seed": 7
    }  # fmt: skip
    assert Random(seed=1).resolved(7).seed == 1
    assert "imbalance" not in Metis(balance=("vertices", "edges")).stated()
    for kind, policy in shipped("partition").items():
        made = policy().resolved(3)
        assert policy.model_validate(made.stated()).stated() == made.stated()
        assert made.stated()["kind"] == kind
