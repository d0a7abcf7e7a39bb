"""``activity.parquet``: what policies decided in a real run, number by number, so that a simulation can replay it.

A program names a decision "point/phase/name", such as "halo/1/forward/rows"; a point may have slashes of its own. Each
value belongs to an epoch, a step, the rank that decided, and, where it concerns one other rank (rows sent to it), that
``peer`` (-1: none).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import Decision, IntArray, Size
from simgnn.record.rundir import read_table

ACTIVITY_SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int32()),
        pa.field("step", pa.int32()),
        pa.field("point", pa.string()),  # the sync point: "halo/1"
        pa.field("phase", pa.string()),  # "forward", "backward", "gather", "scatter", ...
        pa.field("rank", pa.int32()),
        pa.field("peer", pa.int32()),  # -1: the value concerns no single other rank
        pa.field("name", pa.string()),  # "rows"
        pa.field("value", pa.int64()),
    ]
)
NOBODY = -1
"""In ``peer``: no single other rank."""
UNDECIDED = -1
"""In :func:`decisions_of`: nothing was decided in that turn."""


def parts_of(decision: str) -> tuple[str, str, str]:
    """(point, phase, name) of a decision; what a shorter name lacks is empty."""
    *point, phase, name = ["", "", *decision.split("/")]
    return "/".join(part for part in point if part), phase, name


def decision_of(point: str, phase: str, name: str) -> str:
    """The decision's name in a program: what :func:`parts_of` took apart."""
    return "/".join(part for part in (point, phase, name) if part)


def decisions_in(program: Program) -> frozenset[str]:
    """Names of all that a program leaves to be decided while training: sizes and guards."""
    sizes: list[Size] = [buffer.rows for buffer in program.buffers.values()]
    guards: set[str] = set()
    for _, op in program.ops:
        sizes += op.sizes
        if op.guard is not None:
            guards.add(op.guard.decision)
    return frozenset(guards | {size.name for size in sizes if isinstance(size, Decision)})


def read_activity(path: Path) -> pa.Table:
    """Read ``activity.parquet``; :class:`ConfigError` when it is missing, broken or of another schema."""
    if not path.is_file():
        raise ConfigError(
            f"--activity: got {path.parent}, which holds no {path.name}; expected the directory of a finished "
            "`simgnn run` that decided something: with freshness.kind other than 'always', on several ranks"
        )
    try:
        table = read_table(path)
        table.validate(full=True)
    except pa.ArrowException as error:
        raise ConfigError(f"--activity: {path} is damaged ({error}); run the experiment again") from error
    if table.schema.remove_metadata() != ACTIVITY_SCHEMA:
        raise ConfigError(
            f"--activity: {path} has the columns {', '.join(table.column_names)}, expected "
            f"{', '.join(ACTIVITY_SCHEMA.names)}: it was written by another version; run the experiment again"
        )
    empty = [name for name in table.column_names if table[name].null_count]
    if empty:
        raise ConfigError(
            f"--activity: {path} has rows without a value of {', '.join(empty)}, expected one in every row: it is "
            "damaged; run the experiment again"
        )
    return table


def decisions_of(table: pa.Table, ranks: int, steps: int = 1, epochs: int | None = None) -> dict[str, IntArray]:
    """Every recorded decision as int64 [P, epochs, steps], or [P, P, epochs, steps], [rank, peer], where it has peers.

    ``epochs``: how many there were (None: as many as the table tells). A rank that decided nothing in a turn has
    ``UNDECIDED`` there; a peer that it did not name then, 0. Raises :class:`ConfigError` for ranks, steps or
    epochs that there are not, a rank as its own peer, and a value told twice.
    """
    columns = {name: table[name].to_numpy() for name in ("epoch", "step", "rank", "peer", "value")}
    names = np.array(
        [decision_of(*parts) for parts in zip(*(table[c].to_pylist() for c in ("point", "phase", "name")), strict=True)]
    )
    outside = (columns["rank"] < 0) | (columns["rank"] >= ranks)
    outside |= (columns["peer"] < NOBODY) | (columns["peer"] >= ranks)
    outside |= columns["peer"] == columns["rank"]
    outside |= (columns["step"] < 0) | (columns["step"] >= steps) | (columns["epoch"] < 0)
    if epochs is not None:
        outside |= columns["epoch"] >= epochs
    if np.any(outside):
        at = int(np.flatnonzero(outside)[0])
        told = ", ".join(f"{name} {int(values[at])}" for name, values in columns.items())
        raise ConfigError(
            f"--activity: got a value of {told}; expected ranks below {ranks}, another rank (or {NOBODY}) as its peer "
            f"and steps below {steps}" + ("" if epochs is None else f", epochs below {epochs}")
        )
    recorded = int(columns["epoch"].max(initial=-1)) + 1
    return {
        str(name): _array(str(name), {c: v[names == name] for c, v in columns.items()}, ranks, recorded, steps)
        for name in np.unique(names)
    }


def _array(name: str, columns: Mapping[str, IntArray], ranks: int, epochs: int, steps: int) -> IntArray:
    rank, peer, epoch, step = (columns[part] for part in ("rank", "peer", "epoch", "step"))
    paired = peer != NOBODY
    if np.any(paired != paired[:1]):
        raise ConfigError(f"--activity: decision '{name}' has values with a peer and without one; record it again")
    keys = np.stack([rank, peer, epoch, step])
    if np.unique(keys, axis=1).shape[1] != len(rank):
        raise ConfigError(f"--activity: decision '{name}' is told twice in one turn; record it again")
    decided = np.zeros((ranks, epochs, steps), dtype=np.bool_)
    decided[rank, epoch, step] = True
    if not paired[0]:
        result = np.full((ranks, epochs, steps), UNDECIDED, dtype=np.int64)
        result[rank, epoch, step] = columns["value"]
        return result
    result = np.where(decided[:, None], 0, UNDECIDED) * np.ones((ranks, ranks, 1, 1), dtype=np.int64)
    result[rank, peer, epoch, step] = columns["value"]
    return result
