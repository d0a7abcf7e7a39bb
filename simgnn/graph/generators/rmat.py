"""R-MAT graphs with the parameters of Graph500: skewed degrees at any size, in O(1) memory an edge."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.generators.communities import FEATURE_ROWS
from simgnn.graph.hashing import index_bits, normal_rows, permute_index, splitmix, stream_key, uniform_slice

A, B, C = 0.57, 0.19, 0.19

_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)
_TRIES = np.uint64(64)
_DRAWS = np.uint64(32)
# bounds of the quadrants in 32-bit draws
_CUT_A = np.uint64(round(A * 2**32))
_CUT_B = np.uint64(round((A + B) * 2**32))
_CUT_C = np.uint64(round((A + B + C) * 2**32))


@njit(cache=True, nogil=True)
def _edges(first: Any, key: Any, name_key: Any, levels: Any, bits: Any, vertices: Any, out: Any) -> None:
    size = np.uint64(vertices)
    for k in range(out.shape[1]):
        tries = np.uint64(0)
        while True:
            # a pair outside 0..V-1 is drawn again, from its own numbers: no other edge moves
            base = (np.uint64(first + k) * _TRIES + tries) * _DRAWS
            u = np.uint64(0)
            v = np.uint64(0)
            draw = np.uint64(0)
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
    """A recipe: R-MAT (Chakrabarti, Zhan, Faloutsos, SDM 2004) with a, b, c, d = 0.57, 0.19, 0.19, 0.05.

    ``vertices`` V, any number: pairs outside are drawn again (a power of two needs none); ids are permuted, as Graph500
    asks. ``edges`` drawn, self loops and repeats included (they are dropped after). ``feature_width`` 0: no features.
    ``classes`` 0: no labels. Features are unit normal and labels uniform: for traffic and timing, never for accuracy.
    """

    vertices: int = 65_536
    edges: int = 1_048_576
    classes: int = 16
    multilabel: bool = False
    feature_width: int = 64
    seed: int = 0

    @property
    def name(self) -> str:
        """What results call this graph."""
        return f"rmat-{self.vertices}-{self.edges}"

    def prepare(self) -> "RMatStream":
        """The stream of edges and what belongs to vertices."""
        labels: NDArray[Any] | None = None
        if self.classes and self.multilabel:
            draws = uniform_slice(0, self.vertices * self.classes, stream_key(self.seed, "rmat/labels"))
            labels = draws.reshape(self.vertices, self.classes) < 2.0 / self.classes
        elif self.classes:
            draws = uniform_slice(0, self.vertices, stream_key(self.seed, "rmat/labels"))
            labels = np.floor(draws * self.classes).astype(np.int64)
        return RMatStream(self, labels)


@dataclass(frozen=True)
class RMatStream:
    """``labels`` int64 [V], bool [V, classes] or None."""

    recipe: RMat
    labels: NDArray[Any] | None

    def edges(self, first: int, count: int) -> NDArray[np.int64]:
        """Edges ``first .. first+count-1`` of the stream, int64 [2, count]."""
        recipe = self.recipe
        out = np.empty((2, count), np.int64)
        levels = max(1, (recipe.vertices - 1).bit_length())
        keys = stream_key(recipe.seed, "rmat/edges"), stream_key(recipe.seed, "rmat/names")
        _edges(first, *keys, levels, index_bits(recipe.vertices), recipe.vertices, out)
        return out

    def features(self, chunk: int) -> NDArray[np.float32]:
        """Feature rows of vertices ``chunk * FEATURE_ROWS ...``, float32 [<= FEATURE_ROWS, F]."""
        rows = min(FEATURE_ROWS, self.recipe.vertices - chunk * FEATURE_ROWS)
        return normal_rows(self.recipe.seed, chunk + 1, (rows, self.recipe.feature_width))
