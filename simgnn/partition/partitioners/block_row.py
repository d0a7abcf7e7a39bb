"""Contiguous blocks of rows: CAGNET's 1D layout."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simgnn.graph.graph import Graph
from simgnn.policy import Assignment, Partitioner
from simgnn.program.sizes import IntArray


class BlockRow(Partitioner):
    """Contiguous blocks of vertices after a permutation; their sizes differ by one at most."""

    kind: Literal["block-row"] = "block-row"
    permutation: Literal["identity", "random", "degree-balanced"] = Field(
        default="identity", description="order of the vertices before they are cut into blocks"
    )

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        ranks = len(hosts)
        if self.permutation == "random":
            return Assignment(random_owner(graph.vertices, ranks, seed))
        if self.permutation == "degree-balanced":
            return Assignment(degree_balanced_owner(graph.csr.degrees(), ranks))
        return Assignment(block_owner(np.arange(graph.vertices, dtype=np.int64), ranks))


def block_bounds(vertices: int, ranks: int) -> NDArray[np.int64]:
    """Return the first row of each block and the end of the last, int64 [P + 1]. The first blocks have one row more.
    Source: CAGNET's 1D layout, without dropped or padded rows."""
    size, larger = divmod(vertices, ranks)
    part = np.arange(ranks + 1, dtype=np.int64)
    return part * size + np.minimum(part, larger)


def block_owner(permutation: NDArray[np.int64], ranks: int) -> NDArray[np.int32]:
    """Compute the owner of each vertex, int32 [V], by cutting ``permutation`` [V] of the vertices into P blocks."""
    owner = np.empty(len(permutation), dtype=np.int32)
    sizes = np.diff(block_bounds(len(permutation), ranks))
    owner[permutation] = np.repeat(np.arange(ranks, dtype=np.int32), sizes)
    return owner


def random_owner(vertices: int, ranks: int, seed: int) -> NDArray[np.int32]:
    """The owner of each vertex, int32 [V], by a seeded shuffle cut into P blocks that differ by a row at most."""
    return block_owner(np.random.default_rng(seed).permutation(vertices), ranks)


def degree_balanced_owner(degrees: NDArray[np.int64], ranks: int) -> NDArray[np.int32]:
    """Compute the owner of each vertex, int32 [V], by assigning vertices in descending degree (ties: lowest id) to
    ranks 0..P-1, then P-1..0, and so on. The last, incomplete pass starts at rank 0, as in :func:`block_bounds`."""
    vertices = len(degrees)
    place = np.arange(vertices, dtype=np.int64)
    deal, seat = np.divmod(place, ranks)
    backward = (deal % 2 == 1) & (deal < vertices // ranks)
    owner = np.empty(vertices, dtype=np.int32)
    owner[np.argsort(-degrees, kind="stable")] = np.where(backward, ranks - 1 - seat, seat)
    return owner
