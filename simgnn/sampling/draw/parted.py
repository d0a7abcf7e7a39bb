"""Sampling over a graph that lies in parts: what a host holds and draws, and how a rank asks other hosts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR, IndexArray
from simgnn.partition.local.contiguous_ids import IdMaps, RelabelledPart, relabelled_parts
from simgnn.partition.local.edge_cut_kernels import halo_places
from simgnn.partition.local.serving import Serving
from simgnn.program.sizes import IntArray
from simgnn.sampling.draw.neighbour_choice import choose_in_part, count_choices
from simgnn.sampling.draw.sampler import Assembly, Batch, put_chosen

Ids = NDArray[np.int64]
OWN = ("indptr", "indices", "halo_gid", "oid")
OF_ALL = ("node_map", "new2old", "old2new")
"""Names of the arrays of a structure: of the partition in its own ids, of all vertices."""


@dataclass(frozen=True)
class Drawn:
    """Neighbours of some rows: ``found[bounds[k]:bounds[k + 1]]`` are those of row k, by their lids."""

    bounds: IntArray
    found: IndexArray


@dataclass(frozen=True)
class Reply:
    """What a host answers: ``degrees`` int32 [k], neighbours kept for each vertex that was asked for; ``neighbours``
    int64, their gids, one vertex after the other; ``lengths`` int64 [requesters]: how many go to each."""

    degrees: NDArray[np.int32]
    neighbours: Ids
    lengths: IntArray


@dataclass(frozen=True)
class HostStructure:
    """The structure that host ``part.part`` of k holds: its partition with whole in-neighbourhoods, halo vertices by id
    only, and the tables of ids.

    ``node_map`` int64 [k + 1], ``new2old`` and ``old2new`` int64 [V] as in
    :class:`~simgnn.partition.local.contiguous_ids.IdMaps`. Source: DistDGL (Zheng et al., IA3 2020, sections 5.3 and
    5.5.1). Deviation: the two tables of all vertices, 16 bytes each, lie on every host: a batch lists its vertices by
    oid, so that it does not show how the graph was partitioned, while ids travel as gids.
    """

    part: RelabelledPart
    node_map: Ids
    new2old: Ids
    old2new: Ids

    @classmethod
    def of(cls, csr: CSR, owner: NDArray[np.int32], serving: Serving, host: int) -> "HostStructure":
        """Cut out of the whole graph, which may be memory-mapped; ``owner`` int32 [V], ranks. Beside the result it
        needs 16 bytes a vertex of the graph."""
        hosts = np.array(serving.hosts, np.int32)[np.asarray(owner)]
        maps = IdMaps.of(hosts, serving.parts)
        (part,) = relabelled_parts(csr, hosts, maps, (host,))
        made = cls(part, maps.node_map, maps.new2old, maps.old2new)
        for array in made.arrays().values():
            array.flags.writeable = False  # all ranks of the host read them
        return made

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that it holds, by name; :meth:`from_arrays` makes the same of it."""
        return {name: getattr(self.part, name) for name in OWN} | {name: getattr(self, name) for name in OF_ALL}

    @classmethod
    def from_arrays(cls, host: int, arrays: Mapping[str, NDArray[Any]]) -> "HostStructure":
        """Of the arrays of a host, used in place."""
        part = RelabelledPart(host, int(arrays["node_map"][host]), **{name: arrays[name] for name in OWN})
        return cls(part, **{name: arrays[name] for name in OF_ALL})

    @property
    def host(self) -> int:
        """The host, and its partition."""
        return self.part.part

    @property
    def size_bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def degrees(self) -> NDArray[np.int32]:
        """In-neighbours of each core vertex, int32 [core, 1]."""
        return np.diff(self.part.indptr).astype(np.int32)[:, None]

    def locate(self, vertices: NDArray[Any]) -> tuple[Ids, Ids]:
        """Gid and host, int64 [n] each, of ``vertices`` [n] of the whole graph."""
        gids = self.old2new[vertices]
        return gids, np.searchsorted(self.node_map, gids, side="right") - 1

    def draw(self, lids: Ids, runs: Iterable[tuple[int, int]], hop: int, fanout: int) -> Drawn:
        """At most ``fanout`` neighbours (-1: all) of core vertices ``lids`` int64 [n]. ``runs``: how many of them, one
        after the other, are drawn under which batch seed."""
        part = self.part
        bounds = np.empty(len(lids) + 1, np.int64)
        found = np.empty(count_choices(part.indptr, lids, fanout, bounds), part.indices.dtype)
        first = 0
        for count, seed in runs:
            rows, ends = lids[first : first + count], bounds[first : first + count + 1]
            choose_in_part(part.indptr, part.indices, part.oid, rows, np.uint64(seed), hop, ends, found)
            first += count
        return Drawn(bounds, found)

    def serve(self, lids: Ids, counts: Sequence[int], seeds: Sequence[int], hop: int, fanout: int) -> Reply:
        """Draw for requesters: the first ``counts[0]`` of ``lids`` int64 [k] under ``seeds[0]``, and so on.

        Core rows alone are drawn from, and no request leads to another. Raises :class:`GraphError` for a vertex that
        this host does not hold: the requester has another partition.
        """
        part = self.part
        if len(lids) and not 0 <= int(lids.min()) <= int(lids.max()) < part.core:
            raise GraphError(
                f"host {self.host} holds the rows 0..{part.core - 1} of its partition, and was asked for "
                f"{lids.min()}..{lids.max()}: the ranks have different partitions"
            )
        drawn = self.draw(lids, zip(counts, seeds, strict=True), hop, fanout)
        ends = np.cumsum((0, *counts))
        return Reply(
            degrees=np.diff(drawn.bounds).astype(np.int32),
            neighbours=part.gid_of(drawn.found),
            lengths=np.diff(drawn.bounds[ends]),
        )


