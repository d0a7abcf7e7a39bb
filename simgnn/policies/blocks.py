"""Whole blocks of rows that each rank broadcasts in turn: what a communication asks for, and how it is carried out
plainly. Freshness says which blocks are sent: :meth:`simgnn.policies.freshness.base.Freshness.blocks`."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from simgnn.policies.sync import Phase
from simgnn.program.builder import ProgramBuilder
from simgnn.program.ops import Dependency
from simgnn.program.sizes import Size


@dataclass(frozen=True)
class BlockSync:
    """A sync point in one direction: the block of every rank that has rows reaches all ranks, in rank order.

    ``source``: each rank's own rows, ``width`` elements wide; ``rows`` [P]: how many each rank has, ``own_rows`` the
    same as a size; ``arriving``: most rows of a block that arrives. ``sent_in``: the templates in which blocks travel,
    where these are not all: blocks that arrived once are kept. ``constant``: the rows are input features. ``ahead``:
    blocks that may arrive while one is in use.
    """

    templates: tuple[str, ...]
    sent_in: tuple[str, ...]
    layer: int
    phase: Phase
    width: int
    source: str
    rows: tuple[int, ...]
    own_rows: Size
    arriving: Size
    constant: bool
    ahead: int

    @property
    def point(self) -> str:
        """Name of the sync point, for buffers and decisions."""
        return f"{self.layer}/{self.phase}"

    def op(self, part: str) -> str:
        """Name of an op of the sync."""
        return f"{self.phase}/{self.layer}/{part}"

    def rows_elsewhere(self, builder: ProgramBuilder, root: int) -> Size:
        """Rows of a root's block as others hold it: none on the root."""
        held = np.full(len(self.rows), self.rows[root], dtype=np.int64)
        held[root] = 0
        return builder.column(f"block_rows/{root}", held)


class Arrived(NamedTuple):
    """Buffers of a root's rows: as the root itself reads them, and as all others do."""

    own: str
    block: str


class BlockTransfer(Protocol):
    """Emits the transfers of a sync; the communication emits the sums between them."""

    def begin(self) -> None:
        """Before the first block."""
        ...

    def send(self, root: int, after: tuple[Dependency, ...]) -> Arrived:
        """The block of a root, not before the ops named in ``after``."""
        ...

    def checks(self) -> tuple[str | None, dict[str, int | str]]:
        """What the end of the sums makes sure of: a buffer that it reads, and options of the op."""
        ...


class PlainBlocks:
    """Every block, every time (or once, where the sync says so), as it is; ``row_bytes``: of a row on the wire."""

    def __init__(self, builder: ProgramBuilder, sync: BlockSync, row_bytes: int) -> None:
        self.builder, self.sync, self.row_bytes = builder, sync, row_bytes
        self._sent = 0

    def begin(self) -> None:
        """Nothing is decided."""

    def send(self, root: int, after: tuple[Dependency, ...]) -> Arrived:
        """Broadcast into a receive buffer, which later blocks reuse; blocks that arrive once have one each."""
        builder, sync = self.builder, self.sync
        if sync.sent_in != sync.templates:
            rows = sync.rows_elsewhere(builder, root)
            block = builder.buffer(f"block/{sync.point}/root-{root}", rows, sync.width, persistent=True)
        else:
            slot = self._sent % (sync.ahead + 1)
            block = builder.buffer(f"block/{sync.point}/{slot}", sync.arriving, sync.width)
        self._sent += 1
        builder.broadcast(
            sync.sent_in, sync.op(f"broadcast/{root}"), root, [sync.source], [block], sync.own_rows, self.row_bytes,
            layer=sync.layer, phase=sync.phase, after=after,
        )  # fmt: skip
        return Arrived(sync.source, block)

    def checks(self) -> tuple[str | None, dict[str, int | str]]:
        """Nothing is old."""
        return None, {}
