"""Exact training: every remote row is fresh."""

from typing import ClassVar, Literal

from simgnn.policies.encoded import emit_encoded
from simgnn.policies.freshness.base import Freshness
from simgnn.policies.sync import Sync, emit_plainly
from simgnn.policy import Codec, Moves
from simgnn.program.builder import ProgramBuilder


class Always(Freshness):
    """Every transfer carries every row, every time."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")

    kind: Literal["always"] = "always"

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        """See :class:`Freshness`."""
        if codec.encodes:
            emit_encoded(builder, sync, codec)
        else:
            emit_plainly(builder, sync)
