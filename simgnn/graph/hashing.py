"""Counter-based random numbers: number k of a stream depends on (seed, stream, k) alone, so threads cannot matter."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
_ONE, _S11, _S27, _S30, _S31 = (np.uint64(number) for number in (1, 11, 27, 30, 31))
_UNIT = 1.0 / 9007199254740992.0  # 2**-53


@njit(cache=True, nogil=True, inline="always")
def splitmix(key: Any, counter: Any) -> Any:
    """The ``counter``-th 64-bit number of stream ``key``, both uint64: SplitMix64 (Steele et al., OOPSLA 2014)."""
    z = key + counter * GOLDEN
    z = (z ^ (z >> _S30)) * MIX_A
    z = (z ^ (z >> _S27)) * MIX_B
    return z ^ (z >> _S31)


@njit(cache=True, nogil=True, inline="always")
def unit(bits: Any) -> Any:
    """A float64 in [0, 1) from the upper 53 of 64 random bits."""
    return float(bits >> _S11) * _UNIT


@njit(cache=True, nogil=True)
def permute_index(index: Any, key: Any, bits: Any, size: Any) -> Any:
    """Position of ``index`` in a keyed permutation of 0..size-1 (all uint64; ``2**bits >= size``). Three rounds of odd
    multiplication and xor-shift are a bijection of ``bits``-bit numbers; walking its cycle until the number is below
    ``size`` makes it one of 0..size-1. No table, so it needs no memory."""
    mask = (_ONE << bits) - _ONE
    half = (bits + _ONE) >> _ONE
    x = index
    while True:
        for turn in range(3):
            draw = splitmix(key, np.uint64(turn))
            x = ((x ^ draw) * ((draw >> _S11) | _ONE)) & mask
            x = x ^ (x >> half)
        if x < size:
            return x


@njit(cache=True, nogil=True)
def _permutation(first: Any, out: Any, key: Any, bits: Any, size: Any) -> None:
    for k in range(len(out)):
        out[k] = permute_index(np.uint64(first + k), key, bits, size)


def stream_key(seed: int, name: str) -> np.uint64:
    """Derive the key of the stream ``name`` from ``seed``: streams of different names or seeds are unrelated."""
    value = (seed ^ 0x5851F42D4C957F2D) & 0xFFFFFFFFFFFFFFFF
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3 + 0x632BE59BD9B4E019) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 29
    return np.uint64(value)


def index_bits(size: int) -> np.uint64:
    """Return the fewest bits, at least 2, that can number ``size`` things."""
    return np.uint64(max(2, (size - 1).bit_length()))


def permutation_slice(first: int, count: int, size: int, key: np.uint64) -> NDArray[np.int64]:
    """Positions of ids ``first .. first+count-1`` in the keyed permutation of 0..size-1, int64 [count]."""
    out = np.empty(count, np.int64)
    _permutation(first, out, key, index_bits(size), np.uint64(size))
    return out


@njit(cache=True, nogil=True)
def permuted(indices: Any, key: Any, bits: Any, size: Any) -> Any:
    """Positions of ``indices`` int64 [n] in the keyed permutation of 0..size-1, int64 [n]; ``bits``: see
    :func:`index_bits`."""
    out = np.empty(len(indices), np.int64)
    for k in range(len(indices)):
        out[k] = permute_index(np.uint64(indices[k]), key, bits, size)
    return out


def uniform_slice(first: int, count: int, key: np.uint64) -> NDArray[np.float64]:
    """Numbers ``first .. first+count-1`` of a stream, float64 [count] in [0, 1)."""
    return uniform_at(np.arange(first, first + count, dtype=np.uint64), key)


def uniform_at(counters: NDArray[np.uint64], key: np.uint64) -> NDArray[np.float64]:
    """The numbers ``counters`` of a stream, of any shape, float64 in [0, 1)."""
    with np.errstate(over="ignore"):  # the same arithmetic as splitmix, modulo 2**64; NumPy needs no compiling
        z = key + counters * GOLDEN
        z = (z ^ (z >> _S30)) * MIX_A
        z = (z ^ (z >> _S27)) * MIX_B
        z ^= z >> _S31
    draws: NDArray[np.float64] = (z >> _S11).astype(np.float64) * _UNIT
    return draws


def normal_rows(seed: int, chunk: int, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Unit normal numbers that depend on (seed, chunk) alone, float32 of ``shape``."""
    generator = np.random.Generator(np.random.Philox(key=[int(stream_key(seed, "normal")), chunk]))
    return generator.standard_normal(shape, dtype=np.float32)
