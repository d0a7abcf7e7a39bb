"""Codecs at work: rows to bytes and back, on the CPU by compiled kernels, elsewhere by torch's own operations."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from executor.failure import RefusedRowsError
from executor.kernels import dither, quantise
from executor.kernels.balance import default_threads
from executor.kernels.draws import signed, splitmix
from executor.kernels.launch import even_parts, launch
from executor.kernels.views import array, compiled_for
from simgnn.errors import BackendError
from simgnn.graph.hashing import stream_key
from simgnn.policies.base import Policy
from simgnn.policies.codec.bfloat16 import Bfloat16
from simgnn.policies.codec.float32 import Float32
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.row_codes import RowCodes, code_bytes
from simgnn.policies.codec.stochastic import Stochastic

if TYPE_CHECKING:
    from executor.handlers.context import PolicyContext


class Place(NamedTuple):
    """Where rows are encoded. ``rows`` int64 [n]: what tells them apart on this rank (None: their order)."""

    context: "PolicyContext"
    rows: torch.Tensor | None = None


class Codec(Protocol):
    """Rows [n, F] of float32 or float64 to packed [n, bytes] uint8 and back. ``keeps_exact_rows``: as of its policy."""

    keeps_exact_rows: bool

    def encode(self, rows: torch.Tensor, place: Place | None = None) -> torch.Tensor:
        """What travels, ``policy.row_bytes`` a row; of a codec that draws, a function of the ``place`` too. Raises
        :class:`RefusedRowsError` for rows that have no code."""
        ...

    def decode(self, packed: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Rows [n, width] of ``dtype``: a function of the bytes, so the same on both ends."""
        ...

    def warm_up(self, rows: torch.Tensor) -> None:
        """Run every kernel once on these rows."""
        ...


class Cast:
    """A narrower floating-point type."""

    keeps_exact_rows = False

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, rows: torch.Tensor, place: Place | None = None) -> torch.Tensor:
        """The nearest values of the type, as bytes."""
        if not len(rows):  # without rows torch knows no stride by which to see bytes
            return rows.new_empty((0, rows.shape[1] * self.dtype.itemsize), dtype=torch.uint8)
        return rows.to(self.dtype).contiguous().view(torch.uint8)

    def decode(self, packed: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """The same values in ``dtype``."""
        return packed.view(self.dtype).to(dtype)

    def warm_up(self, rows: torch.Tensor) -> None:
        """Nothing is compiled."""


class LinearCodec:
    """The nearest codes; see :class:`simgnn.policies.codec.linear.Linear`."""

    def __init__(self, policy: RowCodes) -> None:
        self.policy = policy
        self.bits, self.keeps_exact_rows = policy.bits, policy.keeps_exact_rows

    def encode(self, rows: torch.Tensor, place: Place | None = None) -> torch.Tensor:
        """Smallest value, step and codes of each row."""
        dtype = str(rows.dtype).removeprefix("torch.")
        size = self.policy.row_bytes(rows.shape[1], dtype)
        if not len(rows):
            return rows.new_empty((0, size), dtype=torch.uint8)
        if compiled_for(rows):
            packed = torch.empty((len(rows), size), dtype=torch.uint8)
            bad = torch.zeros(len(rows), dtype=torch.uint8)
            arguments = array(rows), self.bits, packed.numpy(), bad.numpy()
            launch(quantise.encode, quantise.encode_parallel, arguments, even_parts(len(rows), default_threads()))
        else:
            packed, bad = _encode(rows, self.bits)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise RefusedRowsError(
                f"row {row} of {len(rows)} to encode holds NaN or infinity, or its range overflows {dtype}; expected "
                "finite rows: lower train.learning_rate, or leave out the codec (codec.kind = 'none')"
            )
        return packed

    def decode(self, packed: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """min + step x code."""
        if packed.device.type != "cpu":
            return _decode(packed, self.bits, width, dtype)
        rows = torch.empty((len(packed), width), dtype=dtype)
        arguments = packed.contiguous().numpy(), self.bits, rows.numpy()
        launch(quantise.decode, quantise.decode_parallel, arguments, even_parts(len(rows), default_threads()))
        return rows

    def warm_up(self, rows: torch.Tensor) -> None:
        """See :class:`Codec`."""
        self.decode(LinearCodec.encode(self, rows), rows.shape[1], rows.dtype)


class StochasticCodec(LinearCodec):
    """Codes above or below, drawn by seed and place; see :class:`simgnn.policies.codec.stochastic.Stochastic`."""

    def encode(self, rows: torch.Tensor, place: Place | None = None) -> torch.Tensor:
        """The nearest codes of rows that were moved to their grid at random."""
        assert place is not None, "rounding is drawn for a place"
        where, names = place
        turn = f"codec/{where.epoch}/{where.step}/{where.layer}/{where.phase}/{where.rank}"
        names = torch.arange(len(rows), device=rows.device) if names is None else names
        keys = splitmix(signed(int(stream_key(where.seed, turn))), names)
        return super().encode(dither.dithered(rows, self.bits, keys))

    def warm_up(self, rows: torch.Tensor) -> None:
        """See :class:`Codec`."""
        keys = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        super().warm_up(dither.dithered(rows, self.bits, keys))


def _encode(rows: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed rows, and which of them have no code: what the compiled kernel does, on any device."""
    most = (1 << bits) - 1
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    step = (high - low) / high.new_full((), most)  # CUDA divides by a number of the host by its reciprocal
    bad = ~torch.isfinite(step[:, 0])
    codes = torch.where(step == 0, 0, torch.floor((rows - low) / step + 0.5)).nan_to_num_().clamp_(0, most).int()
    header = torch.cat((low, step), 1).view(torch.uint8)
    if bits == 16:
        return torch.cat((header, torch.stack((codes & 255, codes >> 8), 2).flatten(1).to(torch.uint8)), 1), bad
    each = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, code_bytes(rows.shape[1], bits) * each - rows.shape[1]))
    shifts = torch.arange(each, device=rows.device, dtype=torch.int32) * bits
    joined = (padded.unflatten(1, (-1, each)) << shifts).sum(2)
    return torch.cat((header, joined.to(torch.uint8)), 1), bad


def _decode(packed: torch.Tensor, bits: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    size = 2 * dtype.itemsize
    header = packed[:, :size].reshape(-1).view(dtype).view(-1, 2)
    coded = packed[:, size:].int()
    if bits == 16:
        codes = coded[:, ::2] | coded[:, 1::2] << 8
    else:
        shifts = torch.arange(8 // bits, device=packed.device, dtype=torch.int32) * bits
        codes = (coded.unsqueeze(2) >> shifts & (1 << bits) - 1).flatten(1)[:, :width]
    return header[:, :1] + header[:, 1:] * codes.to(dtype)


CODECS: Mapping[type[Policy], Callable[[Policy], Codec]] = {
    Float32: lambda policy: Cast(torch.float32),
    Bfloat16: lambda policy: Cast(torch.bfloat16),
    Linear: LinearCodec,  # type: ignore[dict-item]
    Stochastic: StochasticCodec,  # type: ignore[dict-item]
}
"""Policy class -> what carries it out."""


def codec_of(policy: Policy) -> Codec:
    """The codec of a policy that encodes; :class:`BackendError` where this executor has none."""
    make = CODECS.get(type(policy))
    if make is None:
        known = ", ".join(str(kind.model_fields["kind"].default) for kind in CODECS)
        raise BackendError(f"codec.kind = '{policy.model_dump()['kind']}' is not built here; available: {known}")
    return make(policy)
