"""A random vertex-cut, for reference."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simgnn.partition.partitioners.vertex_cut import VertexCut
from simgnn.program.sizes import IntArray

if TYPE_CHECKING:
    from simgnn.partition.algorithms.ebv import AssignedEdges
    from simgnn.partition.edges import UndirectedEdges


class RandomEdges(VertexCut):
    """Random vertex-cut: the rank of an edge is a seeded hash of both ends."""

    kind: Literal["random-edges"] = "random-edges"

    def assign(self, edges: "UndirectedEdges", hosts: IntArray, seed: int, spill: Path | None) -> "AssignedEdges":
        # it loads Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.reference_cuts import random_edges

        return random_edges(edges, hosts, seed=seed, spill=spill)
