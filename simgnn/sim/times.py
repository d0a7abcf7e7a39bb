"""Times of epochs and ranks, as formulas over the trace (in ticks; ``record.result.RankTimes`` in seconds)."""

from collections.abc import Mapping

import numpy as np

from simgnn.program.kinds import COMPUTE_KINDS, OpKind
from simgnn.program.program import Program
from simgnn.sim.network.max_min import Bools, Ints


def computing_ops(program: Program) -> Bools:
    """Which ops are work of a device and no communication, bool [ops]: the compute kinds, and copies on a stream that
    does not communicate."""
    return np.array(
        [
            op.kind in COMPUTE_KINDS or (op.kind is OpKind.COPY and program.streams[op.stream].group is None)
            for _, op in program.ops
        ],
        dtype=np.bool_,
    )


def epoch_windows(ticks: Mapping[str, Ints], epochs: int) -> Ints:
    """Begin and end of each training epoch, int64 [epochs, 2]: from the last end of the epoch before, or, where
    something that is no training came between, from its own first issue, to the last end of its ops on any rank.
    Evaluation is left out."""
    training = ticks["step"] >= 0
    begins = np.full(epochs, np.iinfo(np.int64).max)
    ends = np.zeros(epochs, dtype=np.int64)
    np.minimum.at(begins, ticks["epoch"][training], ticks["issued"][training])
    np.maximum.at(ends, ticks["epoch"][training], ticks["ended"][training])
    before = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    # an epoch without ops has no length
    begins = np.where(ends > 0, np.maximum(np.minimum(begins, ends), before), ends)
    windows: Ints = np.stack([begins, ends], axis=1)
    return windows


def rank_ticks(ticks: Mapping[str, Ints], started: Ints, computes: Bools, epochs: int, ranks: int) -> dict[str, Ints]:
    """Ticks of each (epoch, rank) in training turns, int64 [epochs, P] each:

    - ``compute_s``: sum of ended - issued over ops that compute (``computes`` [rows]);
    - ``wait_s``: sum of started - issued over all other ops;
    - ``comm_total_s``: sum of ended - started over all other ops;
    - ``comm_exposed_s``: length of the union of [issued, ended) of all other ops, less what of it lies in the union of
      [issued, ended) of ops that compute: waiting and transfer while the rank computes nothing.
    """
    training = ticks["step"] >= 0
    cell = (ticks["epoch"] * ranks + ticks["rank"])[training]
    issued, began, ended = ticks["issued"][training], started[training], ticks["ended"][training]
    work = computes[training]
    cells = epochs * ranks

    def total(values: Ints, mask: Bools) -> Ints:
        sums = np.zeros(cells, dtype=np.int64)
        np.add.at(sums, cell[mask], values[mask])
        return sums

    covered = union_ticks(cell, issued, ended, cells) - union_ticks(cell[work], issued[work], ended[work], cells)
    found = {
        "compute_s": total(ended - issued, work),
        "wait_s": total(began - issued, ~work),
        "comm_total_s": total(ended - began, ~work),
        "comm_exposed_s": covered,
    }
    return {name: values.reshape(epochs, ranks) for name, values in found.items()}


def union_ticks(cell: Ints, begin: Ints, end: Ints, cells: int) -> Ints:
    """Length of the union of stretches in each cell, int64 [cells]."""
    if not len(cell):
        return np.zeros(cells, dtype=np.int64)
    owner = np.concatenate((cell, cell))
    change = np.concatenate((np.ones(len(cell), dtype=np.int64), -np.ones(len(cell), dtype=np.int64)))
    moment = np.concatenate((begin, end))
    order = np.lexsort((moment, owner))
    owner, moment = owner[order], moment[order]
    # The last moment of a cell closes all its stretches, so nothing reaches into the next cell.
    covered = np.cumsum(change[order])[:-1] > 0
    lengths = np.zeros(cells, dtype=np.int64)
    np.add.at(lengths, owner[:-1][covered], np.diff(moment)[covered])
    return lengths
