"""Contiguous ids: the vertices of each partition form one range. Also converts partitions to local ids.

A vertex has three ids: *oid* in the loaded graph, *gid* counted through all partitions, *lid* inside one of them. The
tables are those of a partition book (DistDGL: Zheng et al., IA3 2020, section 5.3); their order is our decision:
ascending oid within a partition.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError, GraphError
from simgnn.graph.csr import CSR, IndexArray
from simgnn.partition.edges import index_array
from simgnn.partition.local.edge_cut_kernels import gathered_rows, group_by_owner, halo_places

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class IdMaps:
    """Maps between ids of vertices. ``new2old`` int64 [V]: gid -> oid. ``node_map`` int64 [k + 1]: partition p has the
    gids ``node_map[p]`` to ``node_map[p + 1]`` (exclusive)."""

    new2old: Ids
    node_map: Ids

    @classmethod
    def of(cls, owner: NDArray[np.int32], parts: int) -> "IdMaps":
        """Build the maps for ``owner`` int32 [V]. Raises :class:`ConfigError` for owners outside 0..``parts`` - 1."""
        owners = np.asarray(owner)
        if len(owners) and not 0 <= int(owners.min()) <= int(owners.max()) < parts:
            raise ConfigError(f"partition: expected owners 0..{parts - 1}, got {owners.min()}..{owners.max()}")
        return cls(*group_by_owner(owners, parts))

    @cached_property
    def old2new(self) -> Ids:
        """Map from oid to gid, int64 [V]."""
        inverse = np.empty_like(self.new2old)
        inverse[self.new2old] = np.arange(len(inverse))
        return inverse

    @property
    def parts(self) -> int:
        """Number of partitions k."""
        return len(self.node_map) - 1

    def core(self, part: int) -> Ids:
        """Return the oids of a partition's own vertices, by lid."""
        return self.new2old[self.node_map[part] : self.node_map[part + 1]]

    def part_of(self, gids: NDArray[Any]) -> Ids:
        """Return the partition of each gid. Raises :class:`GraphError` for a gid outside 0..V-1."""
        if len(gids) and not 0 <= int(gids.min()) <= int(gids.max()) < len(self.new2old):
            raise GraphError(f"gids: expected 0..{len(self.new2old) - 1}, got {gids.min()}..{gids.max()}")
        return np.searchsorted(self.node_map, gids, side="right") - 1


@dataclass(frozen=True)
class RelabelledPart:
    """Partition ``part`` in local ids: n core vertices with all their in-edges, and h halo vertices without theirs.

    Lids 0..n-1 are core (gid = ``first`` + lid), n..n+h-1 halo. ``indptr`` int64 [n + 1]; ``indices`` [edges], lids of
    the in-neighbours, int32 where they fit. A row keeps the order of the graph, so that it ascends by oid. ``halo_gid``
    int64 [h], ascending; ``oid`` int64 [n + h].
    """

    part: int
    first: int
    indptr: Ids
    indices: IndexArray
    halo_gid: Ids
    oid: Ids

    @property
    def core(self) -> int:
        """Number of core vertices n."""
        return len(self.indptr) - 1

    def gid_of(self, lids: NDArray[Any]) -> Ids:
        """Return the gid of each lid. Raises :class:`GraphError` for a lid outside 0..n+h-1."""
        if len(lids) and not 0 <= int(lids.min()) <= int(lids.max()) < len(self.oid):
            raise GraphError(
                f"lids of partition {self.part}: expected 0..{len(self.oid) - 1}, got {lids.min()}..{lids.max()}"
            )
        gids = np.asarray(lids, dtype=np.int64) + self.first
        halo = np.flatnonzero(np.asarray(lids) >= self.core)
        gids[halo] = self.halo_gid[lids[halo] - self.core]
        return gids


def relabelled_parts(
    csr: CSR, owner: NDArray[np.int32], maps: IdMaps, parts: Iterable[int] | None = None
) -> Iterator[RelabelledPart]:
    """Yield partitions (default: all) in local ids, one at a time; ``maps`` are those of ``owner`` int32 [V].

    An edge belongs to the partition of its destination. Needs 12 bytes a vertex of the graph beside the result.
    """
    owners = np.asarray(owner)
    indptr, indices = np.asarray(csr.indptr), np.asarray(csr.indices)
    stamp = np.full(csr.rows, -1, dtype=np.int32)
    lookup = np.empty(csr.rows, dtype=np.int64)
    for part in range(maps.parts) if parts is None else parts:
        core = maps.core(part)
        halo = halo_places(indptr, indices, core, owners, part, maps.old2new, stamp)
        halo.sort()
        oid = np.concatenate((core, maps.new2old[halo]))
        lookup[oid] = np.arange(len(oid))
        sources = index_array(int((indptr[core + 1] - indptr[core]).sum()), len(oid))
        pointers = gathered_rows(indptr, indices, core, lookup, sources)
        yield RelabelledPart(part, int(maps.node_map[part]), pointers, sources, halo, oid)
