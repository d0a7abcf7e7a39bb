"""Stochastic quantisation: as linear, but elements are rounded up or down at random, so that none is off on average."""

from typing import Literal

from pydantic import Field

from simgnn.policies.codec.row_codes import RowCodes
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.scratch import Terms, rows_of
from simgnn.program.sizes import Size

DRAWING_PASSES = 2
"""What drawing a number an element costs, in passes over the rows: assumed, not measured."""


class Stochastic(RowCodes):
    """Element m becomes q = floor((m - min) / s + u), kept in 0..n (0 where s = 0), u uniform in [0, 1); see
    :class:`RowCodes`. Its mean is m, its error below s = (max - min) / n.

    u is a pure function of (seed, epoch, step, layer, direction, rank, row, column): runs repeat bit for bit, whatever
    else is sent and however many threads encode; a row that goes to several peers is rounded alike for all.

    Source: AdaQP's codec (specs/edgecut_baselines.md, section 5.1). Deviations: u does not depend on the receiver, so
    that copies of a row stay equal; ``bits`` is one number for the whole run: no assignment by variance; its price is
    that of linear codes and the passes of drawing (assumed).
    """

    kind: Literal["stochastic"] = "stochastic"
    bits: Literal[2, 4, 8] = Field(default=8, description="bits of one element's code: 2, 4 or 8")

    def encode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """See :class:`Codec`."""
        sizes: dict[str, Size] = {"rows": rows, "width": width, "passes": DRAWING_PASSES}
        drawing = Work("elementwise", {**sizes, "item_bytes": ITEM_BYTES[dtype]})
        return (*super().encode_work(rows, width, dtype), drawing)

    def encode_scratch(self, rows: Size, width: int, dtype: str) -> Terms:
        """See :class:`Codec`: the rows as they are rounded, a copy."""
        return rows_of(rows, width * ITEM_BYTES[dtype])
