"""Exact training: every remote row is fresh."""

from typing import ClassVar, Literal

from simgnn.emit.blocks import BlockSync, BlockTransfer, PlainBlocks
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.freshness import MovesBlocks, MovesRows
from simgnn.emit.sync import Sync, emit_encoded, emit_plainly
from simgnn.policy import Codec, Moves


class Always(MovesRows, MovesBlocks):
    """Every transfer sends every row, in every epoch."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks", "batches", "chunks")
    exact: ClassVar[bool] = True

    kind: Literal["always"] = "always"

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        if codec.encodes:
            emit_encoded(builder, sync, codec)
        else:
            emit_plainly(builder, sync)

    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        return PlainBlocks(builder, sync, codec)
