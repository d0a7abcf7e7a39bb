"""Inputs of probes: views of one block of random numbers, index streams of known locality, generated graphs."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from executor.kernels.edges.aggregation import Aggregation, kernel_named
from executor.kernels.edges.attention import Attention
from executor.kernels.edges.structure import Scaling, Structure
from simgnn.graph.build import transpose_csr
from simgnn.graph.csr import CSR
from simgnn.graph.load import load_graph
from simgnn.graph.locality import reuse_profile, reverse_cuthill_mckee

TILE = 1 << 20
ALIGNMENT = 1 << 10


class Pool:
    """A block of float32 normals on one device, so that a round spends no time on filling arrays."""

    def __init__(self, items: int, device: torch.device) -> None:
        tile = torch.randn(min(TILE, items), generator=torch.Generator().manual_seed(0)).to(device)
        self._block = tile.repeat(-(-items // tile.numel()))[:items].clone()
        self._next = 0

    def matrix(self, *shape: int) -> torch.Tensor:
        """A contiguous view that must not be written to; another part of the block at each call, where that fits."""
        items = prod(shape)
        if items > self._block.numel():
            raise ValueError(f"the pool has {self._block.numel()} items, expected at least {items}: build it larger")
        if self._next + items > self._block.numel():
            self._next = 0
        view = self._block[self._next : self._next + items].view(shape)
        self._next += -(-items // ALIGNMENT) * ALIGNMENT
        return view


@dataclass(frozen=True)
class StreamSpec:
    """``rows`` destinations with ``degree`` in-edges on average, reading ``sources`` rows.

    ``local``: share of the edges whose source lies within ``band`` rows of its destination (positions scaled to the
    number of sources); the others are uniform, or Zipf-like with exponent ``skew`` > 0 (hubs in random positions).
    ``degree_skew`` > 0: in-degrees are Pareto-distributed with this spread instead of all alike.
    """

    rows: int
    sources: int
    degree: float
    local: float = 0.0
    band: int = 64
    skew: float = 0.0
    degree_skew: float = 0.0

    @property
    def name(self) -> str:
        shape = "local" if self.local >= 0.5 else "skewed" if self.skew > 0 else "random"
        return f"{shape}-{self.sources}"

    def csr(self, seed: int) -> CSR:
        """Generate the index stream, sources ascending in each row; the same seed gives the same stream."""
        generator = np.random.default_rng(seed)
        degrees = self._degrees(generator)
        indptr = np.zeros(self.rows + 1, dtype=np.int64)
        np.cumsum(degrees, out=indptr[1:])
        edges = int(indptr[-1])
        row_of_edge = np.repeat(np.arange(self.rows, dtype=np.int64), degrees)
        centre = row_of_edge * self.sources // max(self.rows, 1)
        near = np.clip(centre + generator.integers(-self.band, self.band + 1, edges), 0, self.sources - 1)
        far = self._far_sources(generator, edges)
        source = np.where(generator.random(edges) < self.local, near, far)
        order = np.argsort(row_of_edge * self.sources + source, kind="stable")
        return CSR(indptr, source[order].astype(np.int32), self.sources)

    def _degrees(self, generator: np.random.Generator) -> NDArray[np.int64]:
        if self.degree_skew <= 0:
            return np.full(self.rows, max(1, round(self.degree)), dtype=np.int64)
        weights = (1.0 + generator.pareto(1.0 + 1.0 / self.degree_skew, self.rows)).clip(max=self.rows / 4)
        return np.asarray(np.maximum(1, np.rint(weights * (self.degree / weights.mean()))), dtype=np.int64)

    def _far_sources(self, generator: np.random.Generator, edges: int) -> NDArray[np.int64]:
        if self.skew <= 0:
            return generator.integers(0, self.sources, edges)
        weight = np.arange(1, self.sources + 1, dtype=np.float64) ** -self.skew
        drawn = np.searchsorted(np.cumsum(weight), generator.random(edges) * weight.sum())
        return np.asarray(generator.permutation(self.sources)[np.minimum(drawn, self.sources - 1)], dtype=np.int64)


@dataclass(frozen=True)
class GraphSpec:
    """A generated graph with its rows in reverse Cuthill-McKee order, as a rank holds its own.

    ``kind``: communities or rmat. ``halo``: share of the rows, at the end, that this rank reads but does not own.
    """

    kind: str
    vertices: int
    edges: int
    halo: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.vertices}"

    def csr(self, seed: int) -> CSR:
        """Generate the local graph; the same seed gives the same graph."""
        csr = generated(self.kind, self.vertices, self.edges, seed)
        order = reverse_cuthill_mckee(csr)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        matrix = sparse.csr_array((np.ones(csr.edges, np.int8), csr.indices, csr.indptr), shape=(csr.rows, csr.columns))
        matrix = matrix[order]
        matrix.indices = place[matrix.indices].astype(np.int32)
        matrix = matrix[: round(csr.rows * (1 - self.halo))].sorted_indices()
        return CSR(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), csr.columns)


def generated(kind: str, vertices: int, edges: int, seed: int) -> CSR:
    options = {"vertices": vertices, "edges": edges, "feature_width": 0}
    return load_graph(f"synthetic:{kind}", options=options, seed=seed).csr


class Subject:
    """A local graph to aggregate over, and structures derived from it."""

    def __init__(self, spec: StreamSpec | GraphSpec, seed: int, device: torch.device) -> None:
        self.name, self.csr, self.device = spec.name, spec.csr(seed), device

    @cached_property
    def profiles(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Cumulative reuse profiles of the index streams of forward and backward (:mod:`simgnn.graph.locality`)."""
        reverse = transpose_csr(self.csr)
        return tuple(reuse_profile(self.csr).tolist()), tuple(reuse_profile(reverse).tolist())

    @cached_property
    def structures(self) -> tuple[Structure, Structure]:
        """The edges grouped by destination row, and the same edges grouped by source row."""
        structure = Structure.from_csr(self.csr, self.device)
        return structure, structure.transposed()

    @cached_property
    def attention(self) -> Attention:
        """Attention over the same edges, with self loops, as training builds it."""
        return Attention(*self.structures, looped=self.csr.rows)

    @cached_property
    def kernel(self) -> Aggregation:
        """The aggregation kernel that training uses for a GCN on this device."""
        columns, rows = self.csr.columns, self.csr.rows
        scale = torch.rand(columns, generator=torch.Generator().manual_seed(columns)).add_(0.5).to(self.device)
        scaling = Scaling(source=scale, destination=scale[:rows].clone(), own=scale[:rows].clone())
        return kernel_named(None, self.device)(*self.structures, scaling, None)
