"""Linear quantisation: a row becomes its smallest value, a step, and a code of B bits for each element."""

from typing import ClassVar, Literal

from pydantic import Field

from simgnn.policies.base import Moves
from simgnn.policies.codec.base import Codec
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.sizes import Size


class Linear(Codec):
    """B-bit codes of each row between its own smallest and largest value.

    With n = 2**B - 1 and s = (max - min) / n, element m becomes q = floor((m - min) / s + 0.5), kept in 0..n (0 where
    s = 0), and is read as min + s q, by one expression on both ends, so that they hold the same bits. On the wire: min
    and s in the type of the rows, then the codes, packed little-endian, each row padded to a whole byte. Off by at most
    (max - min) / (2n) plus rounding; exact where max = min. A row that holds NaN or infinity, or whose range overflows,
    is refused.

    Source: CDFGNN (arXiv 2408.00232), section 5, equations 22-23. Deviations: 2**B - 1 steps, so that the largest value
    still has a code of B bits; ``bits`` is 8 where the paper names none; the header has the type of the rows, so it is
    the paper's 8 bytes for float32.
    """

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")

    kind: Literal["linear"] = "linear"
    bits: Literal[1, 2, 4, 8, 16] = Field(default=8, description="bits of one element's code: 1, 2, 4, 8 or 16")

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
