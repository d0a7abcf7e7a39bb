"""Kernels of the codecs, for tensors of the CPU; elsewhere the codecs' own lines run."""

import numpy as np
import torch

from executor.kernels import dither, quantise
from executor.kernels.balance import default_threads
from executor.kernels.launch import even_parts, launch
from executor.kernels.views import array, compiled_for
from executor.policies.kernel import Kernel, Kernels
from simgnn.emit.arrays import dtype_name
from simgnn.emit.row_codes import RowCodes, refuse
from simgnn.policies.codec.bfloat16 import Bfloat16
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policy import PolicyContext


def pack(policy: RowCodes, rows: torch.Tensor) -> torch.Tensor:
    """See :meth:`RowCodes.pack`: one pass for a row's range, one for its codes."""
    if not compiled_for(rows) or not len(rows):
        return RowCodes.pack(policy, rows)  # type: ignore[no-any-return]
    packed = torch.empty((len(rows), policy.row_bytes(rows.shape[1], dtype_name(rows))), dtype=torch.uint8)
    bad = torch.zeros(len(rows), dtype=torch.uint8)
    arguments = array(rows), policy.bits, packed.numpy(), bad.numpy()
    launch(quantise.encode, quantise.encode_parallel, arguments, even_parts(len(rows), default_threads()))
    refuse(rows, bad)
    return packed


def decode(policy: RowCodes, context: PolicyContext, packed: torch.Tensor, width: int, dtype: str) -> torch.Tensor:
    """See :meth:`RowCodes.decode`."""
    if packed.device.type != "cpu":
        return RowCodes.decode(policy, context, packed, width, dtype)  # type: ignore[no-any-return]
    rows = torch.empty((len(packed), width), dtype=getattr(torch, dtype))
    arguments = packed.contiguous().numpy(), policy.bits, rows.numpy()
    launch(quantise.decode, quantise.decode_parallel, arguments, even_parts(len(rows), default_threads()))
    return rows


def dithered(policy: Stochastic, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """See :meth:`Stochastic.dithered`."""
    if not compiled_for(rows) or not len(rows):
        return Stochastic.dithered(policy, rows, keys)  # type: ignore[no-any-return]
    moved = torch.empty_like(rows)
    arguments = array(rows), policy.largest_code, keys.contiguous().numpy().view(np.uint64), moved.numpy()
    launch(dither.dither, dither.dither_parallel, arguments, even_parts(len(rows), default_threads()))
    return moved


def to_bfloat16(policy: Bfloat16, context: PolicyContext, rows: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
    """See :meth:`Bfloat16.encode`: torch has the type, on every device."""
    if not len(rows):  # torch cannot see bytes in a tensor without rows
        return rows.new_empty((0, 2 * rows.shape[1]), dtype=torch.uint8)
    return rows.to(torch.bfloat16).contiguous().view(torch.uint8)


def from_bfloat16(
    policy: Bfloat16, context: PolicyContext, packed: torch.Tensor, width: int, dtype: str
) -> torch.Tensor:
    """See :meth:`Bfloat16.decode`."""
    return packed.view(torch.bfloat16).to(getattr(torch, dtype))


def _warm_up_decode(policy: RowCodes, rows: torch.Tensor) -> None:
    here = PolicyContext(0, 0, 0, 0, "forward", 0, 1)
    decode(policy, here, pack(policy, rows), rows.shape[1], dtype_name(rows))


def _warm_up_dithered(policy: Stochastic, rows: torch.Tensor) -> None:
    dithered(policy, rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device))


KERNELS: Kernels = {
    RowCodes.pack: Kernel(pack, pack),
    RowCodes.decode: Kernel(decode, _warm_up_decode),
    Stochastic.dithered: Kernel(dithered, _warm_up_dithered),
    Bfloat16.encode: Kernel(to_bfloat16),
    Bfloat16.decode: Kernel(from_bfloat16),
}
