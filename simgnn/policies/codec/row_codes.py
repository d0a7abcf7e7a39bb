"""What codecs of B bits an element share: a row's smallest value and step go ahead of its packed codes."""

from typing import ClassVar

from pydantic import Field

from simgnn.policies.base import Moves
from simgnn.policies.codec.base import Codec
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.sizes import Size


class RowCodes(Codec):
    """B-bit codes of each row between its own smallest and largest value: with n = 2**B - 1 and s = (max - min) / n,
    code q stands for min + s q, read by one expression on both ends, so that they hold the same bits.

    On the wire: min and s in the type of the rows, then the codes, packed little-endian, each row padded to a whole
    byte. Exact where max = min. A row that holds NaN or infinity, or whose range overflows, is refused.

    ``feedback``: a sender whose receivers keep copies counts what they decode as sent, so that an error is part of the
    next difference; without, it counts the exact row, and errors pile up. Only caches (freshness "adaptive-vertex")
    have differences.
    """

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")

    bits: int
    feedback: bool = Field(default=True, description="senders' caches hold what receivers decode; false: the exact row")

    @property
    def keeps_exact_rows(self) -> bool:
        """See :class:`Codec`."""
        return not self.feedback

    def row_bytes(self, width: int, dtype: str) -> int:
        """See :class:`Codec`."""
        return 2 * ITEM_BYTES[dtype] + code_bytes(width, self.bits)

    def encode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """See :class:`Codec`."""
        return (self._work("encode", rows, width, dtype),)

    def decode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """See :class:`Codec`."""
        return (self._work("decode", rows, width, dtype),)

    def _work(self, primitive: str, rows: Size, width: int, dtype: str) -> Work:
        sizes: dict[str, Size] = {"rows": rows, "width": width, "row_bytes": self.row_bytes(width, dtype)}
        return Work(primitive, {**sizes, "item_bytes": ITEM_BYTES[dtype]})


def code_bytes(width: int, bits: int) -> int:
    """Bytes of a row's packed codes."""
    return -(-width * bits // 8)
