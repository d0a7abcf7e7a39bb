"""Ranks' trace files become one trace: collectives start with their last member, resumed runs follow one another."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from executor.recording.trace import read_part
from executor.world.groups import group_ids
from simgnn.program.kinds import GROUP_KINDS
from simgnn.program.program import Program
from simgnn.record.rundir import TRACE_SCHEMA, TRAFFIC_SCHEMA

Columns = dict[str, NDArray[Any]]
TIMES = ("issued_s", "started_s", "ended_s")
LATEST = 1 << 30
"""The part that a run that was not broken off has."""
PART = re.compile(r"rank-(\d+)(?:\.part-(\d+))?\.arrow")


def merge_trace(folder: Path, program: Program) -> pa.Table:
    """One table of all ranks, sorted by (rank, epoch, issue), from DIR/trace."""
    parts: dict[int, list[tuple[Columns, int]]] = {}
    for path in sorted(folder.glob("rank-*.arrow")):
        match = PART.fullmatch(path.name)
        if match:
            table, start = read_part(path)
            columns = {name: table[name].to_numpy() for name in TRACE_SCHEMA.names}
            parts.setdefault(int(match[2]) if match[2] else LATEST, []).append((columns, start))
    kept: list[Columns] = []
    shift, order = 0.0, sorted(parts)
    for position, key in enumerate(order):
        # a start that broke off before it wrote anything takes no epoch from the ones before
        later = [start for after in order[position + 1 :] for told, start in parts[after] if len(told["epoch"])]
        end = min(later, default=LATEST)
        moved = [_until(columns, end, shift) for columns, _ in parts[key]]
        shift = max([shift, *(float(columns["ended_s"].max()) for columns in moved if len(columns["ended_s"]))])
        kept += moved
    if not kept:
        return TRACE_SCHEMA.empty_table()
    joined = {name: np.concatenate([columns[name] for columns in kept]) for name in TRACE_SCHEMA.names}
    joined["started_s"] = collective_starts(
        program, *(joined[name] for name in ("rank", "epoch", "step", "op_id", "issued_s", "ended_s"))
    )
    rows = np.lexsort((joined["op_id"], joined["issued_s"], joined["epoch"], joined["rank"]))
    return pa.table({name: column[rows] for name, column in joined.items()}, schema=TRACE_SCHEMA)


def _until(columns: Columns, end: int, shift: float) -> Columns:
    """The rows of epochs before ``end``, their times ``shift`` later."""
    rows = columns["epoch"] < end
    return {name: column[rows] + shift if name in TIMES else column[rows] for name, column in columns.items()}


def collective_starts(
    program: Program,
    rank: NDArray[np.int32],
    epoch: NDArray[np.int32],
    step: NDArray[np.int32],
    op_id: NDArray[np.int32],
    issued: NDArray[np.float64],
    ended: NDArray[np.float64],
) -> NDArray[np.float64]:
    """When the work of each op began: for a collective at the latest issue of its group, else when it was issued.

    A member may leave before the last one comes (the root of a broadcast): its start is then its end.
    """
    teams = _teams(program)
    team = teams[op_id, rank]
    starts = issued.copy()
    chosen = np.flatnonzero(team >= 0)
    if not len(chosen):
        return starts
    keys = np.stack([epoch[chosen], step[chosen], op_id[chosen], team[chosen]])
    _, inverse = np.unique(keys, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    latest = np.full(int(inverse.max()) + 1, -np.inf)
    np.maximum.at(latest, inverse, issued[chosen])
    starts[chosen] = np.minimum(latest[inverse], ended[chosen])
    return starts


def _teams(program: Program) -> NDArray[np.int64]:
    """Team of each (op id, rank), int64 [ops, P]; -1 where the op has no group."""
    teams = np.full((len(program.ops), program.ranks), -1, dtype=np.int64)
    for op_id, (_, op) in enumerate(program.ops):
        group = program.group_of(op)
        if op.kind in GROUP_KINDS and group is not None:
            teams[op_id] = group_ids(program, group.members)
    return teams


def traffic_table(pairs: Mapping[int, Mapping[tuple[int, int], list[int]]]) -> pa.Table:
    """Payload by op and rank pair, from each rank's own counts: rank -> (op id, target) -> [messages, bytes]."""
    rows = sorted(
        (op_id, source, target, messages, nbytes)
        for source, counted in pairs.items()
        for (op_id, target), (messages, nbytes) in counted.items()
    )
    columns: list[tuple[int, ...]] = list(zip(*rows, strict=True)) or [() for _ in TRAFFIC_SCHEMA]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, TRAFFIC_SCHEMA, strict=True)], schema=TRAFFIC_SCHEMA)
