"""A partitioner: vertices are dealt to the ranks in turn, by their number."""

from pathlib import Path

import numpy as np
from pydantic import Field

from simgnn.policy import Assignment, Graph, Partitioner
from simgnn.program.sizes import IntArray


class Stripes(Partitioner):
    """Stripes of ``height`` vertices, the first to rank 0, the next to rank 1, and so on."""

    height: int = Field(default=1, ge=1, description="vertices of a stripe")

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        return Assignment(np.arange(graph.vertices) // self.height % len(hosts))
