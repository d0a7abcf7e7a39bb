"""What a trace amounts to, by the same formulas for both backends: epoch times, times and bytes of each rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.program.kinds import COMPUTE_KINDS, OpKind
from simgnn.program.lifetimes import carried
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.program import Program
from simgnn.record.result import RankTimes


@dataclass(frozen=True)
class Columns:
    """The trace's training ops as arrays; ``computes``: ops that are no communication."""

    rank: NDArray[np.int32]
    epoch: NDArray[np.int32]
    op_id: NDArray[np.int32]
    issued: NDArray[np.float64]
    started: NDArray[np.float64]
    ended: NDArray[np.float64]
    computes: NDArray[np.bool_]
    table: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, trace: pa.Table, program: Program) -> "Columns":
        """Read a trace of all ranks, evaluations left out."""
        table = {name: trace[name].to_numpy() for name in trace.column_names}
        training = table["step"] >= 0
        table = {name: column[training] for name, column in table.items()}
        kinds = np.array([_is_compute(op.kind, program.streams[op.stream].group) for _, op in program.ops], dtype=bool)
        return cls(
            rank=table["rank"],
            epoch=table["epoch"],
            op_id=table["op_id"],
            issued=table["issued_s"],
            started=table["started_s"],
            ended=table["ended_s"],
            computes=kinds[table["op_id"]] if len(table["op_id"]) else np.empty(0, dtype=bool),
            table=table,
        )


def _is_compute(kind: OpKind, group: str | None) -> bool:
    # packing on a stream that does not communicate is work of the device
    return kind in COMPUTE_KINDS or (kind is OpKind.COPY and group is None)


def epoch_windows(columns: Columns) -> NDArray[np.float64]:
    """Begin and end of each training epoch in seconds, float64 [epochs, 2]: from the end of the one before, or, where
    something that is no training came between (an evaluation, a checkpoint), from its own first issue, to the last end
    of its ops on any rank."""
    if not len(columns.epoch):
        return np.zeros((0, 2))
    epochs, inverse = np.unique(columns.epoch, return_inverse=True)
    begins, ends = np.full(len(epochs), np.inf), np.full(len(epochs), -np.inf)
    np.minimum.at(begins, inverse, columns.issued)
    np.maximum.at(ends, inverse, columns.ended)
    before = np.concatenate(([-np.inf], ends[:-1]))
    return np.stack([np.maximum(begins, before), ends], axis=1)


def rank_times(columns: Columns, ranks: int) -> list[RankTimes]:
    """Medians over the epochs after the first (the first, where there is no other) of each rank's seconds."""
    epochs = np.unique(columns.epoch)
    kept = epochs[1:] if len(epochs) > 1 else epochs
    cells = len(epochs) * ranks
    cell = np.searchsorted(epochs, columns.epoch) * ranks + columns.rank
    duration = columns.ended - columns.issued
    sums = {
        "compute_s": (duration, columns.computes),
        "wait_s": (columns.started - columns.issued, ~columns.computes),
        "comm_total_s": (columns.ended - columns.started, ~columns.computes),
    }
    found = {
        name: np.bincount(cell[mask], values[mask], minlength=cells).reshape(len(epochs), ranks).astype(np.float64)
        for name, (values, mask) in sums.items()
    }
    found["comm_exposed_s"] = _exposed(columns, cell, cells).reshape(len(epochs), ranks)
    # a rank that was killed has no rows of its last epochs: they are unknown, not zero
    noted = np.bincount(cell, minlength=cells).reshape(len(epochs), ranks) > 0
    chosen = np.isin(epochs, kept)[:, None] & noted

    def typical(values: NDArray[np.float64], rank: int) -> float:
        rows = chosen[:, rank]
        return float(np.median(values[rows, rank])) if rows.any() else 0.0

    return [RankTimes(**{name: typical(values, rank) for name, values in found.items()}) for rank in range(ranks)]


def _exposed(columns: Columns, cell: NDArray[Any], cells: int) -> NDArray[np.float64]:
    """Seconds of each (epoch, rank) in which communication is under way and nothing is computed: a sweep over times."""
    if not len(cell):
        return np.zeros(cells)
    moments = np.concatenate((columns.issued, columns.ended))
    owner = np.concatenate((cell, cell))
    change = np.concatenate((np.ones(len(cell), dtype=np.int64), -np.ones(len(cell), dtype=np.int64)))
    computes = np.concatenate((columns.computes, columns.computes))
    order = np.lexsort((moments, owner))
    moments, owner, change, computes = moments[order], owner[order], change[order], computes[order]
    computing = np.cumsum(np.where(computes, change, 0))
    moving = np.cumsum(np.where(computes, 0, change))
    length = np.diff(moments, append=moments[-1])
    # the last moment of a cell closes all its ops, so that nothing reaches into the next cell
    bare = (moving > 0) & (computing == 0)
    return np.bincount(owner[bare], length[bare], minlength=cells).astype(np.float64)


def payload_epochs(epochs: int) -> range:
    """The epochs whose mean payload both backends tell: all but the first, in which more may be sent, and the last,
    which fetches nothing for a next one. Of two epochs the second, of one that one."""
    return range(1, epochs - 1) if epochs > 2 else range(max(epochs - 1, 0), epochs)


def per_rank(columns: Columns, name: str, ranks: int, epochs: range) -> list[float]:
    """Mean over epochs of what a counted column sums up to, by rank; zeros without an epoch."""
    chosen = (columns.epoch >= epochs.start) & (columns.epoch < epochs.stop)
    sums = np.bincount(columns.rank[chosen], columns.table[name][chosen].astype(np.float64), minlength=ranks)
    return [float(value) / max(len(epochs), 1) for value in sums]


def buffer_bytes(program: Program) -> list[int]:
    """Largest sum of live buffers of each rank over the ops of all templates, in program order; decisions at bounds."""
    kept = carried(program)
    sizes = {
        name: program.sizes.per_rank(buffer.rows, 0, 0) * buffer.width * ITEM_BYTES[buffer.dtype] * buffer.depth
        for name, buffer in program.buffers.items()
    }
    zero = np.zeros(program.ranks, dtype=np.int64)
    always = sum((sizes[name] for name in kept), zero)
    most = always.copy()
    for template in program.templates.values():
        touches: dict[str, list[int]] = {}
        for position, op in enumerate(template.ops):
            for access in op.reads + op.writes:
                if access.buffer not in kept:
                    touches.setdefault(access.buffer, []).append(position)
        for position in range(len(template.ops)):
            live = sum((sizes[n] for n, at in touches.items() if at[0] <= position <= at[-1]), zero)
            most = np.maximum(most, always + live)
    return [int(value) for value in most]
