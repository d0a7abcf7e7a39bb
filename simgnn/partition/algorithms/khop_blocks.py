"""Blocks of vertices around labelled ones, and their division into parts (ByteGNN, algorithm B); edges are streamed."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.build import index_dtype
from simgnn.graph.csr import CSR
from simgnn.graph.store import release_pages
from simgnn.memory import check_memory

IntArray = NDArray[np.int64]
CHUNK_EDGES = 1 << 24
"""Edges that are read at a time, and kept in memory as keys of 8 bytes."""
MOST_BUCKETS = 512  # open files
VERTEX_BYTES, KEY_BYTES = 48, 32
ROUNDING = 1e-9
"""What the mean of labelled vertices, times its slack, may exceed a whole number by and still count as it."""


def khop_blocks(csr: CSR, labelled: NDArray[np.bool_], hops: int) -> NDArray[Any]:
    """Compute the block of each vertex, int [V]: the number of the labelled vertex, its *centre*, that reaches it in
    fewest hops along in-edges, the direction of sampling; of several the lowest; -1 if none does in ``hops``.

    ``labelled`` bool [V]: the centres. Source: ByteGNN, algorithm B, step 1. The rule for ties is ours."""
    indptr, indices = np.asarray(csr.indptr), np.asarray(csr.indices)
    block = np.where(labelled, np.arange(csr.rows), -1).astype(index_dtype(csr.rows))
    distance = np.where(labelled, 0, -1).astype(np.int16)
    for hop in range(1, hops + 1):
        reached = 0
        for first, last in row_chunks(csr):
            reached += _grow(indptr, indices, first, last, hop, block, distance)
            release_pages(csr.indices)
        if not reached:
            break
    return block


def row_chunks(csr: CSR) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, (first, end), of about ``CHUNK_EDGES`` in-edges each."""
    chunks = -(-csr.edges // CHUNK_EDGES) or 1
    bounds = np.searchsorted(csr.indptr, np.linspace(0, csr.edges, chunks + 1)[1:-1])
    ends = [0, *bounds.tolist(), csr.rows]
    yield from pairwise(ends)


@njit(cache=True, nogil=True)
def _grow(indptr, indices, first, last, hop, block, distance):  # type: ignore[no-untyped-def]
    """Put in-neighbours of the rows ``first..last-1`` that are at the hop before into blocks; count the new ones."""
    reached = 0
    for vertex in range(first, last):
        if distance[vertex] != hop - 1:
            continue
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            source = indices[edge]
            if distance[source] < 0:
                distance[source] = hop
                block[source] = block[vertex]
                reached += 1
            elif distance[source] == hop and block[vertex] < block[source]:
                block[source] = block[vertex]
    return reached


@dataclass(frozen=True)
class Limits:
    """What bounds and balances parts. ``weights`` float64 [T]: of the kinds of labelled vertices in the balance, not
    negative; None: as many as there are vertices of each. ``label_slack``, ``vertex_slack``: by how much a part may
    exceed the mean in labelled vertices of each kind, and in vertices; infinite: not bounded."""

    weights: NDArray[np.float64] | None
    label_slack: float
    vertex_slack: float


@dataclass(frozen=True)
class OrderedBlocks:
    """Blocks in the order in which they are assigned. ``place`` int [V]: place of a vertex's block in this order; -1:
    the vertex is in none. ``sizes`` int64 [B]: vertices; ``kinds`` int8 [B]: kind of the one labelled vertex."""

    place: NDArray[Any]
    sizes: IntArray
    kinds: NDArray[np.int8]

    @classmethod
    def of(cls, block: NDArray[Any], centres: IntArray, kinds: NDArray[np.int8]) -> "OrderedBlocks":
        """``block`` int [V] of :func:`khop_blocks`; ``centres`` int64 [B] in order; ``kinds`` int8 [V]."""
        number = np.full(len(block), -1, block.dtype)
        number[centres] = np.arange(len(centres))
        place = np.where(block >= 0, number[block], -1).astype(block.dtype)
        return cls(place, block_sizes(place, len(centres)), kinds[centres])


def block_sizes(place: NDArray[Any], blocks: int) -> IntArray:
    """Count the vertices of each block, int64 [B]."""
    return np.bincount(place[place >= 0], minlength=blocks).astype(np.int64)


class Division(NamedTuple):
    """``part`` int32 [V]: the part of each vertex; ``forced``: blocks that no part could take within its limits."""

    part: NDArray[np.int32]
    forced: int


def divide_blocks(
    csr: CSR, blocks: OrderedBlocks, groups: NDArray[np.int32], parts: IntArray, limits: Limits, spill: Path | None
) -> Division:
    """Assign whole blocks to parts, one after the other; then each vertex of no block, ascending, to the smallest part.

    Among the parts that may take a block it goes to the one with the largest CE x BS, then the largest BS, then the
    smallest, then the first. CE: edges from the part to the block's rows over the part's vertices (0: it has none).
    BS: 1 less the part's labelled vertices over the mean of all parts, weighted by kind. If none may take the block,
    the smallest part does.

    ``groups`` int32 [V]: vertices of group g go to one of ``parts[g]`` parts of their own, int64 [G], numbered group
    after group; a block is in one group. ``spill``: folder for temporary files, of at most 8 bytes an edge.
    Source: ByteGNN, algorithm B, step 2. Deviations: docs/khop_blocks.md."""
    check_memory(
        VERTEX_BYTES * csr.rows + KEY_BYTES * min(csr.edges, CHUNK_EDGES),
        f"partition.kind: dividing {csr.rows:,} vertices",
        "use a smaller graph, or a machine with more memory",
        ConfigError,
    )
    count = len(blocks.sizes)
    group = np.zeros(count, np.int32)
    reached = np.flatnonzero(blocks.place >= 0)
    group[blocks.place[reached]] = groups[reached]
    del reached
    first = np.concatenate(([0], np.cumsum(parts)))
    rules = _rules(blocks, group, parts, limits)
    chosen = np.full(count, -1, np.int32)
    size = np.zeros(int(first[-1]), np.int64)
    held = np.zeros((int(first[-1]), rules.mean.shape[1]), np.int64)
    forced = 0
    for low, high, starts, sources in _edges_by_block(csr, blocks, group, spill):
        forced += int(
            _assign(low, high, starts, sources, blocks.sizes, blocks.kinds, group, first, *rules, chosen, size, held)
        )
    part = np.full(csr.rows, -1, np.int32)
    reached = np.flatnonzero(blocks.place >= 0)
    part[reached] = chosen[blocks.place[reached]]
    _fill(part, groups, first, size)
    return Division(part, forced)


class _Rules(NamedTuple):
    """By group: ``mean`` float64 [G, T] labelled vertices of a part by kind (infinite: none); ``most`` int64 [G, T] and
    ``room`` float64 [G]: what a part may hold; ``weights`` float64 [G, T], which add up to 1, or are all 0."""

    mean: NDArray[np.float64]
    most: IntArray
    room: NDArray[np.float64]
    weights: NDArray[np.float64]


def _rules(blocks: OrderedBlocks, group: NDArray[np.int32], parts: IntArray, limits: Limits) -> _Rules:
    kinds = 1 + int(blocks.kinds.max(initial=0)) if limits.weights is None else len(limits.weights)
    total = np.zeros((len(parts), kinds), np.int64)
    np.add.at(total, (group, blocks.kinds), 1)
    reached = np.bincount(group, blocks.sizes, minlength=len(parts))
    mean = total / parts[:, None]
    most = np.full(total.shape, np.iinfo(np.int64).max // 2)
    if np.isfinite(limits.label_slack):
        most = np.maximum(np.ceil((1.0 + limits.label_slack) * mean - ROUNDING), 1.0).astype(np.int64)
    weights = np.where(total > 0, total if limits.weights is None else limits.weights, 0.0).astype(np.float64)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return _Rules(np.where(total > 0, mean, np.inf), most, (1.0 + limits.vertex_slack) * reached / parts, weights)


def _edges_by_block(
    csr: CSR, blocks: OrderedBlocks, group: NDArray[np.int32], spill: Path | None
) -> Iterator[tuple[int, int, IntArray, NDArray[np.uint32]]]:
    """Yield (low, high, starts, sources): for the blocks at the places ``low..high-1`` the places of blocks of their
    group that come earlier and have edges to them, once for each edge: those of block b are
    ``sources[starts[b - low]:starts[b - low + 1]]``. Edges are read once, row after row, and go to files by block."""
    count = len(blocks.sizes)
    indptr, indices = np.asarray(csr.indptr), np.asarray(csr.indices)
    of_block = np.zeros(count, np.int64)
    _count_edges(indptr, blocks.place, of_block)
    total = np.cumsum(of_block)
    buckets = min(MOST_BUCKETS, -(-int(total[-1]) // CHUNK_EDGES) or 1) if count else 0
    ends = np.searchsorted(total, np.arange(1, buckets) * (int(total[-1]) / max(buckets, 1)), side="right")
    bounds = np.unique(np.concatenate(([0], ends, [count])))
    buckets = len(bounds) - 1
    bucket_of = np.repeat(np.arange(buckets, dtype=np.int32), np.diff(bounds))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=spill, prefix="blocks-")))
        files = [stack.enter_context((folder / f"{number}.keys").open("w+b")) for number in range(buckets)]
        for first, last in row_chunks(csr):
            starts = np.zeros(buckets + 1, np.int64)
            most = int(indptr[last] - indptr[first])
            keys = np.empty(most, np.uint64)
            _earlier(indptr, indices, first, last, blocks.place, group, bucket_of, starts, keys)
            release_pages(csr.indices)
            for number in np.flatnonzero(np.diff(starts)).tolist():
                files[number].write(keys[starts[number] : starts[number + 1]].data)
            del keys
        for number, file in enumerate(files):
            file.flush()
            low, high = int(bounds[number]), int(bounds[number + 1])
            keys = np.fromfile(folder / f"{number}.keys", np.uint64)
            starts, sources = np.zeros(high - low + 1, np.int64), np.empty(len(keys), np.uint32)
            _by_row(keys, low, starts, sources)
            del keys
            yield low, high, starts, sources


@njit(cache=True, nogil=True)
def _count_edges(indptr, place, of_block):  # type: ignore[no-untyped-def]
    """Count the in-edges of the vertices of each block."""
    for vertex in range(len(place)):
        if place[vertex] >= 0:
            of_block[place[vertex]] += indptr[vertex + 1] - indptr[vertex]


@njit(cache=True, nogil=True)
def _earlier(indptr, indices, first, last, place, group, bucket_of, starts, keys):  # type: ignore[no-untyped-def]
    """Write a key (place of the row's block, place of the source's) for each edge from an earlier block of the group,
    bucket after bucket: those of bucket b are ``keys[starts[b]:starts[b + 1]]``."""
    for fill in range(2):
        for vertex in range(first, last):
            here = np.int64(place[vertex])
            if here < 0:
                continue
            bucket = bucket_of[here]
            for edge in range(indptr[vertex], indptr[vertex + 1]):
                there = np.int64(place[indices[edge]])
                if 0 <= there < here and group[there] == group[here]:
                    if fill == 0:
                        starts[bucket + 1] += 1
                    else:
                        keys[starts[bucket]] = (np.uint64(here) << np.uint64(32)) | np.uint64(there)
                        starts[bucket] += 1
        if fill == 0:
            for bucket in range(len(starts) - 1):
                starts[bucket + 1] += starts[bucket]
    for bucket in range(len(starts) - 1, 0, -1):  # each start has moved to the end of its bucket
        starts[bucket] = starts[bucket - 1]
    starts[0] = 0


@njit(cache=True, nogil=True)
def _by_row(keys, low, starts, sources):  # type: ignore[no-untyped-def]
    """Group keys by their upper half, less ``low``: the lower halves go to ``sources``, first places to ``starts``."""
    shift, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    for key in keys:
        starts[np.int64(key >> shift) - low + 1] += 1
    for row in range(len(starts) - 1):
        starts[row + 1] += starts[row]
    place = starts[:-1].copy()
    for key in keys:
        row = np.int64(key >> shift) - low
        sources[place[row]] = np.uint32(key & mask)
        place[row] += 1


@njit(cache=True, nogil=True)
def _assign(  # type: ignore[no-untyped-def]
    low, high, starts, sources, sizes, kinds, group, first, mean, most, room, weights, chosen, size, held
):
    """Choose the part of the blocks ``low..high-1``, in order: ``chosen``; ``size`` and ``held`` are those of the parts
    so far. Returns the number of forced blocks."""
    forced = 0
    edges = np.zeros(len(size), np.int64)
    for block in range(low, high):
        here, kind = group[block], kinds[block]
        begin, end = first[here], first[here + 1]
        edges[begin:end] = 0
        for place in range(starts[block - low], starts[block - low + 1]):
            edges[chosen[sources[place]]] += 1
        best, best_score, best_balance = -1, 0.0, 0.0
        for part in range(begin, end):
            if held[part, kind] + 1 > most[here, kind] or size[part] + sizes[block] > room[here]:
                continue
            balance = 1.0
            for other in range(mean.shape[1]):
                balance -= weights[here, other] * (held[part, other] / mean[here, other])
            score = balance * (edges[part] / size[part]) if size[part] else 0.0
            better = best < 0 or score > best_score
            if not better and score == best_score:
                better = balance > best_balance or (balance == best_balance and size[part] < size[best])
            if better:
                best, best_score, best_balance = part, score, balance
        if best < 0:
            forced += 1
            best = begin
            for part in range(begin + 1, end):
                if size[part] < size[best]:
                    best = part
        chosen[block] = best
        size[best] += sizes[block]
        held[best, kind] += 1
    return forced


@njit(cache=True, nogil=True)
def _fill(part, groups, first, size):  # type: ignore[no-untyped-def]
    """Give vertices without a part, ascending, to the smallest part of their group."""
    for vertex in range(len(part)):
        if part[vertex] < 0:
            begin, end = first[groups[vertex]], first[groups[vertex] + 1]
            best = begin
            for other in range(begin + 1, end):
                if size[other] < size[best]:
                    best = other
            part[vertex] = best
            size[best] += 1
