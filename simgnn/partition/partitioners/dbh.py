"""Degree-based hashing, a vertex-cut to compare others with."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simgnn.partition.partitioners.vertex_cut import VertexCut
from simgnn.program.sizes import IntArray

if TYPE_CHECKING:
    from simgnn.partition.algorithms.ebv import AssignedEdges
    from simgnn.partition.edges import UndirectedEdges


class Dbh(VertexCut):
    """An edge goes where a seeded hash of its end of lower degree says, so that hubs are divided and leaves are not."""

    kind: Literal["dbh"] = "dbh"

    def assign(self, edges: "UndirectedEdges", hosts: IntArray, seed: int, spill: Path | None) -> "AssignedEdges":
        """Each edge to the rank that the hash of its end of lower degree names."""
        # it loads Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.reference_cuts import dbh_edges

        return dbh_edges(edges, hosts, seed=seed, spill=spill)
