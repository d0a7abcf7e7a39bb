"""Rows travel as float32, whatever type they are computed in."""

from typing import ClassVar, Literal

from array_api_compat import array_namespace

from simgnn.emit.arrays import from_bytes, to_bytes
from simgnn.policy import Array, Codec, Moves, PolicyContext
from simgnn.program.ops import ITEM_BYTES


class Float32(Codec):
    """Four bytes an element: the nearest float32. Exact if ``train.dtype`` is float32."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")
    relative: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    kind: Literal["float32"] = "float32"

    def row_bytes(self, width: int, dtype: str) -> int:
        return width * ITEM_BYTES["float32"]

    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        xp = array_namespace(rows)
        return to_bytes(xp.astype(rows, xp.float32, copy=False))

    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        xp = array_namespace(packed)
        return xp.astype(from_bytes(packed, "float32"), getattr(xp, dtype), copy=False)
