"""Partitions that look at no edges: seeded random, and contiguous block rows after a permutation."""

import numpy as np
from numpy.typing import NDArray


def block_bounds(vertices: int, ranks: int) -> NDArray[np.int64]:
    """First row of each block and the end, int64 [P + 1]; sizes differ by one at most, the first ones are larger.

    Source: CAGNET's 1D layout; where V is no multiple of P no row is dropped or padded.
    """
    size, larger = divmod(vertices, ranks)
    part = np.arange(ranks + 1, dtype=np.int64)
    return part * size + np.minimum(part, larger)


def block_owner(permutation: NDArray[np.int64], ranks: int) -> NDArray[np.int32]:
    """Owner of each vertex, int32 [V], when the vertices in the order of ``permutation`` [V] are cut into P blocks."""
    owner = np.empty(len(permutation), dtype=np.int32)
    sizes = np.diff(block_bounds(len(permutation), ranks))
    owner[permutation] = np.repeat(np.arange(ranks, dtype=np.int32), sizes)
    return owner


def random_owner(vertices: int, ranks: int, seed: int) -> NDArray[np.int32]:
    """A seeded shuffle cut into P blocks: a random partition whose row counts differ by one at most; int32 [V]."""
    return block_owner(np.random.default_rng(seed).permutation(vertices), ranks)


def degree_balanced_owner(degrees: NDArray[np.int64], ranks: int) -> NDArray[np.int32]:
    """Vertices by descending degree (ties: lowest id) dealt over the ranks to and fro; int32 [V].

    The last, incomplete deal always starts at rank 0, so that the row counts are those of :func:`block_bounds`.
    """
    vertices = len(degrees)
    place = np.arange(vertices, dtype=np.int64)
    deal, seat = np.divmod(place, ranks)
    backward = (deal % 2 == 1) & (deal < vertices // ranks)
    owner = np.empty(vertices, dtype=np.int32)
    owner[np.argsort(-degrees, kind="stable")] = np.where(backward, ranks - 1 - seat, seat)
    return owner
