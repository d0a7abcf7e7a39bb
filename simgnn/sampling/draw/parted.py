"""Sampling from a graph whose structure is divided over hosts: what a host stores, draws and requests."""

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
from simgnn.sampling.draw.sampler import Assembly, choose_in_part, count_choices, put_chosen

OWN = ("indptr", "indices", "halo_gid", "oid")
OF_ALL = ("node_map", "new2old", "old2new")
"""Names of the arrays of a structure that cover all vertices."""


@dataclass(frozen=True)
class Drawn:
    """Neighbours drawn for some rows, in local ids of the host: those of row k: ``found[bounds[k]:bounds[k + 1]]``."""

    bounds: IntArray
    found: IndexArray


@dataclass(frozen=True)
class Reply:
    """Reply of a host to requests. ``degrees`` int32 [k]: number of drawn neighbours of each requested vertex;
    ``neighbours`` int64: their global ids, vertex by vertex; ``lengths`` int64 [requesters]: neighbours for each."""

    degrees: NDArray[np.int32]
    neighbours: IntArray
    lengths: IntArray


@dataclass(frozen=True)
class HostStructure:
    """The structure that one of k hosts holds: its partition with complete in-neighbourhoods, halo vertices by id only,
    and the tables of ids.

    ``node_map`` int64 [k + 1], ``new2old`` and ``old2new`` int64 [V] as in
    :class:`~simgnn.partition.local.contiguous_ids.IdMaps`. Source: DistDGL (Zheng et al., IA3 2020, sections 5.3 and
    5.5.1). Deviation: every host holds both tables of all vertices, 16 bytes each. A batch lists its vertices by oid,
    so that it does not depend on the partition, while ids travel as gids.
    """

    part: RelabelledPart
    node_map: IntArray
    new2old: IntArray
    old2new: IntArray

    @classmethod
    def of(cls, csr: CSR, owner: NDArray[np.int32], serving: Serving, host: int) -> "HostStructure":
        """Extract a host's structure from the whole graph, which may be memory-mapped; ``owner`` int32 [V], ranks.
        Needs another 16 bytes per vertex of the graph."""
        hosts = np.array(serving.hosts, np.int32)[np.asarray(owner)]
        maps = IdMaps.of(hosts, serving.parts)
        (part,) = relabelled_parts(csr, hosts, maps, (host,))
        made = cls(part, maps.node_map, maps.new2old, maps.old2new)
        for array in made.arrays().values():
            array.flags.writeable = False  # all ranks of the host read them
        return made

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name; :meth:`from_arrays` is the inverse."""
        return {name: getattr(self.part, name) for name in OWN} | {name: getattr(self, name) for name in OF_ALL}

    @classmethod
    def from_arrays(cls, host: int, arrays: Mapping[str, NDArray[Any]]) -> "HostStructure":
        part = RelabelledPart(host, int(arrays["node_map"][host]), **{name: arrays[name] for name in OWN})
        return cls(part, **{name: arrays[name] for name in OF_ALL})

    @property
    def host(self) -> int:
        return self.part.part

    def degrees(self) -> NDArray[np.int32]:
        """In-neighbours of each core vertex, int32 [core, 1]."""
        return np.diff(self.part.indptr).astype(np.int32)[:, None]

    def locate(self, vertices: NDArray[Any]) -> tuple[IntArray, IntArray]:
        """Gid and host, int64 [n] each, of ``vertices`` [n] of the whole graph."""
        gids = self.old2new[vertices]
        return gids, np.searchsorted(self.node_map, gids, side="right") - 1

    def draw(self, lids: IntArray, runs: Iterable[tuple[int, int]], hop: int, fanout: int) -> Drawn:
        """Draw at most ``fanout`` neighbours (-1: all) of core vertices ``lids`` int64 [n]. ``runs``: (n, batch seed)
        for each next n vertices that belong to one batch."""
        part = self.part
        bounds = np.empty(len(lids) + 1, np.int64)
        found = np.empty(count_choices(part.indptr, lids, fanout, bounds), part.indices.dtype)
        first = 0
        for count, seed in runs:
            rows, ends = lids[first : first + count], bounds[first : first + count + 1]
            choose_in_part(part.indptr, part.indices, part.oid, rows, np.uint64(seed), hop, ends, found)
            first += count
        return Drawn(bounds, found)

    def serve(self, lids: IntArray, counts: Sequence[int], seeds: Sequence[int], hop: int, fanout: int) -> Reply:
        """Draw neighbours for requesters: the first ``counts[0]`` of the vertices ``lids`` int64 [k] with the batch
        seed ``seeds[0]``, and so on. Raises :class:`GraphError` for a vertex that this host does not hold."""
        part = self.part
        if len(lids) and not 0 <= int(lids.min()) <= int(lids.max()) < part.core:
            raise GraphError(
                f"host {self.host} holds the rows 0..{part.core - 1} of its partition, but received a request for "
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
    int64 [M] each, and the graph's vertices. Source: docs/systems/distdgl.md."""
    lid_bytes = np.where(core + halo <= 2**31, 4, 8)
    return 8 * (core + 1) + lid_bytes * edges + 8 * halo + 8 * (core + halo) + 8 * (len(core) + 1) + 16 * vertices


