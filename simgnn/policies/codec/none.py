"""No encoding: rows travel in the type in which they are computed."""

from typing import ClassVar, Literal

from simgnn.emit.arrays import from_bytes, to_bytes
from simgnn.policy import Array, Codec, Moves, PolicyContext
from simgnn.program.ops import ITEM_BYTES


class Plain(Codec):
    """No encoding; elements travel in ``train.dtype``."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks", "batches", "chunks")
    relative: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
    encodes: ClassVar[bool] = False

    kind: Literal["none"] = "none"

    def row_bytes(self, width: int, dtype: str) -> int:
        return width * ITEM_BYTES[dtype]

    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        return to_bytes(rows)

    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        return from_bytes(packed, dtype)
