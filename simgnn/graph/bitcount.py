"""Number of set bits of a word, for Numba kernels."""

from typing import Any

import numpy as np
from numba import njit

_FIVES = np.uint64(0x5555555555555555)
_THREES = np.uint64(0x3333333333333333)
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_BYTES = np.uint64(0x0101010101010101)
_U1, _U2, _U4, _U56 = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)


@njit(cache=True, nogil=True, inline="always")
def ones(word: Any) -> Any:
    """Set bits of a uint64, int64; compilers turn this form into one instruction where the processor has it."""
    word = word - ((word >> _U1) & _FIVES)
    word = (word & _THREES) + ((word >> _U2) & _THREES)
    word = (word + (word >> _U4)) & _NIBBLES
    return np.int64((word * _BYTES) >> _U56)
