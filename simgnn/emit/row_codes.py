"""Codecs of B bits an element: each row's smallest value and step precede its packed codes."""

from collections.abc import Iterator
from typing import ClassVar, Self

import numpy as np
from array_api_compat import array_namespace, device
from pydantic import Field

from simgnn.emit.arrays import dtype_name, from_bytes, to_bytes
from simgnn.policy import (
    Array,
    Choices,
    Codec,
    FreshnessTraits,
    Moves,
    PolicyContext,
    PolicyError,
    Refusal,
    RefusedRowsError,
)
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.sizes import Size


class RowCodes(Codec):
    """B-bit codes of each row between its smallest and largest value. With n = 2**B - 1 and s = (max - min) / n, code q
    stands for min + s q, decoded by one expression on both ends, so that they hold the same bits.

    On the wire: min and s in the type of the rows, then the codes, packed little-endian, each row padded to a whole
    byte. Exact where max = min. Rows that hold NaN or infinity, or whose range overflows, are rejected.

    ``feedback``: a sender whose receivers keep copies stores what they decode, so that an error is part of the next
    difference; else the exact row, and errors accumulate. Only caches send differences."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")

    bits: int | str
    feedback: bool = Field(
        default=True, description="senders cache the row as receivers decode it; false: the exact row"
    )

    @property
    def keeps_exact_rows(self) -> bool:
        return not self.feedback

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.keeps_exact_rows and not choices.freshness.sends_differences:
            caching = choices.fitting(FreshnessTraits, lambda freshness: freshness.sends_differences)
            yield Refusal(
                "codec", "feedback",
                f"got false with freshness.kind = '{choices.freshness.label}', expected true: only caches of rows "
                f"(freshness.kind = {caching}) send differences, whose errors can be fed back",
            )  # fmt: skip

    @property
    def code_bits(self) -> int:
        """The bits of one element's code. Raises :class:`PolicyError` for a codec whose rows differ in them."""
        if not isinstance(self.bits, int):
            raise PolicyError(
                f"codec.bits = '{self.bits}': rows of a transfer differ in length, which the ops that send them do not "
                "support; set codec.bits to a number, or freshness.kind = 'always'"
            )
        return self.bits

    def at(self, bits: int) -> Self:
        """This codec with one number of bits for all rows."""
        return self.model_copy(update={"bits": bits})

    @property
    def largest_code(self) -> int:
        return (1 << self.code_bits) - 1

    def row_bytes(self, width: int, dtype: str) -> int:
        return 2 * ITEM_BYTES[dtype] + code_bytes(width, self.code_bits)

    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        return self.pack(rows)

    def pack(self, rows: Array) -> Array:
        """Return the smallest value, step and nearest codes of each row. Raises :class:`RefusedRowsError`."""
        xp, bits = array_namespace(rows), self.code_bits
        if not rows.shape[0]:
            return xp.empty((0, self.row_bytes(rows.shape[1], dtype_name(rows))), dtype=xp.uint8, device=device(rows))
        low, step, bad = grid(rows, self.largest_code)
        refuse(rows, bad)
        codes = xp.floor((rows - low) / xp.where(step == 0, xp.ones_like(step), step) + 0.5)
        codes = xp.astype(xp.clip(codes, 0, self.largest_code), xp.int32)
        header = to_bytes(xp.concat((low, step), axis=1))
        count, each = rows.shape[0], max(8 // bits, 1)
        if bits == 16:
            pairs = xp.stack((codes & 255, codes >> 8), axis=2)
            return xp.concat((header, xp.astype(xp.reshape(pairs, (count, -1)), xp.uint8)), axis=1)
        missing = code_bytes(rows.shape[1], bits) * each - rows.shape[1]
        if missing:
            codes = xp.concat((codes, xp.zeros((count, missing), dtype=xp.int32, device=device(rows))), axis=1)
        joined = xp.sum(xp.reshape(codes, (count, -1, each)) << self._shifts(codes), axis=2)
        return xp.concat((header, xp.astype(joined, xp.uint8)), axis=1)

    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        xp, size = array_namespace(packed), 2 * ITEM_BYTES[dtype]
        header = from_bytes(packed[:, :size], dtype)
        coded = xp.astype(packed[:, size:], xp.int32)
        if self.code_bits == 16:
            codes = coded[:, ::2] | (coded[:, 1::2] << 8)
        else:
            codes = (coded[:, :, None] >> self._shifts(coded)) & self.largest_code
            codes = xp.reshape(codes, (packed.shape[0], coded.shape[1] * (8 // self.code_bits)))[:, :width]
        return header[:, :1] + header[:, 1:] * xp.astype(codes, header.dtype)

    def encode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        return (self._work("encode", rows, width, dtype),)

    def decode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        return (self._work("decode", rows, width, dtype),)

    def _work(self, primitive: str, rows: Size, width: int, dtype: str) -> Work:
        sizes: dict[str, Size] = {"rows": rows, "width": width, "row_bytes": self.row_bytes(width, dtype)}
        return Work(primitive, {**sizes, "item_bytes": ITEM_BYTES[dtype]})

    def _shifts(self, codes: Array) -> Array:
        xp = array_namespace(codes)
        return xp.arange(8 // self.code_bits, dtype=xp.int32, device=device(codes)) * self.code_bits


def grid(rows: Array, most: int) -> tuple[Array, Array, Array]:
    """Return each row's smallest value and step [n, 1], for ``most`` steps, and which are not finite, bool [n]."""
    xp = array_namespace(rows)
    low, high = xp.min(rows, axis=1, keepdims=True), xp.max(rows, axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        # divided on the device: CUDA multiplies by the reciprocal of a number of the host
        step = (high - low) / xp.asarray(most, dtype=rows.dtype, device=device(rows))
    return low, step, ~xp.isfinite(step[:, 0])


def refuse(rows: Array, bad: Array) -> None:
    """Raise :class:`RefusedRowsError` if any of ``bad`` [n] is set."""
    xp = array_namespace(bad)
    if bool(xp.any(bad)):
        row = int(xp.nonzero(bad)[0][0])
        raise RefusedRowsError(
            f"row {row} of {rows.shape[0]} to encode holds NaN or infinity, or its range overflows {dtype_name(rows)}; "
            "expected finite rows: lower train.learning_rate, or leave out the codec (codec.kind = 'none')",
            row,
        )


def code_bytes(width: int, bits: int) -> int:
    """Return the bytes of a row's packed codes."""
    return -(-width * bits // 8)
