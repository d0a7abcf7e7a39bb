"""The simulator against the runs that are kept: fails when its score gets worse than the bound of the suite."""

from importlib import resources
from pathlib import Path

import pytest

from simgnn.api.backend import CommandBackend
from simgnn.cli.tables.console import Reporter
from simgnn.study.validate.suite_file import truth_folder
from simgnn.study.validate.suite_runs import rescore

TRUTH = Path(str(resources.files("simgnn.study"))) / "truth"
KEPT = ("testbed", "testbed-xeon")


def test_all_runs_that_are_kept_are_scored() -> None:
    assert sorted(path.name for path in TRUTH.iterdir() if path.is_dir()) == sorted(KEPT)


@pytest.mark.parametrize("name", [KEPT[0], pytest.param(KEPT[1], marks=pytest.mark.slow)])
def test_the_score_is_no_worse_than_its_bound(name: str) -> None:
    assert truth_folder(name) == TRUTH / name, "with digests of its runs and a bound"
    board = rescore(TRUTH / name, CommandBackend(Reporter(quiet=True)))
    assert board.guard, f"{name} has no bound.toml"
    broken = [
        f"{verdict.bar}: {verdict.figure} against {verdict.limit}" for verdict in board.guard if not verdict.holds
    ]
    assert not broken
    assert [entry.why for entry in board.sensitivity] == [None, None], "a rate that is cut down is noticed"
    assert board.guarded
    assert board.outcome == "passed", "and its machine was calm enough"
