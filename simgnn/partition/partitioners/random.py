"""A seeded random edge-cut."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from simgnn.graph.graph import Graph
from simgnn.partition.host_parts import HostParts
from simgnn.partition.partitioners.block_row import random_owner
from simgnn.policy import Assignment
from simgnn.program.sizes import IntArray


class Random(HostParts):
    """Random edge-cut: a seeded shuffle of the vertices, dealt evenly. ``seed``: by default that of the experiment."""

    kind: Literal["random"] = "random"
    seed: int | None = Field(default=None, ge=0, description="seed of the shuffle; default: that of the experiment")

    def resolved(self, seed: int) -> Self:
        return self if self.seed is not None else self.model_copy(update={"seed": seed})

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        owner = random_owner(graph.vertices, len(hosts), seed if self.seed is None else self.seed)
        return Assignment(owner, dropped=self.between_hosts(graph, owner, hosts))
