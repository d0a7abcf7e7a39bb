"""EBV, plain and hierarchical (CDFGNN, arXiv 2408.00232): a greedy vertex-cut."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from simgnn.partition.partitioners.vertex_cut import EdgeOrder, VertexCut
from simgnn.program.sizes import IntArray

if TYPE_CHECKING:
    from simgnn.partition.algorithms.ebv import AssignedEdges
    from simgnn.partition.edges import UndirectedEdges


class Ebv(VertexCut):
    """Greedy vertex-cut; ``gamma`` > 0 prefers replicas on one host, 0 is plain EBV. A graph in memory-mapped files is
    read in pieces. :mod:`simgnn.partition.algorithms.ebv` describes the algorithm."""

    kind: Literal["ebv"] = "ebv"
    gamma: float = Field(default=0.1, ge=0.0, lt=1.0, description="weight of replicas on other hosts; 0: plain EBV")
    alpha: float = Field(default=1.0, ge=0.0, description="weight of the balance of edges")
    beta: float = Field(default=1.0, ge=0.0, description="weight of the balance of replicas")
    edge_order: EdgeOrder = Field(default="degree-sum", description="order in which edges are assigned")

    def assign(self, edges: "UndirectedEdges", hosts: IntArray, seed: int, spill: Path | None) -> "AssignedEdges":
        # it loads Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.ebv import ebv_edges

        return ebv_edges(
            edges, hosts, gamma=self.gamma, alpha=self.alpha, beta=self.beta, edge_order=self.edge_order, seed=seed,
            spill=spill,
        )  # fmt: skip
