"""Stochastic quantisation: like linear, but elements are rounded up or down at random, without bias."""

from typing import Literal

from array_api_compat import array_namespace
from pydantic import Field

from simgnn.emit.arrays import draws, signed, units
from simgnn.emit.row_codes import RowCodes, grid
from simgnn.graph.hashing import stream_key
from simgnn.policy import Array, PolicyContext
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.sizes import Size, Terms, rows_of

DRAWING_PASSES = 2
"""What drawing a number an element costs, in passes over the rows: assumed, not measured."""


class Stochastic(RowCodes):
    """Element m becomes q = floor((m - min) / s + u), clipped to 0..n (0 if s = 0), u uniform in [0, 1); see
    :class:`RowCodes`. The mean of decoded values is m, the error less than s = (max - min) / n.

    u is a pure function of (seed, epoch, step, layer, direction, rank, row, column): runs repeat bit for bit, whatever
    else is sent and however many threads encode; a row that goes to several peers is rounded alike for all.

    Source: AdaQP's codec. Deviations: u does not depend on the receiver, so that copies of a row stay equal; ``bits``
    is one number for the whole run, not assigned by variance; the simulated cost is that of linear codes plus passes
    for drawing u (assumed)."""

    kind: Literal["stochastic"] = "stochastic"
    bits: Literal[2, 4, 8] = Field(default=8, description="bits of one element's code: 2, 4 or 8")

    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        turn = f"codec/{context.epoch}/{context.step}/{context.layer}/{context.phase}/{context.rank}"
        return self.pack(self.dithered(rows, draws(signed(int(stream_key(context.seed, turn))), names)))

    def dithered(self, rows: Array, keys: Array) -> Array:
        """Round rows [n, F] at random to values that have a code; each row's smallest and largest value stay.

        ``keys`` int64 [n]: the random stream of each row. An element between two codes' values becomes the upper one
        with the probability of its relative distance from the lower one. Rows whose elements are equal, and rows whose
        step is not finite, stay."""
        xp, most = array_namespace(rows), self.largest_code
        if not rows.shape[0]:
            return rows
        low, step, bad = grid(rows, most)
        high, usable = xp.max(rows, axis=1, keepdims=True), ~bad[:, None] & (step > 0)
        past = (rows - low) / xp.where(usable, step, xp.ones_like(step))
        codes = xp.clip(xp.floor(xp.astype(past, xp.float64) + units(keys, rows.shape[1])), 0, most)
        moved = xp.where((codes == most) | (rows == high), high, low + step * xp.astype(codes, rows.dtype))
        return xp.where(usable, moved, rows)

    def encode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        sizes: dict[str, Size] = {"rows": rows, "width": width, "passes": DRAWING_PASSES}
        drawing = Work("elementwise", {**sizes, "item_bytes": ITEM_BYTES[dtype]})
        return (*super().encode_work(rows, width, dtype), drawing)

    def encode_scratch(self, rows: Size, width: int, dtype: str) -> Terms:
        return rows_of(rows, width * ITEM_BYTES[dtype])  # a copy of the rows, which is rounded
