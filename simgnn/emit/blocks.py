"""Broadcasts of whole blocks of rows, rank after rank. A communication policy requests them with :class:`BlockSync`;
:meth:`simgnn.emit.freshness.MovesBlocks.blocks` chooses the blocks to send, :class:`PlainBlocks` sends all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.sync import Phase
from simgnn.policy import Codec, DecodeRows, EncodeRows, row_bytes_of
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Dependency, Guard
from simgnn.program.sizes import Scratch, Size


@dataclass(frozen=True)
class BlockSync:
    """A sync point in one direction: the block of every rank that has rows reaches all ranks, in rank order.

    ``source``: each rank's own rows, ``width`` elements wide; ``rows`` [P]: the number of rows of each rank,
    ``own_rows`` the same as a size; ``arriving``: the most rows of a block that arrives. ``sent_in``: the templates in
    which blocks travel; if these are not all templates, blocks arrive once and stay. ``constant``: the rows are input
    features. ``ahead``: the number of blocks that may arrive while one is in use."""

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
        return f"{self.layer}/{self.phase}"

    def op(self, part: str) -> str:
        return f"{self.phase}/{self.layer}/{part}"

    def rows_elsewhere(self, builder: ProgramBuilder, root: int) -> Size:
        """Return the size that counts the rows of a root's block which each rank receives: zero on the root itself."""
        held = np.full(len(self.rows), self.rows[root], dtype=np.int64)
        held[root] = 0
        return builder.column(f"block_rows/{root}", held)


class Arrived(NamedTuple):
    """The buffers of a root's rows: ``own`` is read on the root, ``block`` on all other ranks."""

    own: str
    block: str


class BlockTransfer(Protocol):
    """Emits the transfers of a :class:`BlockSync`; the communication emits the sums between them."""

    def begin(self, after: tuple[Dependency, ...]) -> None:
        """Emit the ops before the first block. They wait for the ops named in ``after``."""

    def send(self, root: int, after: tuple[Dependency, ...]) -> Arrived:
        """Emit the transfer of a root's block, which waits for the ops named in ``after``."""

    def checks(self) -> tuple[str | None, dict[str, int | str]]:
        """Return a buffer (or None) and options with which the last op of the sums checks the age of blocks."""


ExpandBlocks = Callable[[BlockSync], BlockTransfer]
"""Builds the transfers of a sync for an experiment's freshness and codec."""


class BlockWire:
    """Sends one block as it is, or encoded: the root encodes it and all other ranks decode it.

    Blocks that travel only once are never encoded. ``row_bytes``: bytes of a row on the wire."""

    def __init__(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec | None) -> None:
        self.builder, self.sync = builder, sync
        self.codec = codec if codec is not None and codec.encodes and sync.sent_in == sync.templates else None
        plain = sync.width * builder.item_bytes
        self.row_bytes = plain if self.codec is None else row_bytes_of(self.codec, sync.width, builder.dtype)

    def send(
        self, root: int, target: str, after: tuple[Dependency, ...], versions: str | None = None,
        sent: str | None = None, active: str | None = None, decided: str | None = None, guard: Guard | None = None,
    ) -> None:  # fmt: skip
        """Emit the transfer of a root's block into the buffer ``target`` of all others.

        ``guard``: the condition of sending; ``active``: the buffer of these conditions, written by the op ``decided``.
        The broadcast writes the epoch to ``versions`` and, on the root, the copy that others now have to ``sent``."""
        builder, sync = self.builder, self.sync
        told = [active] if active is not None else [sync.source]
        marks = [versions] if versions is not None else []
        fields: dict[str, Any] = {"layer": sync.layer, "phase": sync.phase, "guard": guard}
        codec = self.codec
        if codec is None:
            reads = [sync.source, *told] if active is not None else [sync.source]
            writes = [target, *marks, *([sent] if sent is not None else [])]
            self._broadcast(root, reads, writes, after, fields)
            return
        dtype, coding = builder.dtype, {"module": "codec", "category": "comm_overhead"}
        rows = sync.rows_elsewhere(builder, root)
        here = builder.column(f"root/{root}", np.arange(len(sync.rows)) == root)
        coded = builder.buffer(f"coded/{sync.point}", sync.own_rows, self.row_bytes, "uint8")
        arrived = builder.buffer(f"coded/{sync.point}/root-{root}", rows, self.row_bytes, "uint8")
        builder.compute(
            sync.templates, sync.op(f"encode/{root}"), OpKind.ENCODE, [sync.source], [coded],
            codec.encode_work(sync.own_rows, sync.width, dtype), ranks=here.name,
            scratch=Scratch(codec.encode_scratch(sync.own_rows, sync.width, dtype)),
            after=() if decided is None else (Dependency(decided),), action=EncodeRows, **coding, **fields,
        )  # fmt: skip
        self._broadcast(root, [coded, *told], [arrived, *marks], after, fields)
        if sent is not None:
            builder.compute(
                sync.templates, sync.op(f"keep/{root}"), OpKind.DECODE, [coded], [sent],
                codec.decode_work(sync.own_rows, sync.width, dtype), ranks=here.name,
                after=(Dependency(sync.op(f"broadcast/{root}")),), action=DecodeRows, **coding, **fields,
            )  # fmt: skip
        builder.compute(
            sync.templates, sync.op(f"decode/{root}"), OpKind.DECODE, [arrived], [target],
            codec.decode_work(rows, sync.width, dtype), action=DecodeRows, **coding, **fields,
        )  # fmt: skip

    def _broadcast(
        self, root: int, reads: list[str], writes: list[str], after: tuple[Dependency, ...], fields: dict[str, Any]
    ) -> None:
        sync = self.sync
        self.builder.broadcast(
            sync.sent_in, sync.op(f"broadcast/{root}"), root, reads, writes, sync.own_rows, self.row_bytes,
            after=after, **fields,
        )  # fmt: skip


class PlainBlocks:
    """Sends every block in each epoch, or once if the sync asks for that. ``codec`` None: rows are not encoded."""

    def __init__(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec | None) -> None:
        self.builder, self.sync = builder, sync
        self._wire = BlockWire(builder, sync, codec)
        self._sent = 0

    def begin(self, after: tuple[Dependency, ...]) -> None:
        pass

    def send(self, root: int, after: tuple[Dependency, ...]) -> Arrived:
        """Emit the transfer of a root's block. Blocks share receive buffers, unless they arrive once and stay."""
        builder, sync = self.builder, self.sync
        if sync.sent_in != sync.templates:
            rows = sync.rows_elsewhere(builder, root)
            block = builder.buffer(f"block/{sync.point}/root-{root}", rows, sync.width, persistent=True)
        else:
            slot = self._sent % (sync.ahead + 1)
            block = builder.buffer(f"block/{sync.point}/{slot}", sync.arriving, sync.width)
        self._sent += 1
        self._wire.send(root, block, after)
        return Arrived(sync.source, block)

    def checks(self) -> tuple[str | None, dict[str, int | str]]:
        return None, {}
