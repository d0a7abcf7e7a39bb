"""Stochastic quantisation: like linear, but elements are rounded up or down at random, without bias."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray
from pydantic import Field

from simgnn.emit.arrays import draws, signed, units
from simgnn.emit.bit_widths.solver import Groups, Links, choose_bits
from simgnn.emit.bit_widths.transfer import AdaptiveCodes
from simgnn.emit.row_codes import grid
from simgnn.graph.hashing import stream_key
from simgnn.policy import Array, Choices, Effect, Idle, PolicyContext, chosen
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.sizes import Size, Terms, rows_of

DRAWING_PASSES = 2
"""What drawing a number an element costs, in passes over the rows: assumed, not measured."""
ADAPTIVE_ONLY = ("assign_period", "group_size", "lam", "between_hosts", "message_bytes", "expected_bits")
"""Options that only ``bits = "adaptive"`` reads."""


class Stochastic(AdaptiveCodes):
    """Element m becomes q = floor((m - min) / s + u), clipped to 0..n (0 if s = 0), u uniform in [0, 1); see
    :class:`RowCodes`. The mean of decoded values is m, the error less than s = (max - min) / n.

    u is a pure function of (seed, epoch, step, layer, direction, rank, row, column): runs repeat bit for bit, whatever
    else is sent and however many threads encode; a row that goes to several peers is rounded alike for all.

    ``bits = "adaptive"``: rows have 8 bits until the end of the first ``assign_period`` epochs, and at the end of each
    such period the ranges of its last epoch decide those of the next. The rows of a message are sorted by beta = width
    / 6 x range**2 x the sum of squared weights with which their receiver adds them (of gradients: 1), and each
    ``group_size`` of them get 2, 4 or 8 bits, so that ``lam`` x (variance of what receivers compute, as a share of that
    with 2 bits) + (1 - ``lam``) x (time of the slowest message, as a share of that with 8 bits) is small. The time of a
    message counts in bytes that travel within a host: ``message_bytes`` plus its own, which between hosts count
    ``between_hosts`` times.

    Source: AdaQP (Wan, Zhao and Wu, MLSys 2023). Deviations (docs/systems/adaqp.md): u does not depend on the receiver,
    so that copies of a row stay equal; ranges are those of one epoch; one solver instead of an integer program; links
    are stated, not measured; the simulated cost is that of linear codes plus passes for drawing u (assumed)."""

    effects: ClassVar[Mapping[str, Effect]] = {"expected_bits": "nothing"}

    amounts: ClassVar[tuple[str, ...]] = ("bits",)

    kind: Literal["stochastic"] = "stochastic"
    bits: Literal[2, 4, 8, "adaptive"] = Field(
        default=8, description="bits of one element's code: 2, 4 or 8, or 'adaptive': assigned to groups of rows"
    )
    assign_period: int = Field(
        default=50, ge=1, le=10**7, description="epochs from one assignment of bits to the next (adaptive)"
    )
    group_size: int = Field(
        default=100, ge=1, le=10**9, description="rows that get the same bits, of one message (adaptive)"
    )
    lam: float = Field(default=0.5, ge=0, le=1, description="weight of variance against time (adaptive)")
    between_hosts: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="how many times as long a byte takes between two hosts as within one (adaptive)",
    )
    message_bytes: float = Field(
        default=0.0,
        ge=0,
        le=1e12,
        description="bytes within a host that take as long as the start of a message (adaptive)",
    )
    expected_bits: float | None = Field(
        default=None,
        ge=2,
        le=8,
        description="mean bits after the first assignment, for predictions without a record of a run (adaptive)",
    )

    def idle(self, choices: Choices) -> Iterator[Idle]:
        if self.adaptive:
            return
        for option in chosen(self, ADAPTIVE_ONLY):
            why = "rows of one number of bits need no assignment; set codec.bits = 'adaptive', or remove it"
            yield Idle(option, f"codec.bits = {self.bits}", why)

    @property
    def rows_of_group(self) -> int:
        return self.group_size

    @property
    def period(self) -> int:
        return self.assign_period

    @property
    def stated_bits(self) -> float | None:
        return self.expected_bits

    def links(self, hosts: Sequence[int]) -> Links:
        host = np.asarray(hosts)
        within = (host[:, None] == host[None, :]).ravel()
        # seconds of a machine on which a byte within a host takes one: only ratios of times matter to the choice
        return Links(np.where(within, 1.0, self.between_hosts), np.full(len(within), self.message_bytes))

    def choose(self, groups: Groups) -> NDArray[np.uint8]:
        return choose_bits(groups, self.lam)

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
