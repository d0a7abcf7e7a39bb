"""Random numbers that rounding draws, on any device: pure functions of a key and a counter.

The numbers of :func:`simgnn.graph.hashing.splitmix`, in torch's signed integers, whose products wrap.
"""

import torch

from simgnn.graph import hashing


def signed(number: int) -> int:
    """A number of 64 bits as torch's int64 has it."""
    return number - (1 << 64) if number >> 63 else number


GOLDEN, MIX_A, MIX_B = (signed(int(number)) for number in (hashing.GOLDEN, hashing.MIX_A, hashing.MIX_B))
UNIT_BITS = 24
"""Bits of a number in [0, 1): few enough that adding it to a code is exact in float64."""


def splitmix(key: torch.Tensor | int, counter: torch.Tensor) -> torch.Tensor:
    """Number ``counter`` of the stream ``key``, int64 of their common shape."""
    z = counter * GOLDEN + key
    z = (z ^ _shifted(z, 30)) * MIX_A
    z = (z ^ _shifted(z, 27)) * MIX_B
    return z ^ _shifted(z, 31)


def units(keys: torch.Tensor, width: int) -> torch.Tensor:
    """The first ``width`` numbers in [0, 1) of each stream, float64 [n, width]."""
    drawn = splitmix(keys[:, None], torch.arange(width, device=keys.device))
    return _shifted(drawn, 64 - UNIT_BITS).double() * 2.0**-UNIT_BITS


def _shifted(z: torch.Tensor, places: int) -> torch.Tensor:
    """Without the copies of the sign that torch shifts in."""
    return (z >> places) & ((1 << (64 - places)) - 1)
