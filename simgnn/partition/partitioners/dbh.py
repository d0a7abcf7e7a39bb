"""Degree-based hashing, a reference vertex-cut."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simgnn.partition.partitioners.vertex_cut import VertexCut
from simgnn.program.sizes import IntArray

if TYPE_CHECKING:
    from simgnn.partition.algorithms.ebv import AssignedEdges
    from simgnn.partition.edges import UndirectedEdges


class Dbh(VertexCut):
    """The rank of an edge is a seeded hash of its end of lower degree, which divides hubs, but not leaves."""

    kind: Literal["dbh"] = "dbh"

    def assign(self, edges: "UndirectedEdges", hosts: IntArray, seed: int, spill: Path | None) -> "AssignedEdges":
        # it loads Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.reference_cuts import dbh_edges

        return dbh_edges(edges, hosts, seed=seed, spill=spill)
