"""Rows travel as bfloat16: the range of float32 with 8 significant bits."""

from typing import ClassVar, Literal

from simgnn.policies.base import Moves
from simgnn.policies.codec.base import Codec
from simgnn.program.ops import ITEM_BYTES


class Bfloat16(Codec):
    """Two bytes an element: the nearest bfloat16, ties to even; off by at most 2**-8 of the element."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")
    relative: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    kind: Literal["bfloat16"] = "bfloat16"

    def row_bytes(self, width: int, dtype: str) -> int:
        """See :class:`Codec`."""
        return width * ITEM_BYTES["bfloat16"]
