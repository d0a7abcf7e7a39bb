"""Probes of work through an index: aggregation over graphs of different locality, sparse features times a matrix.

Every probe carries the reuse profile of its own index stream, so that the cost of a cache miss can be told from that of
an edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import sparse

from executor.kernels.aggregation import Aggregation, kernel_named
from executor.kernels.attention import Attention
from executor.kernels.sparse import SparseRows, from_scipy
from executor.kernels.structure import Scaling, Structure
from executor.microbench.pool import Pool
from executor.microbench.streams import StreamSpec, make_stream
from executor.microbench.timing import Probe, Run, Who
from executor.microbench.world import World
from simgnn.graph.csr import CSR
from simgnn.graph.load import load_graph
from simgnn.graph.locality import reuse_profile
from simgnn.graph.reorder import reverse_cuthill_mckee
from simgnn.graph.transpose import transpose_csr

ITEM_BYTES = 4


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

    def __init__(self, name: str, csr: CSR, device: torch.device) -> None:
        self.name = name
        self.csr = csr
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


def stream_subject(spec: StreamSpec, seed: int, device: torch.device) -> Subject:
    """A local graph from an index stream."""
    return Subject(spec.name, make_stream(spec, seed), device)


def graph_subject(spec: GraphSpec, seed: int, device: torch.device) -> Subject:
    """A local graph from a generated graph."""
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
    return Subject(spec.name, CSR(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), csr.columns), device)


def spmm_probes(pool: Pool, subject: Subject, widths: Sequence[int], profiled: bool, who: Who = "all") -> list[Probe]:
    """Forward and backward of the aggregation at each width. Profiles are made where ``profiled`` (rank 0) only."""
    csr = subject.csr
    rows, halo = csr.rows, csr.columns - csr.rows
    forward, backward = subject.profiles if profiled else (None, None)
    probes = []
    for width in widths:

        def ahead(world: World, width: int = width) -> Run:
            inner, outer = pool.matrix(rows, width), pool.matrix(halo, width) if halo else None
            return lambda: subject.kernel.forward(inner, outer)

        def back(world: World, width: int = width) -> Run:
            gradient = pool.matrix(rows, width)
            return lambda: subject.kernel.backward(gradient, True, halo > 0)

        sizes = {"edges": csr.edges, "width": width, "item_bytes": ITEM_BYTES}
        probes += [
            Probe("spmm", f"{subject.name}", {**sizes, "rows": rows, "sources": csr.columns}, ahead, who,
                  locality=forward),
            Probe("spmm", f"{subject.name}-reversed", {**sizes, "rows": csr.columns, "sources": rows}, back, who,
                  locality=backward),
        ]  # fmt: skip
    return probes


def sparse_matmul_probes(
    pool: Pool,
    shapes: Sequence[tuple[int, int, float, int]],
    device: torch.device,
    profiled: bool,
    who: Who = "all",
) -> list[Probe]:
    """For each (rows, features, stored values a row, width): sparse rows times a weight, and its weight gradient."""
    probes = []
    for rows, columns, per_row, width in shapes:
        spec = StreamSpec(rows, columns, per_row, skew=0.9)
        csr = make_stream(spec, rows)
        forward = reuse_profile(csr).tolist() if profiled else None
        backward = reuse_profile(transpose_csr(csr)).tolist() if profiled else None
        values = np.ones(csr.edges, dtype=np.float32)
        matrix = SparseRows(
            from_scipy(sparse.csr_array((values, csr.indices, csr.indptr), shape=(rows, columns))).to(device)
        )

        def ahead(world: World, matrix: SparseRows = matrix, columns: int = columns, width: int = width) -> Run:
            weight = pool.matrix(columns, width)
            return lambda: matrix.times(weight)

        def back(world: World, matrix: SparseRows = matrix, rows: int = rows, width: int = width) -> Run:
            gradient = pool.matrix(rows, width)
            return lambda: matrix.transposed_times(gradient)

        sizes = {"nonzeros": csr.edges, "width": width, "item_bytes": ITEM_BYTES}
        probes += [
            Probe("sparse_matmul", "forward", {**sizes, "rows": rows, "sources": columns}, ahead, who,
                  locality=forward),
            Probe("sparse_matmul", "weight-gradient", {**sizes, "rows": columns, "sources": rows}, back, who,
                  locality=backward),
        ]  # fmt: skip
    return probes
