"""For whom ranks wait: of each call of several ranks, the time from a rank's own arrival until the call began, which
the rank that arrived last has caused."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.program.kinds import GROUP_KINDS, PAIRWISE_KINDS
from simgnn.program.program import Program

Floats = NDArray[np.float64]


def waits_between(program: Program, trace: Mapping[str, NDArray[Any]], epoch: int) -> Floats:
    """Return how long rank i waited for rank j in a training epoch, seconds, float64 [P, P]. ``trace``: columns of
    ``TRACE_SCHEMA``; a call's ``started_s`` is the arrival of the last of those that a rank meets in it."""
    meets = np.array([op.kind in GROUP_KINDS | PAIRWISE_KINDS for _, op in program.ops], dtype=np.bool_)
    teams = np.array([program.team_of(op) for _, op in program.ops], dtype=np.int64)
    mine = (trace["step"] >= 0) & (trace["epoch"] == epoch) & meets[trace["op_id"]]
    rank, op_id, step, issued, started = (
        trace[name][mine] for name in ("rank", "op_id", "step", "issued_s", "started_s")
    )
    found = np.zeros((program.ranks, program.ranks))
    call = np.stack([step.astype(np.int64), op_id.astype(np.int64), teams[op_id, rank]], axis=1)
    _, number = np.unique(call, axis=0, return_inverse=True)
    order = np.lexsort((issued, number.ravel()))
    number, rank, issued, started = number.ravel()[order], rank[order], issued[order], started[order]
    ends = np.searchsorted(number, np.arange(number.max(initial=-1) + 1), side="right")
    begins = np.concatenate(([0], ends))[:-1]
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        # who arrived last of those that had arrived when the call began for this rank
        last = begin + np.searchsorted(issued[begin:end], started[begin:end], side="right") - 1
        waited = np.maximum(started[begin:end] - issued[begin:end], 0.0)
        np.add.at(found, (rank[begin:end], rank[np.maximum(last, begin)]), waited)
    np.fill_diagonal(found, 0.0)
    return found
