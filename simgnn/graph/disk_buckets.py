"""A CSR larger than memory: edges go to buckets of rows on disk, each bucket is sorted alone, rows are appended."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.build import index_dtype
from simgnn.graph.thread_pool import in_order

BUCKET_EDGES = 8_000_000  # 64 MB of keys; a few buckets are in memory at once
MOST_BUCKETS = 512  # open files

_HEADER_BYTES = 128


@njit(cache=True, nogil=True)
def _split(edges: Any, row_bits: Any, id_bits: Any, both: Any, starts: Any, keys: Any) -> Any:
    """Group edges by bucket as keys (row in bucket, source); ``starts`` must be zero. Returns self loops."""
    loops = 0
    low = (np.int64(1) << row_bits) - np.int64(1)
    n = edges.shape[1]
    for k in range(n):
        if edges[0, k] == edges[1, k]:
            loops += 1
            continue
        starts[(edges[1, k] >> row_bits) + 1] += 1
        if both:
            starts[(edges[0, k] >> row_bits) + 1] += 1
    for b in range(len(starts) - 1):
        starts[b + 1] += starts[b]
    place = starts[:-1].copy()
    for k in range(n):
        u, v = edges[0, k], edges[1, k]
        if u == v:
            continue
        b = v >> row_bits
        keys[place[b]] = ((v & low) << id_bits) | u
        place[b] += 1
        if both:
            b = u >> row_bits
            keys[place[b]] = ((u & low) << id_bits) | v
            place[b] += 1
    return loops


@dataclass(frozen=True)
class Keys:
    """Edges as sortable numbers: row in its bucket above source. A bucket is a range of ``2**row_bits`` rows."""

    vertices: int
    symmetrise: bool
    buckets: int
    row_bits: int
    id_bits: int

    @classmethod
    def of(cls, vertices: int, symmetrise: bool, wanted: int) -> "Keys":
        """Keys of about ``wanted`` buckets: at most twice as many."""
        row_bits = max(0, math.ceil(math.log2(max(1.0, vertices / wanted))))
        buckets, id_bits = ((vertices - 1) >> row_bits) + 1, max(1, (vertices - 1).bit_length())
        return cls(vertices, symmetrise, buckets, row_bits, id_bits)

    def split(self, edges: NDArray[np.int64]) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Group edges int64 [2, n] (source, target) by bucket, each also reversed where the graph is symmetrised:
        (self loops left out, ``starts``, ``keys``); keys of bucket b are ``keys[starts[b]:starts[b + 1]]``."""
        starts = np.zeros(self.buckets + 1, np.int64)
        keys = np.empty(edges.shape[1] * (2 if self.symmetrise else 1), np.int64)
        loops = int(_split(edges, self.row_bits, self.id_bits, self.symmetrise, starts, keys))
        return loops, starts, keys[: starts[-1]]

    def rows(self, bucket: int, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Sort the keys of a bucket in place and drop repeats: (indptr within the bucket, sources)."""
        keys.sort()
        if len(keys):
            fresh = np.empty(len(keys), np.bool_)
            fresh[0] = True
            np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
            keys = keys[fresh]
        rows = min(1 << self.row_bits, self.vertices - (bucket << self.row_bits))
        indptr = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) << self.id_bits).astype(np.int64)
        keys &= (1 << self.id_bits) - 1
        return indptr, keys.astype(index_dtype(self.vertices))


def sort_to_disk(
    folder: Path,
    vertices: int,
    edges: int,
    symmetrise: bool,
    pairs: Callable[[int], NDArray[np.int64]],
    chunks: int,
    threads: int | None = None,
) -> tuple[int, int]:
    """Write ``indptr.npy`` and ``indices.npy`` into ``folder``; returns the edges stored and the self loops dropped.

    ``pairs(k)``: chunk k of ``chunks`` chunks, int64 [2, n] (source, target), in any order; called on several threads.
    ``edges``: their number, which only sets the number of buckets. The buckets lie in ``folder`` meanwhile, 8 bytes a
    stored edge. Permute the ids of a graph whose rows differ wildly along the ids.
    """
    stored = (2 if symmetrise else 1) * edges
    layout = Keys.of(vertices, symmetrise, min(MOST_BUCKETS, max(1, math.ceil(stored / BUCKET_EDGES))))
    paths = [folder / f"bucket-{b}.keys" for b in range(layout.buckets)]
    loops = total = 0
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for dropped, starts, keys in in_order(lambda chunk: layout.split(pairs(chunk)), chunks, threads):
            loops += dropped
            for b in np.flatnonzero(np.diff(starts)).tolist():
                files[b].write(keys[starts[b] : starts[b + 1]].data)
    dtype = np.dtype(index_dtype(vertices))
    indptr = np.zeros(vertices + 1, np.int64)

    def rows(bucket: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        return layout.rows(bucket, np.fromfile(paths[bucket], np.int64))

    with (folder / "indices.npy").open("wb") as file:
        file.write(npy_header(dtype, (0,)))
        for bucket, (bounds, indices) in enumerate(in_order(rows, layout.buckets, threads)):
            first = bucket << layout.row_bits
            indptr[first : first + len(bounds)] = bounds + total
            file.write(indices.data)
            total += len(indices)
            paths[bucket].unlink()
        file.seek(0)
        file.write(npy_header(dtype, (total,)))
    np.save(folder / "indptr.npy", indptr)
    return total, loops


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Header of a ``.npy`` file, 128 bytes whatever the shape, so that the shape can be filled in at the end."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    body = text.ljust(_HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("latin1")
