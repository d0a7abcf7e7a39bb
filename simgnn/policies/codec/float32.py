"""Rows travel as float32, whatever type they are computed in."""

from typing import ClassVar, Literal

from simgnn.policies.base import Moves
from simgnn.policies.codec.base import Codec
from simgnn.program.ops import ITEM_BYTES


class Float32(Codec):
    """Four bytes an element: the nearest float32. Exact where ``train.dtype`` is float32."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")
    relative: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    kind: Literal["float32"] = "float32"

    def row_bytes(self, width: int, dtype: str) -> int:
        """See :class:`Codec`."""
        return width * ITEM_BYTES["float32"]
