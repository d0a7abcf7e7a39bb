"""High-degree replicated first (HDRF), a reference vertex-cut."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from simgnn.partition.partitioners.vertex_cut import EdgeOrder, VertexCut
from simgnn.program.sizes import IntArray

if TYPE_CHECKING:
    from simgnn.partition.algorithms.ebv import AssignedEdges
    from simgnn.partition.edges import UndirectedEdges


class Hdrf(VertexCut):
    """Streaming vertex-cut: edges prefer ranks with replicas of their ends, above all of the low-degree end."""

    kind: Literal["hdrf"] = "hdrf"
    balance: float = Field(default=1.1, ge=0.0, le=1e6, description="weight of what ranks have already (lambda)")
    edge_order: EdgeOrder = Field(default="input", description="order of the stream")

    def assign(self, edges: "UndirectedEdges", hosts: IntArray, seed: int, spill: Path | None) -> "AssignedEdges":
        # it loads Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.reference_cuts import hdrf_edges

        return hdrf_edges(edges, hosts, balance=self.balance, edge_order=self.edge_order, seed=seed, spill=spill)
