"""Contiguous blocks of rows: CAGNET's 1D layout."""

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from simgnn.graph.graph import Graph
from simgnn.partition.algorithms.simple import block_owner, degree_balanced_owner, random_owner
from simgnn.policy import Assignment, Partitioner
from simgnn.program.sizes import IntArray


class BlockRow(Partitioner):
    """Contiguous blocks of vertices after a permutation; their sizes differ by one at most."""

    kind: Literal["block-row"] = "block-row"
    permutation: Literal["identity", "random", "degree-balanced"] = Field(
        default="identity", description="order of the vertices before they are cut into blocks"
    )

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        """One block a rank."""
        ranks = len(hosts)
        if self.permutation == "random":
            return Assignment(random_owner(graph.vertices, ranks, seed))
        if self.permutation == "degree-balanced":
            return Assignment(degree_balanced_owner(graph.csr.degrees(), ranks))
        return Assignment(block_owner(np.arange(graph.vertices, dtype=np.int64), ranks))