def structure_size(core: IntArray, edges: IntArray, halo: IntArray, vertices: int) -> IntArray:
    """Bytes of the structure of every host, int64 [M], from its numbers of core vertices, in-edges and halo vertices,
    int64 [M] each, and the graph's vertices. Source: docs/systems/distdgl.md, and the tables of ids."""
    lid_bytes = np.where(core + halo <= 2**31, 4, 8)
    return 8 * (core + 1) + lid_bytes * edges + 8 * halo + 8 * (core + halo) + 8 * (len(core) + 1) + 16 * vertices


def structure_bytes(csr: CSR, owner: NDArray[np.int32], serving: Serving) -> IntArray:
    """Bytes of the structure of every host, int64 [M], without making it; ``owner`` int32 [V], ranks."""
    hosts = np.array(serving.hosts, np.int32)[np.asarray(owner)]
    maps = IdMaps.of(hosts, serving.parts)
    indptr, indices = np.asarray(csr.indptr), np.asarray(csr.indices)
    stamp = np.full(csr.rows, -1, np.int32)
    halo = [
        len(halo_places(indptr, indices, maps.core(host), hosts, host, maps.old2new, stamp))
        for host in range(serving.parts)
    ]
    edges = np.bincount(hosts, csr.degrees(), minlength=serving.parts).astype(np.int64)
    return structure_size(np.diff(maps.node_map), edges, np.array(halo, np.int64), csr.rows)


@dataclass(frozen=True)
class Asked:
    """A frontier divided. ``here`` int64: places of the vertices whose rows this host holds, ``lids`` which these are;
    ``away`` int64 [k]: places of the others, rank after rank that is asked, ascending in each; ``wanted`` int64 [k]:
    their lids where they lie; ``counts`` int64 [P]: how many each rank is asked for. ``hosts`` int64 [M]: vertices of
    each host."""

    here: IntArray
    lids: Ids
    away: IntArray
    wanted: Ids
    counts: IntArray
    hosts: IntArray


