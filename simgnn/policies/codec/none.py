"""No encoding: rows travel in the type in which they are computed."""

from typing import ClassVar, Literal

from simgnn.policies.base import Policy
from simgnn.program.ops import ITEM_BYTES


class Plain(Policy):
    """Payload in ``train.dtype``."""

    slot: ClassVar[str] = "codec"

    kind: Literal["none"] = "none"

    def row_bytes(self, width: int, dtype: str) -> int:
        """Bytes of one encoded row of ``width`` elements of ``dtype``."""
        return width * ITEM_BYTES[dtype]
