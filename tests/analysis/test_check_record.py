"""A damaged record is refused: what it tells cannot have happened in its own program."""

from pathlib import Path

import numpy as np
import pytest

from simgnn.analysis.check_record import check_record
from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from tests.analysis.test_replay import program, record
from tests.analysis.test_replay_guards import program as guarded

ROOT = Path("run")


def rows_of(cut: str) -> tuple[Program, dict[str, IntArray], str]:
    """A program, what a made-up run of it decided, and a decision of numbers of pairs among that."""
    found = record(program(cut, 3))
    name = next(name for name, values in sorted(found.decisions.items()) if values.ndim == 4 and values.any())
    return found.program, {key: values.copy() for key, values in found.decisions.items()}, name


@pytest.mark.parametrize("cut", ["halo", "mirrors"])
def test_a_sound_record_passes(cut: str) -> None:
    made, decisions, name = rows_of(cut)
    check_record(ROOT, made, decisions)
    del decisions[name]
    check_record(ROOT, made, decisions)  # what is absent altogether is told by who wants it


@pytest.mark.parametrize("cut", ["halo", "mirrors"])
@pytest.mark.parametrize("value", [-1, -5, 10**9])
def test_numbers_out_of_bounds_and_gaps_are_refused(cut: str, value: int) -> None:
    made, decisions, name = rows_of(cut)
    decisions[name][1, 0, 3, 0] = value
    with pytest.raises(ConfigError, match=f"decision '{name}' in epoch 3, step 0 is .*on rank 1, expected 0 to"):
        check_record(ROOT, made, decisions)


@pytest.mark.parametrize(("rank", "value"), [(0, 7), (None, -1), (None, 2), (1, 0)])
def test_guards_are_alike_on_all_ranks(rank: int | None, value: int) -> None:
    made = guarded(3)
    guards = sorted({op.guard.decision for _, op in made.ops if op.guard is not None})
    decisions = {name: np.ones((3, 5, 1), dtype=np.int64) for name in guards}
    check_record(ROOT, made, decisions)
    decisions[guards[0]][slice(None) if rank is None else rank, 2] = value
    with pytest.raises(ConfigError, match=f"'{guards[0]}' in epoch 2, step 0 is .*expected 0 or 1, on all alike"):
        check_record(ROOT, made, decisions)
