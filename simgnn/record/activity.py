"""``activity.parquet``: the values that policies decided in a real run, recorded so that a simulation can replay them.

A program names a decision "point/phase/name", such as "halo/1/forward/rows"; a point may contain slashes. Each value
belongs to an epoch, a step, the rank that decided, and the ``peer`` that it concerns (rows sent to it; -1: none).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from simgnn.emit.caches.row_cache import EndEpoch
from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import Decision, IntArray, Size
from simgnn.record.rundir import INT32, INT64, TEXT, read_table

ACTIVITY_SCHEMA = pa.schema(
    [
        ("epoch", INT32),
        ("step", INT32),
        ("point", TEXT),  # the sync point: "halo/1"
        ("phase", TEXT),  # "forward", "backward", "gather", "scatter", ...
        ("rank", INT32),
        ("peer", INT32),  # -1: the value concerns no single other rank
        ("name", TEXT),  # "rows"
        ("value", INT64),
    ]
)
NOBODY = -1
MOST_EPOCHS = 10**7 + 1
"""Value of ``peer`` for a decision that does not concern a single other rank."""
UNDECIDED = -1
"""Value in the result of :func:`decisions_of` where a rank decided nothing in a turn."""


def columns_of(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Split names of decisions into the columns point, phase and name; first columns are empty for shorter names."""
    parts = (text.rsplit("/", 2) for text in texts)
    return zip(*(["", "", *part][-3:] for part in parts), strict=True)


def decisions_in(program: Program) -> frozenset[str]:
    """Names of all decisions of a program: values, set while training, that are sizes or say whether an op runs."""
    sizes: list[Size] = [buffer.rows for buffer in program.buffers.values()]
    guards: set[str] = set()
    for _, op in program.ops:
        sizes += op.sizes
        if op.guard is not None:
            guards.add(op.guard.decision)
    return frozenset(guards | {size.name for size in sizes if isinstance(size, Decision)})


def accuracy_counts(program: Program) -> tuple[tuple[str, str], ...]:
    """Pairs of names of decisions that record how many training rows are correct, and how many there are."""
    points = [str(op.options["point"]) for _, op in program.ops if op.action == EndEpoch.label]
    return tuple((f"{point}/correct", f"{point}/count") for point in dict.fromkeys(points))


def read_activity(path: Path) -> pa.Table:
    """Read ``activity.parquet``. Raises :class:`ConfigError` when it is missing, unreadable or has another schema."""
    if not path.is_file():
        raise ConfigError(
            f"--activity: got {path.parent}, which holds no {path.name}, expected the directory of a finished "
            "`simgnn run` with decisions: on several ranks, with freshness.kind other than 'always'."
        )
    return read_table(path, ACTIVITY_SCHEMA)


def decisions_of(table: pa.Table, ranks: int, steps: int = 1) -> dict[str, IntArray]:
    """Convert a table to one array for each decision: int64 [P, epochs, steps], or with peers [P, P, epochs, steps].

    An entry is ``UNDECIDED`` where a rank decided nothing in a step, and 0 for a peer that its decision did not name.
    """
    columns = {name: table[name].to_numpy() for name in ("rank", "peer", "epoch", "step", "value")}
    parts = zip(*(table[column].to_pylist() for column in ("point", "phase", "name")), strict=True)
    names = np.array(["/".join(filter(None, part)) for part in parts])
    epochs = int(columns["epoch"].max(initial=-1)) + 1
    found: dict[str, IntArray] = {}
    bounds = {"rank": (0, ranks), "peer": (NOBODY, ranks), "epoch": (0, MOST_EPOCHS), "step": (0, steps)}
    for key, (low, high) in bounds.items():
        if len(columns[key]) and not low <= columns[key].min() <= columns[key].max() < high:
            got = f"{columns[key].min()}..{columns[key].max()}"
            raise ConfigError(f"--activity: the record has {key} {got}, expected {low}..{high - 1}: run it again")
    for name in np.unique(names):
        mine = names == name
        rank, peer, epoch, step, value = (column[mine] for column in columns.values())
        decisions = np.full((ranks, epochs, steps), UNDECIDED, dtype=np.int64)
        if peer[0] == NOBODY:
            decisions[rank, epoch, step] = value
        else:
            decisions[rank, epoch, step] = 0
            decisions = np.repeat(decisions[:, None], ranks, axis=1)
            decisions[rank, peer, epoch, step] = value
        found[str(name)] = decisions
    return found
