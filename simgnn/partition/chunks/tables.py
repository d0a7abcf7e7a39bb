"""Tables of a partition's statistics by rank and batch, for plans of chunked training: sizes of sets, and rows by pair.

- ``chunks/rows``, ``chunks/edges`` int64 [P, C]: destinations of the chunk of each batch, and their in-edges;
- ``chunks/needed`` [P, C]: rows that the chunk needs (N); ``chunks/needed_new``: those that the chunk before does not;
- ``chunks/transition`` [P, C]: own rows that any rank needs in the batch (T); ``chunks/loaded``: those that come from
  the host; ``chunks/evicted``: those whose gradients go there after it;
- ``chunks/held`` [P, C]: rows in the merged buffer, which is as large as the largest of a rank;
- ``chunks/remote`` int64 [k, 4]: (rank, batch, owner, rows of that owner that the chunk needs), sorted, without zeros;
  ``chunks/remote_new``: those that the batch before did not leave in the buffer.

Source: HongTu's sets, in the order of chunks that was chosen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.partition.chunks.volumes import Volumes
from simgnn.program.sizes import IntArray

PREFIX = "chunks/"
ROWS, EDGES, NEEDED, NEEDED_NEW, TRANSITION, LOADED, EVICTED, HELD = (
    f"{PREFIX}{name}" for name in ("rows", "edges", "needed", "needed_new", "transition", "loaded", "evicted", "held")
)
BY_BATCH = (ROWS, EDGES, NEEDED, NEEDED_NEW, TRANSITION, LOADED, EVICTED, HELD)
"""Tables [P, C]."""
REMOTE, REMOTE_NEW = f"{PREFIX}remote", f"{PREFIX}remote_new"
BY_PAIR = (REMOTE, REMOTE_NEW)
"""Tables [k, 4] of (rank, batch, owner, rows)."""
Tables = Mapping[str, NDArray[Any]]


def stacked_tables(ranks: Iterable[Tables]) -> dict[str, IntArray]:
    """Build the tables from what each rank counted: [C] of :data:`BY_BATCH`, [C, P] of :data:`BY_PAIR`."""
    counted = list(ranks)
    tables = {name: np.stack([one[name] for one in counted]).astype(np.int64) for name in BY_BATCH}
    for name in BY_PAIR:
        rows = np.stack([one[name] for one in counted])
        places = np.nonzero(rows)
        tables[name] = np.stack((*places, rows[places]), axis=1).astype(np.int64)
    return tables


def volumes_of(tables: Tables) -> Volumes:
    """Sum the tables to the volumes of one pass over one layer."""
    sums = {name: int(tables[name].sum()) for name in BY_BATCH}
    remote, new = (int(tables[name][:, 3].sum()) for name in BY_PAIR)
    return Volumes(sums[NEEDED], sums[NEEDED_NEW], sums[TRANSITION], sums[LOADED], remote, new)


def buffer_rows(tables: Tables) -> IntArray:
    """Rows of each rank's merged buffer, int64 [P]."""
    return np.asarray(tables[HELD].max(axis=1), dtype=np.int64)


def batches_in(tables: Tables) -> int | None:
    """The number of batches that the tables are of; None: there are no tables of chunks."""
    return next((tables[name].shape[-1] for name in BY_BATCH if name in tables and tables[name].ndim == 2), None)


def table_faults(tables: Tables, rows: IntArray, edges: IntArray) -> Iterator[tuple[str, str]]:
    """Yield (table, problem) of tables of chunks that contradict each other, or the ``rows`` and ``edges`` [P] of the
    partition. Each table has the expected form already."""
    found = [name for name in (*BY_BATCH, *BY_PAIR) if name in tables]
    if not found:
        return
    missing = [name for name in (*BY_BATCH, *BY_PAIR) if name not in tables]
    if missing:
        yield found[0], f"got no table {', '.join(missing)} beside it, expected all tables of chunks, or none"
        return
    widths = {tables[name].shape[1] for name in BY_BATCH}
    if len(widths) > 1:
        yield ROWS, f"got tables of {', '.join(map(str, sorted(widths)))} batches, expected one number of batches"
        return
    for name, whole in ((ROWS, rows), (EDGES, edges)):
        if not np.array_equal(tables[name].sum(axis=1), whole):
            yield name, "expected numbers that add up to those of each rank"
    if np.any(tables[ROWS] < 1):
        yield ROWS, "expected at least one row in each chunk"
    if not np.array_equal(tables[LOADED].sum(axis=1), tables[EVICTED].sum(axis=1)):
        yield EVICTED, f"expected as many rows as {LOADED} has, for each rank"
    yield from _larger(tables, ((NEEDED_NEW, NEEDED), (LOADED, TRANSITION), (EVICTED, TRANSITION), (TRANSITION, HELD)))
    for name in BY_PAIR:
        table = tables[name]
        if np.any(table[:, 0] == table[:, 2]):
            yield name, "got a pair of a rank with itself: it needs no rows of others from itself"
        if np.any(np.diff(_keys(table, tables)) <= 0):
            yield name, "a batch of a pair occurs twice, or rows are not in ascending order"
    # what the merged buffer holds beside own rows is what the chunk needs of others
    remote = np.zeros_like(tables[HELD])
    np.add.at(remote, (tables[REMOTE][:, 0], tables[REMOTE][:, 1]), tables[REMOTE][:, 3])
    if not np.array_equal(remote, tables[HELD] - tables[TRANSITION]):
        yield REMOTE, f"expected as many rows as {HELD} less {TRANSITION}, for each rank and batch"


def _larger(tables: Tables, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for part, whole in pairs:
        if np.any(tables[part] > tables[whole]):
            yield part, f"expected at most the numbers of {whole}"


def _keys(table: NDArray[Any], tables: Tables) -> IntArray:
    ranks, batches = tables[ROWS].shape
    return np.asarray((table[:, 0] * batches + table[:, 1]) * ranks + table[:, 2])
