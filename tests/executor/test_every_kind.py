"""The program that holds every kind of op, over Gloo; tests/gpu runs the same over NCCL."""

from pathlib import Path

import pytest

from simgnn.program.kinds import OpKind
from tests.executor.every_kind import WIDTH, every_kind, run_every_kind
from tests.executor.harness import run_ranks


def test_the_program_holds_every_kind() -> None:
    assert {op.kind for _, op in every_kind(2).ops} == set(OpKind)


@pytest.mark.parametrize(("ranks", "seed"), [(1, None), (2, 3), (3, None)])
def test_every_kind_over_gloo(ranks: int, seed: int | None, tmp_path: Path) -> None:
    sent = run_ranks(ranks, run_every_kind, tmp_path, "gloo", seed)
    for rank in range(ranks):
        assert sent[rank]["exchange"] == ([2 * 4 * WIDTH, 0, 0, 1] if ranks > 1 else [0, 0, 0, 0])
        assert sent[rank]["allreduce"] == [0, 2 * 4 * WIDTH, 0, 0]
