"""Pairs of vertices by which an unsupervised model is evaluated: drawn once, like those that it is trained on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.program.sizes import IntArray, Route
from simgnn.sampling.draw.pairs import NONE, negatives, positives
from simgnn.sampling.draw.seeds import hash64


@dataclass(frozen=True)
class ComparedPairs:
    """``vertices`` int64 [n], of which the first ``validation`` are validation vertices and the others test vertices;
    ``partners`` int64 [n, 1 + negatives]: a neighbour of each, and vertices that are none (-1: there is none). The same
    for every epoch and any number of ranks. Vertices without neighbours have no positive, and are left out."""

    vertices: NDArray[np.int64]
    partners: NDArray[np.int64]
    validation: int

    @classmethod
    def of(cls, csr: CSR, masks: tuple[Any, Any], seed: int, each: int) -> "ComparedPairs":
        """Draw the pairs of validation and test vertices (``masks``, bool [V] or None), ``each`` negatives a vertex."""
        degrees = csr.degrees()
        splits = [np.zeros(0, np.int64) if mask is None else np.flatnonzero(mask & (degrees > 0)) for mask in masks]
        vertices = np.concatenate(splits).astype(np.int64)
        rows = np.asarray(csr.indptr), np.asarray(csr.indices), None, vertices, hash64("compare", seed)
        partners = np.concatenate((positives(*rows)[:, None], negatives(*rows, each, csr.rows)), axis=1)
        return cls(vertices, partners, len(splits[0]))

    def of_rank(self, owner: NDArray[np.int32], rank: int) -> NDArray[np.int64]:
        """Return the places of a rank's own vertices among all, int64 [k]."""
        return np.flatnonzero(owner[self.vertices] == rank)

    def needed(self, owner: NDArray[np.int32], rank: int) -> NDArray[np.int64]:
        """Return the vertices of other ranks whose rows a rank needs, ascending by owner, then by id."""
        found = np.unique(self.partners[self.of_rank(owner, rank)])
        found = found[(found != NONE) & (owner[found] != rank)]
        ordered: NDArray[np.int64] = found[np.argsort(owner[found], kind="stable")]
        return ordered

    def sizes(self, owner: NDArray[np.int32], ranks: int) -> "ComparedSizes":
        """Count entries of each rank, and the rows that ranks need of one another."""
        sent = np.zeros((ranks, ranks), np.int64)
        for rank in range(ranks):
            sent[:, rank] = np.bincount(owner[self.needed(owner, rank)], minlength=ranks)
        counts = np.bincount(owner[self.vertices], minlength=ranks) * self.partners.shape[1]
        return ComparedSizes(self.partners.size, counts.astype(np.int64), Route.from_matrix(sent))


@dataclass(frozen=True)
class ComparedSizes:
    """Sizes of an evaluation by pairs: ``entries`` of all ranks, ``by_rank`` int64 [P], and the ``partners`` that each
    rank sends to others (a route)."""

    entries: int
    by_rank: IntArray
    partners: Route
