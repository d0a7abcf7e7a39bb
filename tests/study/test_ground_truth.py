"""The simulator against the runs that are kept: fails when its score gets worse than the bound of the suite."""

from importlib import resources
from pathlib import Path

import pytest

from simgnn.cli.console import Reporter
from simgnn.cli.validate import CommandBackend
from simgnn.study.validate import rescore

TRUTH = Path(str(resources.files("simgnn.study"))) / "truth"
KEPT = sorted(path.name for path in TRUTH.iterdir() if path.is_dir()) if TRUTH.is_dir() else []


def test_some_runs_are_kept() -> None:
    if not KEPT:
        pytest.skip("no measured runs are kept yet: simgnn validate testbed --keep simgnn/study/truth/testbed")
    assert KEPT


@pytest.mark.parametrize("name", KEPT)
def test_the_score_is_no_worse_than_its_bound(name: str) -> None:
    board = rescore(TRUTH / name, CommandBackend(Reporter(quiet=True)))
    assert board.guard, f"{name} has no bound.toml"
    broken = [
        f"{verdict.bar}: {verdict.figure} against {verdict.limit}" for verdict in board.guard if not verdict.holds
    ]
    assert not broken
