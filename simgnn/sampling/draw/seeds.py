"""Seeds of batches and of dropout, and orders of epochs. Nothing else in training is random."""

import hashlib
import struct
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.hashing import splitmix

_ZERO = np.uint64(0)


def hash64(tag: str, *numbers: int) -> int:
    """A 64-bit seed from whole numbers 0..2**64-1: BLAKE2b, personalised by ``tag``, of their little-endian bytes."""
    packed = struct.pack(f"<{len(numbers)}Q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8, person=tag.encode()).digest(), "little")


def batch_seed(seed: int, worker: int, epoch: int, batch: int) -> int:
    """Seed of all neighbour choices of one batch."""
    return hash64("sample", seed, worker, epoch, batch)


def dropout_seed(seed: int, epoch: int, batch: tuple[int, int] | None = None) -> int:
    """Seed of dropout in an epoch: on the full graph, for all ranks alike, or for a ``batch`` (worker, number). Source:
    docs/systems/mini-batches.md."""
    return hash64("drop", seed, epoch) if batch is None else hash64("drop", seed, batch[0], epoch, batch[1])


def layer_key(seed: int, layer: int) -> int:
    """Key of the random numbers of the dropout behind a layer (1, 2, ...), from :func:`dropout_seed`."""
    return hash64("layer", seed, layer)


@njit(cache=True, nogil=True)
def _sort_keys(seed: Any, vertices: Any, keys: Any) -> None:
    for k in range(len(vertices)):
        keys[k] = splitmix(seed ^ splitmix(np.uint64(vertices[k]), _ZERO), _ZERO)


def shuffled(vertices: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Ascending ``vertices`` int64 [n] in the order of their hashes under ``seed``; equal hashes stay ascending."""
    keys = np.empty(len(vertices), np.uint64)
    _sort_keys(np.uint64(seed), vertices, keys)
    return vertices[np.argsort(keys, kind="stable")]


def epoch_order(vertices: NDArray[np.int64], seed: int, worker: int, epoch: int) -> NDArray[np.int64]:
    """The order in which a worker takes its training vertices (ascending, int64 [n]) in one epoch."""
    return shuffled(vertices, hash64("perm", seed, worker, epoch))
