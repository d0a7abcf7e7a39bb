"""Sampling over a graph that lies in parts, as the rank sees it that wants a batch: whom to ask for what at each hop,
and how own draws and answers become blocks. Nothing is sent here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.sampling.draw.host_structure import Drawn, HostStructure, Ids
from simgnn.sampling.draw.sampler import Assembly, Batch
from simgnn.sampling.draw.vertex_marks import put_chosen

IntArray = NDArray[np.int64]


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