class Requester:
    """Batches of one rank, one at a time: :meth:`begin`; for each hop :meth:`ask`, :meth:`draw` and :meth:`stitch`; at
    last :meth:`batch`. Keeps (hops + 1) * V / 4 bytes beside the structure.

    ``servers`` int64 [M]: the rank that serves each partition to this one
    (:attr:`~simgnn.partition.local.serving.Serving.servers`), of ``ranks`` in all.
    """

    def __init__(self, structure: HostStructure, servers: IntArray, ranks: int, fanouts: Sequence[int]) -> None:
        self.structure = structure
        self.servers = servers
        self.ranks = ranks
        self.fanouts = tuple(fanouts)
        vertices = len(structure.old2new)
        ids = np.int32 if vertices < 2**31 else np.int64  # as in the CSR of the whole graph
        self._assembly = Assembly(vertices, len(self.fanouts), ids)
        self._seed = 0

    def begin(self, seeds: NDArray[Any], batch_seed: int) -> None:
        """A new batch of vertices ``seeds`` [n], of whatever host. Raises
        :class:`~simgnn.errors.GraphError` for some that are no vertices or not different."""
        self._assembly.begin(seeds)
        self._seed = batch_seed

    @property
    def hop(self) -> int:
        """The hop that is next, from 1."""
        return self._assembly.hop

    @property
    def frontier(self) -> NDArray[Any]:
        """All that the batch holds before that hop [n]."""
        found: NDArray[Any] = self._assembly.frontier
        return found

    def ask(self) -> Asked:
        """Who draws what of the frontier."""
        structure = self.structure
        gids, hosts = structure.locate(self.frontier)
        own = hosts == structure.host
        here, far = np.flatnonzero(own), np.flatnonzero(~own)
        asked = self.servers[hosts[far]]
        away = far[np.argsort(asked, kind="stable")]
        return Asked(
            here=here,
            lids=gids[here] - structure.part.first,
            away=away,
            wanted=gids[away] - structure.node_map[hosts[away]],
            counts=np.bincount(asked, minlength=self.ranks),
            hosts=np.bincount(hosts, minlength=len(self.servers)),
        )

    def draw(self, asked: Asked) -> Drawn:
        """What this rank draws itself; it needs no answers."""
        runs = ((len(asked.lids), self._seed),)
        return self.structure.draw(asked.lids, runs, self.hop, self.fanouts[self.hop - 1])

    def stitch(self, asked: Asked, drawn: Drawn, degrees: NDArray[np.int32], neighbours: Ids) -> None:
        """End the hop with the answers: ``degrees`` int32 [k] and the gids ``neighbours`` int64 [their sum] of what was
        asked for, in its order. Raises :class:`~simgnn.errors.GraphError` for answers that are not of this graph."""
        structure, assembly = self.structure, self._assembly
        starts = np.concatenate(([0], np.cumsum(degrees, dtype=np.int64)))
        vertices = len(structure.new2old)
        # what another host says is looked up without bounds below
        if (len(degrees), int(starts[-1])) != (len(asked.away), len(neighbours)) or (
            len(neighbours) and not 0 <= int(neighbours.min()) <= int(neighbours.max()) < vertices
        ):
            raise GraphError(
                f"hop {self.hop}: {len(asked.away)} vertices were asked for; the answers are {len(degrees)} degrees "
                f"that add up to {starts[-1]}, and {len(neighbours)} neighbours, not all of 0..{vertices - 1}: the "
                "ranks have different partitions; prepare the run again"
            )
        bounds = np.zeros(len(asked.here) + len(asked.away) + 1, np.int64)
        bounds[1:][asked.here] = np.diff(drawn.bounds)
        bounds[1:][asked.away] = degrees
        np.cumsum(bounds, out=bounds)
        chosen, marks = assembly.room(int(bounds[-1])), assembly.marks
        put_chosen(asked.here, drawn.bounds, drawn.found, structure.part.oid, bounds, chosen, marks)
        put_chosen(asked.away, starts, neighbours, structure.new2old, bounds, chosen, marks)
        assembly.extend(bounds, chosen)

    def batch(self) -> Batch:
        """What was begun, after its last hop: the batch that a sampler of the whole graph gives."""
        return self._assembly.batch()
