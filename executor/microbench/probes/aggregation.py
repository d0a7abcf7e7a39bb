"""Probes of work through an index: aggregation over graphs of different locality, sparse features times a matrix.

Every probe carries the reuse profile of its own index stream, so that the cost of a cache miss can be told from that of
an edge. Rank 0 alone makes the profiles.
"""

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from executor.kernels.edges.sparse import SparseRows, from_scipy
from executor.microbench.probes.bench import Bench, Numbered, float32, measures
from executor.microbench.probes.graphs import GraphSpec
from executor.microbench.probes.index_streams import StreamSpec, make_stream
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World
from simgnn.graph.build import transpose_csr
from simgnn.graph.locality import reuse_profile
from simgnn.hardware.primitives import SPARSE_MATMUL, SPMM

FULL_GRAPHS: tuple[Numbered, ...] = tuple(
    enumerate(
        (
            StreamSpec(100, 120, 4),
            StreamSpec(2_000, 2_200, 8),
            StreamSpec(20_000, 20_000, 20),
            StreamSpec(60_000, 80_000, 10),
            StreamSpec(60_000, 66_000, 14, local=0.95, band=300),
            StreamSpec(40_000, 50_000, 25, local=0.6, band=2_000),
            StreamSpec(60_000, 80_000, 12, skew=0.8, degree_skew=1.0),
            GraphSpec("communities", 20_000, 150_000, halo=0.1),
            GraphSpec("communities", 80_000, 600_000, halo=0.1),
            GraphSpec("rmat", 16_384, 160_000),
            GraphSpec("rmat", 65_536, 500_000),
        )
    )
)
QUICK_GRAPHS: tuple[Numbered, ...] = tuple(
    enumerate(
        (
            StreamSpec(500, 600, 8),
            StreamSpec(20_000, 20_000, 15),
            StreamSpec(20_000, 22_000, 15, local=0.95, band=300),
            GraphSpec("communities", 12_000, 90_000, halo=0.1),
        )
    )
)
FULL_WIDTHS = (
    (16, 64), (7, 64, 256), (16, 64, 256), (40, 128, 256), (16, 128, 256, 512), (64, 256), (40, 128, 256),
    (16, 64, 256), (40, 128, 256), (16, 256), (64, 256),
)  # fmt: skip
QUICK_WIDTHS = ((16, 128), (16, 64, 128), (16, 64, 256), (16, 64, 256))


@measures(
    SPMM,
    full=[(graph, width) for graph, widths in zip(FULL_GRAPHS, FULL_WIDTHS, strict=True) for width in widths],
    quick=[(graph, width) for graph, widths in zip(QUICK_GRAPHS, QUICK_WIDTHS, strict=True) for width in widths],
)
def spmm_probes(bench: Bench, graph: Numbered, width: int) -> Iterator[Probe]:
    """Forward and backward of the aggregation over a graph."""
    subject, pool = bench.subject(graph), bench.pool
    csr = subject.csr
    rows, halo = csr.rows, csr.columns - csr.rows
    forward, backward = subject.profiles if bench.world.rank == 0 else (None, None)

    def ahead(world: World) -> Run:
        inner, outer = pool.matrix(rows, width), pool.matrix(halo, width) if halo else None
        return lambda: subject.kernel.forward(inner, outer)

    def back(world: World) -> Run:
        gradient = pool.matrix(rows, width)
        return lambda: subject.kernel.backward(gradient, True, halo > 0)

    there = float32(edges=csr.edges, width=width, rows=rows, sources=csr.columns)
    yield Probe(SPMM.name, subject.name, there, ahead, locality=forward)
    reverse = float32(edges=csr.edges, width=width, rows=csr.columns, sources=rows)
    yield Probe(SPMM.name, f"{subject.name}-reversed", reverse, back, locality=backward)


@measures(
    SPARSE_MATMUL,
    full=(
        (1_300, 1_433, 18, 16),
        (1_300, 1_433, 18, 256),
        (9_000, 500, 50, 64),
        (9_000, 6_800, 60, 128),
        (17_000, 8_400, 33, 64),
        (20_000, 8_400, 33, 256),
        (4_000, 8_400, 33, 256),
        (30_000, 2_000, 20, 128),
        (30_000, 20_000, 20, 64),
    ),
    quick=(
        (300, 500, 18, 16),
        (1_300, 1_433, 18, 64),
        (4_000, 500, 50, 64),
        (4_000, 4_000, 30, 128),
        (6_000, 2_000, 20, 64),
        (8_000, 4_000, 30, 64),
        (8_000, 4_000, 30, 256),
    ),
)
def sparse_matmul_probes(bench: Bench, rows: int, columns: int, per_row: float, width: int) -> Iterator[Probe]:
    """Sparse rows of ``columns`` features, ``per_row`` stored values each, times a weight; and its weight gradient."""
    csr = make_stream(StreamSpec(rows, columns, per_row, skew=0.9), rows)
    forward = backward = None
    if bench.world.rank == 0:
        forward, backward = reuse_profile(csr).tolist(), reuse_profile(transpose_csr(csr)).tolist()
    values = np.ones(csr.edges, dtype=np.float32)
    stored = sparse.csr_array((values, csr.indices, csr.indptr), shape=(rows, columns))
    matrix = SparseRows(from_scipy(stored).to(bench.device))

    def ahead(world: World) -> Run:
        weight = bench.pool.matrix(columns, width)
        return lambda: matrix.times(weight)

    def back(world: World) -> Run:
        gradient = bench.pool.matrix(rows, width)
        return lambda: matrix.transposed_times(gradient)

    there = float32(nonzeros=csr.edges, width=width, rows=rows, sources=columns)
    yield Probe(SPARSE_MATMUL.name, "forward", there, ahead, locality=forward)
    reverse = float32(nonzeros=csr.edges, width=width, rows=columns, sources=rows)
    yield Probe(SPARSE_MATMUL.name, "weight-gradient", reverse, back, locality=backward)
