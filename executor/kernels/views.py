"""Tensors of the CPU as NumPy arrays, for kernels that Numba compiled."""

from typing import Any

import torch
from numpy.typing import NDArray

COMPILED_DTYPES = (torch.float32, torch.float64)


def compiled_for(rows: torch.Tensor) -> bool:
    """Whether Numba kernels take these rows: float32 or float64, dense, contiguous, on the CPU."""
    return (
        rows.device.type == "cpu"
        and rows.dtype in COMPILED_DTYPES
        and rows.layout == torch.strided
        and rows.is_contiguous()
    )


def array(rows: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory as an array; nothing is copied and no gradient is recorded."""
    return rows.detach().numpy()