def structure_bytes(csr: CSR, owner: NDArray[np.int32], serving: Serving) -> IntArray:
    """Compute the bytes of the structure of every host, int64 [M], without building it; ``owner`` int32 [V], ranks."""
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
    """A batch's frontier, divided by the rank that draws. ``here`` int64: positions in it of vertices whose rows this
    host holds, ``lids`` their local ids; ``away`` int64 [k]: positions of the others, grouped by the rank asked;
    ``wanted`` int64 [k]: their local ids on its host; ``counts`` int64 [P]: number of them by rank; ``hosts`` int64
    [M]: all vertices by host."""

    here: IntArray
    lids: IntArray
    away: IntArray
    wanted: IntArray
    counts: IntArray
    hosts: IntArray


class Requester(Assembly):
    """Builds batches of one rank, one at a time: call :meth:`begin`; each hop :meth:`ask`, :meth:`draw`,
    :meth:`stitch`; finally :meth:`batch`, which equals that of a sampler of the whole graph. The caller sends requests.

    ``servers`` int64 [M]: the rank that serves each partition to this one (:attr:`Serving.servers`), of ``ranks`` in
    all. Uses (hops + 1) * V / 4 bytes beside the structure.
    """

    def __init__(self, structure: HostStructure, servers: IntArray, ranks: int, fanouts: Sequence[int]) -> None:
        vertices = len(structure.old2new)
        # ids as in the CSR of the whole graph
        super().__init__(vertices, len(fanouts), np.int32 if vertices < 2**31 else np.int64)
        self.structure, self.servers, self.ranks, self.fanouts = structure, servers, ranks, tuple(fanouts)
        self._seed = 0

    def begin(self, seeds: NDArray[Any], batch_seed: int = 0) -> None:
        """Begin a batch with the seed vertices ``seeds`` [n], of any host. Raises :class:`GraphError` for bad ids."""
        super().begin(seeds)
        self._seed = batch_seed

    def ask(self) -> Asked:
        """Divide the frontier by the rank that draws the neighbours of each vertex."""
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
        """Draw the neighbours of vertices whose rows this host holds."""
        runs = ((len(asked.lids), self._seed),)
        return self.structure.draw(asked.lids, runs, self.hop, self.fanouts[self.hop - 1])

    def stitch(self, asked: Asked, drawn: Drawn, degrees: NDArray[np.int32], neighbours: IntArray) -> None:
        """End the hop: ``drawn`` on this host, and the answers to its requests, in their order: ``degrees`` int32 [k]
        and gids ``neighbours`` int64 [sum of degrees]. Raises :class:`GraphError` for answers that do not fit."""
        structure = self.structure
        starts = np.concatenate(([0], np.cumsum(degrees, dtype=np.int64)))
        vertices = len(structure.new2old)
        # the kernels below check no bounds
        if (len(degrees), int(starts[-1])) != (len(asked.away), len(neighbours)) or (
            len(neighbours) and not 0 <= int(neighbours.min()) <= int(neighbours.max()) < vertices
        ):
            raise GraphError(
                f"hop {self.hop}: neighbours of {len(asked.away)} vertices were asked for; got {len(degrees)} degrees "
                f"(sum {starts[-1]}) and {len(neighbours)} neighbours; expected a degree for each vertex and as "
                f"many ids 0..{vertices - 1} as their sum: the ranks have different partitions; prepare the run again"
            )
        bounds = np.zeros(len(asked.here) + len(asked.away) + 1, np.int64)
        bounds[1:][asked.here] = np.diff(drawn.bounds)
        bounds[1:][asked.away] = degrees
        np.cumsum(bounds, out=bounds)
        chosen, marks = self.room(int(bounds[-1])), self.marks
        put_chosen(asked.here, drawn.bounds, drawn.found, structure.part.oid, bounds, chosen, marks)
        put_chosen(asked.away, starts, neighbours, structure.new2old, bounds, chosen, marks)
        self.extend(bounds, chosen)
