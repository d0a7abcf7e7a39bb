"""Recipes of generated graphs: degree-corrected communities with planted labels, and R-MAT with skewed degrees."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.hashing import (
    index_bits,
    normal_rows,
    permutation_slice,
    permute_index,
    splitmix,
    stream_key,
    uniform_slice,
    unit,
)

FEATURE_ROWS = 65_536  # a chunk of rows has a random stream of its own
A, B, C = 0.57, 0.19, 0.19

_FOUR, _S32, _LOW, _HALF = np.uint64(4), np.uint64(32), np.uint64(0xFFFFFFFF), 1.0 / 4294967296.0
_TRIES, _DRAWS = np.uint64(64), np.uint64(32)
# bounds of the quadrants of R-MAT in 32-bit draws
_CUT_A = np.uint64(round(A * 2**32))
_CUT_B = np.uint64(round((A + B) * 2**32))
_CUT_C = np.uint64(round((A + B + C) * 2**32))


@njit(cache=True, nogil=True, inline="always")
def _ranked(number: Any, low: Any, high: Any, count: Any, head: Any) -> Any:
    """Map a uniform number to a place 0..count-1 of weight 1/sqrt(place + head), whose inverse CDF is a square."""
    root = low + number * (high - low)
    return min(np.int64(root * root - head), count - 1)


@njit(cache=True, nogil=True, inline="always")
def _community(place: Any, starts: Any) -> Any:
    """Find the community of ``place`` by binary search; this compiles four times as fast as searchsorted."""
    low, high = 0, len(starts) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if starts[middle] <= place:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _community_edges(
    first: Any, key: Any, members: Any, starts: Any, lows: Any, highs: Any, share: Any, head: Any, out: Any
) -> None:
    """Fill ``out`` [2, n] with edges ``first .. first+n-1`` of the stream."""
    total = starts[-1]
    communities = len(starts) - 1
    for k in range(out.shape[1]):
        counter = np.uint64(first + k) * _FOUR
        bits = splitmix(key, counter)
        ends = splitmix(key, counter + np.uint64(1))
        fine = splitmix(key, counter + np.uint64(2))
        here = _community(np.int64(unit(bits) * total), starts)
        there = here
        if float(fine >> _S32) * _HALF >= share and communities > 1:
            other = unit(splitmix(key, counter + np.uint64(3))) * total
            there = _community(np.int64(other), starts)
        a = _ranked(float(ends >> _S32) * _HALF, lows[here], highs[here], starts[here + 1] - starts[here], head)
        b = _ranked(float(ends & _LOW) * _HALF, lows[there], highs[there], starts[there + 1] - starts[there], head)
        out[0, k] = members[starts[here] + a]
        out[1, k] = members[starts[there] + b]


@dataclass(frozen=True)
class Stream:
    """Random content of a generated graph: ``labels`` int64 [V], bool [V, classes] or None; ``edges(first, count)``,
    int64 [2, count]; ``features(chunk)`` of vertices ``chunk * FEATURE_ROWS ...``, float32 [<= FEATURE_ROWS, F]."""

    labels: NDArray[Any] | None
    edges: Callable[[int, int], NDArray[np.int64]]
    features: Callable[[int], NDArray[np.float32]]


@dataclass(frozen=True)
class Communities:
    """Degree-corrected communities with planted labels; equal recipes give equal graphs.

    ``vertices`` V; ``edges`` undirected edges drawn (self loops and repeats are dropped after, a few in a hundred);
    ``classes`` communities; ``multilabel``: a vertex has one to three labels, else one. ``feature_width`` F. An edge
    starts in a community chosen by size and ends with probability ``inside`` in the same one, otherwise anywhere.
    Within a community the expected degree falls as 1/sqrt(rank + ``head``): a power law of exponent 3 (block model of
    Karrer and Newman, Physical Review E 2011, with this law for its weights). A feature row is the sum of its labels'
    centres, each about ``signal`` from the origin, plus unit normal noise. By default (``inside`` 0.3 and ``signal``
    1.75; 0.75 and 2.0 with several labels) features alone predict 60 % of labels, a 2-layer GCN about 91 %.
    """

    vertices: int = 20_000
    edges: int = 300_000
    classes: int = 10
    multilabel: bool = False
    feature_width: int = 64
    seed: int = 0
    inside: float | None = None
    signal: float | None = None
    head: float = 4.0

    @property
    def name(self) -> str:
        return f"communities-{self.vertices}-{self.edges}" + ("-multilabel" if self.multilabel else "")

    @property
    def mixing(self) -> tuple[float, float]:
        inside, signal = (0.75, 2.0) if self.multilabel else (0.3, 1.75)
        return inside if self.inside is None else self.inside, signal if self.signal is None else self.signal

    def prepare(self) -> Stream:
        """Draw the communities, members and labels; O(V) memory."""
        vertices, classes = self.vertices, self.classes
        order = permutation_slice(0, vertices, vertices, stream_key(self.seed, "communities/place"))
        # sizes differ by up to a factor of two, so that partitions and batches are not all alike
        weights = 1.0 + uniform_slice(0, classes, stream_key(self.seed, "communities/size"))
        bounds = np.floor(np.cumsum(weights) / weights.sum() * vertices + 0.5).astype(np.int64)
        label = np.searchsorted(bounds, order, side="right").clip(max=classes - 1).astype(np.int32)
        vertex = np.arange(vertices, dtype=np.int64)
        community: NDArray[np.int32] = label
        if self.multilabel and classes > 1:
            chance = uniform_slice(0, vertices, stream_key(self.seed, "communities/several"))
            vertices_of, labels_of = [vertex], [label]
            for turn, limit in enumerate((0.5, 0.15)):
                more = np.flatnonzero(chance < limit)
                step = uniform_slice(0, vertices, stream_key(self.seed, f"communities/extra-{turn}"))[more]
                vertices_of.append(more)
                labels_of.append(((label[more] + 1 + np.floor(step * (classes - 1))) % classes).astype(np.int32))
            pairs = np.unique(np.stack([np.concatenate(labels_of), np.concatenate(vertices_of)], axis=1), axis=0)
            community, vertex = pairs[:, 0].astype(np.int32), pairs[:, 1]
        rank = uniform_slice(0, len(vertex), stream_key(self.seed, "communities/rank"))
        sort = np.lexsort((rank, community))
        counts = np.bincount(community, minlength=classes)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if self.multilabel:
            labels: NDArray[Any] = np.zeros((vertices, classes), np.bool_)
            labels[vertex, community] = True
        else:
            labels = label.astype(np.int64)
        return Stream(labels, partial(self._edges, vertex[sort], starts), partial(self._features, labels))

    def _edges(
        self, members: NDArray[np.int64], starts: NDArray[np.int64], first: int, count: int
    ) -> NDArray[np.int64]:
        """Draw edges ``first ..``; ``members``: vertices by community, from ``starts[c]`` on, and descending degree."""
        highs = np.sqrt(np.diff(starts) + self.head)
        out = np.empty((2, count), np.int64)
        key = stream_key(self.seed, "communities/edges")
        lows = np.full(len(highs), math.sqrt(self.head))
        _community_edges(first, key, members, starts, lows, highs, self.mixing[0], self.head, out)
        return out

    def _features(self, labels: NDArray[Any], chunk: int) -> NDArray[np.float32]:
        labels = labels[chunk * FEATURE_ROWS : (chunk + 1) * FEATURE_ROWS]
        centres = normal_rows(self.seed, 0, (self.classes, self.feature_width))
        centres *= np.float32(self.mixing[1] / math.sqrt(self.feature_width))
        rows = normal_rows(self.seed, chunk + 1, (len(labels), self.feature_width))
        rows += labels.astype(np.float32) @ centres if self.multilabel else centres[labels]
        return rows


@njit(cache=True, nogil=True)
def _rmat_edges(first: Any, key: Any, name_key: Any, levels: Any, bits: Any, vertices: Any, out: Any) -> None:
    size = np.uint64(vertices)
    for k in range(out.shape[1]):
        tries = np.uint64(0)
        while True:
            # a pair outside 0..V-1 is drawn again, from its own numbers: no other edge moves
            base = (np.uint64(first + k) * _TRIES + tries) * _DRAWS
            u, v, draw = np.uint64(0), np.uint64(0), np.uint64(0)
            for level in range(levels):
                if level % 2 == 0:
                    draw = splitmix(key, base + np.uint64(level // 2))
                    part = draw & _LOW
                else:
                    part = draw >> _S32
                u = u + u + np.uint64(part >= _CUT_B)
                v = v + v + np.uint64((part >= _CUT_A and part < _CUT_B) or part >= _CUT_C)
            tries += np.uint64(1)
            if (u < size and v < size) or tries == _TRIES:
                break
        # after 64 misses (probability below 0.7**64) the pair is folded into range
        out[0, k] = np.int64(permute_index(u % size, name_key, bits, size))
        out[1, k] = np.int64(permute_index(v % size, name_key, bits, size))


@dataclass(frozen=True)
class RMat:
    """R-MAT (Chakrabarti, Zhan, Faloutsos, SDM 2004) with a, b, c, d = 0.57, 0.19, 0.19, 0.05.

    ``vertices`` V, any number: edges with an end outside are drawn again; ids are permuted, as Graph500 asks. ``edges``
    drawn, self loops and repeats included (they are dropped after). ``feature_width`` 0: no features. ``classes`` 0: no
    labels. Features are unit normal and labels uniform: for traffic and timing, never for accuracy.
    """

    vertices: int = 65_536
    edges: int = 1_048_576
    classes: int = 16
    multilabel: bool = False
    feature_width: int = 64
    seed: int = 0

    @property
    def name(self) -> str:
        return f"rmat-{self.vertices}-{self.edges}"

    def prepare(self) -> Stream:
        """Draw the labels; edges and features are drawn when they are asked for."""
        labels: NDArray[Any] | None = None
        if self.classes:
            count = self.vertices * self.classes if self.multilabel else self.vertices
            draws = uniform_slice(0, count, stream_key(self.seed, "rmat/labels"))
            if self.multilabel:
                labels = draws.reshape(self.vertices, self.classes) < 2.0 / self.classes
            else:
                labels = np.floor(draws * self.classes).astype(np.int64)
        return Stream(labels, self._edges, self._features)

    def _edges(self, first: int, count: int) -> NDArray[np.int64]:
        out = np.empty((2, count), np.int64)
        levels = max(1, (self.vertices - 1).bit_length())
        keys = stream_key(self.seed, "rmat/edges"), stream_key(self.seed, "rmat/names")
        _rmat_edges(first, *keys, levels, index_bits(self.vertices), self.vertices, out)
        return out

    def _features(self, chunk: int) -> NDArray[np.float32]:
        rows = min(FEATURE_ROWS, self.vertices - chunk * FEATURE_ROWS)
        return normal_rows(self.seed, chunk + 1, (rows, self.feature_width))
