"""Bit words for Numba kernels: counting bits, and sets of ranks (rank r is bit r % 64 of word r // 64)."""

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
    """Count the set bits of a uint64, as int64. The compiler recognises this form as a popcount instruction."""
    word = word - ((word >> _U1) & _FIVES)
    word = (word & _THREES) + ((word >> _U2) & _THREES)
    word = (word + (word >> _U4)) & _NIBBLES
    return np.int64((word * _BYTES) >> _U56)


# position of the lowest bit, by the upper six bits of a product with a de Bruijn sequence of order 6
_SEQUENCE = np.uint64(0x03F79D71B4CB0A89)
_POSITION = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _POSITION[((0x03F79D71B4CB0A89 << _bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = _bit
_ZERO, _ONE, _TOP = np.uint64(0), np.uint64(1), np.uint64(58)


def words_for(members: int) -> int:
    """Words that a set over ``members`` ranks or hosts needs."""
    return (members + 63) // 64


@njit(cache=True, inline="always")
def lowest_bit(word):  # type: ignore[no-untyped-def]
    """The lowest set bit of a word that is not 0, as a word."""
    return word & (~word + _ONE)


@njit(cache=True, inline="always")
def bit_position(bit):  # type: ignore[no-untyped-def]
    """Position 0..63 of the only set bit of a word."""
    return _POSITION[(bit * _SEQUENCE) >> _TOP]


@njit(cache=True, inline="always")
def bit_of(member):  # type: ignore[no-untyped-def]
    """The word in which only the bit of ``member`` is set."""
    return _ONE << np.uint64(member & 63)


@njit(cache=True)
def set_size(words):  # type: ignore[no-untyped-def]
    """Number of members of a set."""
    size = 0
    for word in words:
        size += ones(word)
    return size


@njit(cache=True)
def members_of(words, members):  # type: ignore[no-untyped-def]
    """Write the members of a set to the start of ``members``, ascending, and return their number."""
    size = 0
    for place in range(len(words)):
        left = words[place]
        while left != _ZERO:
            bit = lowest_bit(left)
            left ^= bit
            members[size] = place * 64 + bit_position(bit)
            size += 1
    return size
