"""Ranks' trace files become one trace: collectives start with their last member, resumed runs follow one another."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from executor.trace import read_part
from simgnn.program.kinds import GROUP_KINDS
from simgnn.program.program import Program
from simgnn.record.trace import TRACE_SCHEMA, TRAFFIC_SCHEMA

PART = re.compile(r"rank-(\d+)(?:\.part-(\d+))?\.arrow")


def merge_trace(folder: Path, program: Program) -> pa.Table:
    """One table of all ranks, sorted by (rank, epoch, step, issue), from DIR/trace."""
    parts: dict[int, list[tuple[pa.Table, int]]] = {}
    last = 1 << 30
    for path in sorted(folder.glob("rank-*.arrow")):
        match = PART.fullmatch(path.name)
        if match:
            parts.setdefault(int(match[2]) if match[2] else last, []).append(read_part(path))
    tables, shift = [], 0.0
    order = sorted(parts)
    for position, key in enumerate(order):
        end = (
            min((start for _, start in parts[order[position + 1]]), default=last) if position + 1 < len(order) else last
        )
        latest = shift
        for table, _ in parts[key]:
            kept = table.filter(pc.less(table["epoch"], end))
            for name in ("issued_s", "started_s", "ended_s"):
                moved = pc.add(kept[name], shift)
                kept = kept.set_column(kept.schema.get_field_index(name), name, moved)
            if len(kept):
                latest = max(latest, pc.max(kept["ended_s"]).as_py())
                tables.append(kept)
        shift = latest
    if not tables:
        return TRACE_SCHEMA.empty_table()
    table = pa.concat_tables(tables).cast(TRACE_SCHEMA)
    started = collective_starts(
        program, *(table[name].to_numpy() for name in ("rank", "epoch", "step", "op_id", "issued_s", "ended_s"))
    )
    table = table.set_column(table.schema.get_field_index("started_s"), "started_s", pa.array(started))
    keys = [("rank", "ascending"), ("epoch", "ascending"), ("issued_s", "ascending"), ("op_id", "ascending")]
    return table.sort_by(keys).cast(TRACE_SCHEMA)


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


def group_ids(program: Program, members: str) -> NDArray[np.int64]:
    """Which group of a kind each rank belongs to, int64 [P]."""
    if members == "world":
        return np.zeros(program.ranks, dtype=np.int64)
    if members == "host":
        return np.asarray(program.hosts, dtype=np.int64)
    return program.sizes.columns[members]


def traffic_table(pairs: Mapping[int, Mapping[tuple[int, int], list[int]]]) -> pa.Table:
    """Payload by op and rank pair, from each rank's own counts: rank -> (op id, target) -> [messages, bytes]."""
    rows = sorted(
        (op_id, source, target, messages, nbytes)
        for source, counted in pairs.items()
        for (op_id, target), (messages, nbytes) in counted.items()
    )
    columns: list[tuple[int, ...]] = list(zip(*rows, strict=True)) or [() for _ in TRAFFIC_SCHEMA]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, TRAFFIC_SCHEMA, strict=True)], schema=TRAFFIC_SCHEMA)
