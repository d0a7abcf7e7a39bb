"""Names of buffers, columns and parts in programs that train chunk by chunk.

A step computes one layer of one chunk of each rank. Rows of all chunks lie in buffers of hosts; a device has a merged
buffer of rows that its chunk needs or that others read from it, and buffers of the chunk's own rows."""

from simgnn.program.ops import Access, Part
from simgnn.program.sizes import Column

LISTS = {
    "load_from": "host", "load_to": "device", "sent": "device", "received": "device", "own": "device",
    "near": "device", "others": "device", "collected": "device", "evict_from": "device", "evict_to": "host",
}  # fmt: skip
"""Lists of rows of a rank, batch after batch, and the memory in which they and their rows lie:

- ``load_from``, ``load_to``: rows of the host that a batch loads, and their slots in the merged buffer;
- ``sent``, ``received``: slots of rows that others read, by reader, and that this rank reads, by owner;
- ``own``, ``near``: slots of the chunk's own rows, and of the rank's other rows that the chunk needs; ``others``: of
  the latter, then of rows of other ranks;
- ``collected``: slots whose gradients arrive from others, by sender;
- ``evict_from``, ``evict_to``: slots of gradients that go to the host, and their rows there."""
READ, NEED = "chunks/read", "chunks/need"
"""Routes from owners to the ranks that need their rows: rows that are read forward, and all rows of others that a chunk
needs, whose gradients travel back."""
RANK_ROWS, MERGED = Column("rows"), Column("chunks/merged")
"""Rows of a rank, and of its merged buffer."""
ROWS, FIRST, EDGES, NEEDED = (Column(f"chunks/{name}") for name in ("rows", "first", "edges", "needed"))
"""By step: rows of the chunk, the first of them among the rank's, its in-edges, and rows that it needs."""
NEAR, FAR, OTHERS = (Column(f"chunks/{name}") for name in ("near", "far", "others"))
"""By step: rows that a chunk needs beside its own: of the same rank, of other ranks, and both."""
TRAIN_ROWS, BATCH = Column("chunks/train_rows"), Column("chunks/batch")
"""By step: rows of the loss, and the number of the batch (that of the last in steps without one)."""
HELD, GRADIENTS_HELD = "chunks/merged", "d/chunks/merged"
"""Merged buffers, of rows and of their gradients, as wide as the widest rows; one where no pass needs both."""
TOPOLOGY, EDGES_HELD = "topology", "chunks/edges"
"""Buffers of the edges of all chunks, and of those of the chunk in turn."""


def listed(name: str) -> str:
    """Return the buffer of a list of rows."""
    return f"chunks/{name}"


def rows_in(name: str) -> Column:
    """Return the number of rows of a list in a step."""
    return Column(f"chunks/{name}/rows")


def at_list(buffer: str, name: str, width: int = 0) -> Access:
    """Return the access to the rows of a buffer that a list names in a step; its op reads :func:`listed` too.
    ``width``: of rows in a merged buffer."""
    return Access(buffer, part=Part(rows_in(name), Column(f"chunks/{name}/first"), listed(name), width))


def all_merged(buffer: str, width: int) -> Access:
    """Return the access to all rows of a merged buffer, of this width."""
    return Access(buffer, part=Part(MERGED, width=width))


def of_chunk(buffer: str) -> Access:
    """Return the access to the rows of a chunk in a buffer of all rows of the rank."""
    return Access(buffer, part=Part(ROWS, FIRST))


def first_rows(buffer: str, rows: Column, first: Column | int = 0) -> Access:
    """Return the access to ``rows`` rows of a buffer from ``first`` on."""
    return Access(buffer, part=Part(rows, first))


def stored(buffer: str) -> str:
    """Return the buffer of the host that holds the rows of all chunks of a buffer."""
    return buffer if buffer == "features" else f"host/{buffer}"
