"""A graph with what node classification needs: features, labels, masks."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from simgnn.graph.csr import CSR

CHUNK_ROWS = 1024
"""Number of rows that are made dense at a time."""


@dataclass(frozen=True)
class CentredRows:
    """Centred sparse rows X - s m [n, F]: X is sparse, and all rows share the column means m, ``mean`` float64 [F].
    ``extended``: csr_array [n, F + 1], X with the factors s [n] as last column. Features have s = 1; sums of rows sum s
    too, so that ``extended`` can be sliced, sent and aggregated like any sparse matrix."""

    extended: sparse.csr_array
    mean: NDArray[np.float64]

    @classmethod
    def of(cls, rows: sparse.csr_array, mean: NDArray[np.float64] | None = None) -> "CentredRows":
        """Subtract ``mean`` [F] from rows [n, F]; None: the mean of each column, computed in float64."""
        if mean is None:
            # rows.mean(dtype=float64) of SciPy adds float32 values up in float32
            mean = np.bincount(rows.indices, rows.data, minlength=rows.shape[1]) / rows.shape[0]
        ones = sparse.csr_array(np.ones((rows.shape[0], 1), rows.dtype))
        extended: Any = sparse.csr_array(sparse.hstack((rows, ones), "csr"))
        extended.sort_indices()
        return cls(extended, mean)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows n and features F."""
        rows, columns = self.extended.shape
        return int(rows), int(columns) - 1

    def __getitem__(self, rows: Any) -> "CentredRows":
        """Select rows by a slice or by their numbers."""
        picked: Any = self.extended[rows]
        return CentredRows(picked, self.mean)

    def toarray(self, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Convert to dense rows [n, F] of ``dtype`` (None: that of X); differences are computed in float64."""
        found = np.empty(self.shape, self.extended.dtype if dtype is None else dtype)
        for first in range(0, len(found), CHUNK_ROWS):
            part: Any = self.extended[first : first + CHUNK_ROWS]
            rows = part.toarray()
            found[first : first + CHUNK_ROWS] = rows[:, :-1] - rows[:, -1:] * self.mean
        return found


Features = NDArray[Any] | sparse.csr_array | CentredRows
MASKS = ("train", "validation", "test")
"""Kinds of labelled rows; ``NAME_mask`` is the attribute of a graph with the mask of each kind."""


@dataclass(frozen=True)
class GraphFacts:
    """What planning needs to know of a graph besides its partition; ``stats:`` files have the same fields.
    ``feature_nonzeros``: None for dense features; includes the extra column of :class:`CentredRows`. ``train_vertices``
    etc. count the masks. ``weighted``: edges have weights."""

    name: str
    vertices: int
    edges: int
    feature_width: int
    feature_nonzeros: int | None
    classes: int
    multilabel: bool
    train_vertices: int
    validation_vertices: int
    test_vertices: int
    synthetic_features: bool = False
    synthetic_labels: bool = False
    centred_features: bool = False
    weighted: bool = False


@dataclass(frozen=True)
class Graph:
    """A directed graph by destination; undirected ones hold both directions of each edge. No self loops, no duplicates.
    ``csr`` holds the weights of edges, too. ``symmetric``: each edge has its reverse, whatever the weights of the two.

    ``features`` float32 or float16 [V, F_0], or a scipy ``csr_array`` or :class:`CentredRows` of that shape, or None.
    ``feature_mean`` float64 [F_0]: what was subtracted from dense features (None: nothing; :class:`CentredRows` hold
    their own). ``labels`` int64 [V], or bool [V, classes] when ``multilabel``, or None. Masks are bool [V] and
    disjoint. ``notes``: what is synthetic, and what was corrected on reading. ``vertex_ids`` [V]: the ids that the
    source gives to vertices, int64 or text; None: their numbers 0..V-1. ``class_names``: names of the classes by label;
    empty: they have none. ``result_notes``: notes that results of runs and predictions repeat.
    """

    name: str
    csr: CSR
    features: Features | None = None
    feature_mean: NDArray[np.float64] | None = None
    labels: NDArray[Any] | None = None
    train_mask: NDArray[np.bool_] | None = None
    validation_mask: NDArray[np.bool_] | None = None
    test_mask: NDArray[np.bool_] | None = None
    classes: int = 0
    multilabel: bool = False
    symmetric: bool = True
    synthetic_features: bool = False
    synthetic_labels: bool = False
    notes: tuple[str, ...] = field(default_factory=tuple)
    vertex_ids: NDArray[np.int64] | NDArray[np.str_] | None = None
    class_names: tuple[str, ...] = ()
    result_notes: tuple[str, ...] = ()

    @property
    def vertices(self) -> int:
        """V, the number of vertices."""
        return self.csr.rows

    @property
    def edges(self) -> int:
        """E, the number of stored (directed) edges."""
        return self.csr.edges

    @property
    def sparse_rows(self) -> sparse.csr_array | None:
        """The matrix of sparse features (:attr:`CentredRows.extended` if centred); None for dense or no features."""
        features = self.features
        if isinstance(features, CentredRows):
            return features.extended
        return features if isinstance(features, sparse.csr_array) else None

    @property
    def sparse_features(self) -> bool:
        return self.sparse_rows is not None

    def facts(self) -> GraphFacts:
        features, stored = self.features, self.sparse_rows
        return GraphFacts(
            name=self.name,
            vertices=self.vertices,
            edges=self.edges,
            feature_width=0 if features is None else int(features.shape[1]),
            feature_nonzeros=None if stored is None else int(stored.nnz),
            classes=self.classes,
            multilabel=self.multilabel,
            train_vertices=_count(self.train_mask),
            validation_vertices=_count(self.validation_mask),
            test_vertices=_count(self.test_mask),
            synthetic_features=self.synthetic_features,
            synthetic_labels=self.synthetic_labels,
            centred_features=isinstance(features, CentredRows),
            weighted=self.csr.weights is not None,
        )


def _count(mask: NDArray[np.bool_] | None) -> int:
    return 0 if mask is None else int(np.count_nonzero(mask))
