"""A finished validation, whose runs are made up."""

from pathlib import Path

import pytest

from simgnn.study.validate.scoreboard import Scoreboard
from simgnn.study.validate.suite_runs import validate
from tests.executor.forked import forked_ranks
from tests.study.worlds import Pretended, small_suite

__all__ = ["forked_ranks"]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scoreboard, Path, Pretended]:
    """A validation of runs that take 1.1 times as long as predicted."""
    root, backend = tmp_path_factory.mktemp("validation") / "small", Pretended()
    return validate(small_suite(), root, backend), root, backend
