"""Local graphs of different locality over which aggregation and attention are measured."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import sparse

from executor.kernels.edges.aggregation import Aggregation, kernel_named
from executor.kernels.edges.attention import Attention
from executor.kernels.edges.structure import Scaling, Structure
from executor.microbench.probes.index_streams import StreamSpec, make_stream
from simgnn.graph.build import transpose_csr
from simgnn.graph.csr import CSR
from simgnn.graph.load import load_graph
from simgnn.graph.locality import reuse_profile, reverse_cuthill_mckee


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
        """A short label for the sample's form."""
        return f"{self.kind}-{self.vertices}"


class Subject:
    """A local graph to aggregate over, its profiles in both directions, and the kernel as training builds it (GCN)."""

    def __init__(self, spec: StreamSpec | GraphSpec, seed: int, device: torch.device) -> None:
        self.name = spec.name
        self.csr = _generated(spec, seed) if isinstance(spec, GraphSpec) else make_stream(spec, seed)
        self.device = device

    @cached_property
    def profiles(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Cumulative reuse profiles, forward and backward."""
        turned = transpose_csr(self.csr)
        return tuple(reuse_profile(self.csr).tolist()), tuple(reuse_profile(turned).tolist())

    @cached_property
    def structures(self) -> tuple[Structure, Structure]:
        """Edges by row, and by source."""
        structure = Structure.from_csr(self.csr, self.device)
        return structure, structure.transposed()

    @cached_property
    def attention(self) -> Attention:
        """Attention over the same edges, with self loops, as training builds it."""
        return Attention(*self.structures, looped=self.csr.rows)

    @cached_property
    def kernel(self) -> Aggregation:
        """The aggregation kernel that training takes on this device."""
        columns, rows = self.csr.columns, self.csr.rows
        scale = torch.rand(columns, generator=torch.Generator().manual_seed(columns)).add_(0.5).to(self.device)
        scaling = Scaling(source=scale, destination=scale[:rows].clone(), own=scale[:rows].clone())
        return kernel_named(None, self.device)(*self.structures, scaling, None)


def _generated(spec: GraphSpec, seed: int) -> CSR:
    graph = load_graph(
        f"synthetic:{spec.kind}",
        options={"vertices": spec.vertices, "edges": spec.edges, "feature_width": 0},
        seed=seed,
    )
    csr, order = graph.csr, reverse_cuthill_mckee(graph.csr)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    matrix = sparse.csr_array((np.ones(csr.edges, np.int8), csr.indices, csr.indptr), shape=(csr.rows, csr.columns))
    matrix = matrix[order]
    matrix.indices = place[matrix.indices].astype(np.int32)
    matrix = matrix[: round(csr.rows * (1 - spec.halo))].sorted_indices()
    return CSR(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), csr.columns)
