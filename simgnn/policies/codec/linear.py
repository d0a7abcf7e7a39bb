"""Linear quantisation: a row is sent as its smallest value, a step, and the nearest code of B bits for each element."""

from typing import ClassVar, Literal

from pydantic import Field

from simgnn.emit.row_codes import RowCodes


class Linear(RowCodes):
    """Element m becomes q = floor((m - min) / s + 0.5), clipped to 0..n (0 if s = 0); see :class:`RowCodes`.

    The error is at most (max - min) / (2n) plus rounding.

    Source: CDFGNN (arXiv 2408.00232), section 5, equations 22-23. Deviations: 2**B - 1 steps, so that the largest value
    still has a code of B bits; ``bits`` is 8 where the paper states none; the header has the type of the rows, so it is
    the paper's 8 bytes for float32; ``feedback``, where the paper's caches keep the exact row."""

    amounts: ClassVar[tuple[str, ...]] = ("bits",)

    kind: Literal["linear"] = "linear"
    bits: Literal[1, 2, 4, 8, 16] = Field(default=8, description="bits of one element's code: 1, 2, 4, 8 or 16")
