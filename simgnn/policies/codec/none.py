"""No encoding: rows travel in the type in which they are computed."""

from typing import ClassVar, Literal

from simgnn.policies.base import Moves
from simgnn.policies.codec.base import Codec
from simgnn.program.ops import ITEM_BYTES


class Plain(Codec):
    """Payload in ``train.dtype``."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")
    relative: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
    encodes: ClassVar[bool] = False

    kind: Literal["none"] = "none"

    def row_bytes(self, width: int, dtype: str) -> int:
        """See :class:`Codec`."""
        return width * ITEM_BYTES[dtype]
