"""Partition: which rank owns which vertex (edge-cut) or edge (vertex-cut)."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError

PartitionKind = Literal["edge-cut", "vertex-cut"]


@dataclass(frozen=True)
class Partition:
    """A graph divided into P parts; part p belongs to rank p.

    ``owner`` int32 [V]: the rank that owns each vertex; in a vertex-cut the rank of its master copy.
    ``edge_part`` uint8 or uint16 [E_u], vertex-cut only: the rank of each undirected edge, in the order of
    :func:`simgnn.partition.edges.undirected_edges`; both directions of the edge live there.
    """

    kind: PartitionKind
    ranks: int
    owner: NDArray[np.int32]
    edge_part: NDArray[np.unsignedinteger[Any]] | None = None

    @property
    def vertices(self) -> int:
        """V."""
        return len(self.owner)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over kind, P and the arrays."""
        arrays = [self.owner] if self.edge_part is None else [self.owner, self.edge_part]
        return digest_of([self.kind, str(self.ranks)], arrays)

    def rows(self) -> NDArray[np.int64]:
        """Owned vertices of each rank, int64 [P]."""
        return np.bincount(self.owner, minlength=self.ranks).astype(np.int64)

    def check(self) -> "Partition":
        """Return self, or raise :class:`ConfigError` when an owner or an edge's rank is not one of the P ranks."""
        for name, array in (("owner", self.owner), ("edge_part", self.edge_part)):
            if array is not None and len(array) and (int(array.min()) < 0 or int(array.max()) >= self.ranks):
                raise ConfigError(
                    f"partition: '{name}' must name ranks 0..{self.ranks - 1}; "
                    f"got {int(array.min())}..{int(array.max())}"
                )
        return self


def digest_of(words: Iterable[str], arrays: Iterable[NDArray[Any]]) -> str:
    """SHA-256 in hex over words and arrays (type, shape and bytes of each)."""
    total = hashlib.sha256()
    for word in words:
        total.update(word.encode() + b"\0")
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}\0".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()
