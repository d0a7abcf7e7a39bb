"""Base class of vertex-cuts, with the rule that picks the master among the replicas of a vertex."""

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from simgnn.graph.graph import Graph
from simgnn.policy import Assignment, Cut, Partitioner
from simgnn.program.sizes import IntArray

if TYPE_CHECKING:
    from simgnn.partition.algorithms.ebv import AssignedEdges
    from simgnn.partition.edges import UndirectedEdges

EdgeOrder = Literal["degree-sum", "input", "random"]


class VertexCut(Partitioner):
    """Base class of partitioners that assign each edge to a rank; a vertex has a copy on every rank that holds one of
    its edges. ``master``: rule that picks the copy that completes sums;
    :func:`simgnn.partition.local.masters.choose_masters` describes the rules."""

    cut: ClassVar[Cut] = "vertex-cut"

    master: Literal["host-majority", "balanced", "hash", "first"] = Field(
        default="host-majority", description="rule that picks the master among the copies of a vertex"
    )

    @abstractmethod
    def assign(self, edges: "UndirectedEdges", hosts: IntArray, seed: int, spill: Path | None) -> "AssignedEdges":
        """Return the rank of each undirected edge; ``hosts``, ``seed`` and ``spill`` as in :meth:`divide`."""

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        # these load Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.edges import UndirectedEdges
        from simgnn.partition.local.masters import RULES, choose_masters

        found = self.assign(UndirectedEdges.of(graph), hosts, seed, spill)
        owner = choose_masters(found.replicas, found.host, int(found.host.max()) + 1, RULES.index(self.master), seed)
        return Assignment(owner, found.edge_part)
