"""Rows travel as bfloat16: the range of float32 with 8 significant bits."""

from typing import ClassVar, Literal

from array_api_compat import array_namespace

from simgnn.emit.arrays import from_bytes, to_bytes
from simgnn.policy import Array, Codec, Moves, PolicyContext
from simgnn.program.ops import ITEM_BYTES


class Bfloat16(Codec):
    """Two bytes an element: the nearest bfloat16, ties to even, with an error of at most 2**-8 of the element."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")
    relative: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    kind: Literal["bfloat16"] = "bfloat16"

    def row_bytes(self, width: int, dtype: str) -> int:
        return width * ITEM_BYTES["bfloat16"]

    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        """Return the upper half of each float32, rounded to even."""
        xp = array_namespace(rows)
        raw = xp.astype(from_bytes(to_bytes(xp.astype(rows, xp.float32)), "int32"), xp.int64)
        rounded = raw + 0x7FFF + ((raw >> 16) & 1)
        upper = xp.where(xp.isnan(rows), xp.full_like(raw, 0x7FC0), rounded >> 16)
        return to_bytes(xp.astype(upper, xp.int16))

    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        xp = array_namespace(packed)
        raw = xp.astype(from_bytes(packed, "int16"), xp.int32) << 16
        return xp.astype(from_bytes(to_bytes(raw), "float32"), getattr(xp, dtype), copy=False)
