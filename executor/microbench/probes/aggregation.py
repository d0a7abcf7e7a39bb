"""Probes of work through an index: aggregation and attention over graphs of different locality, and sparse features
times a matrix.

Every probe carries the reuse profile of its own index stream, so that the cost of a cache miss can be separated from
that of an edge. Rank 0 alone makes the profiles.

A quick calibration leaves attention out: compiling its kernels would take most of its 20 seconds. Results then report
attention's prices as assumed.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy import sparse

from executor.kernels.edges.attention import Scores, scores_of
from executor.kernels.edges.sparse import SparseRows, from_scipy
from executor.layers.attention import add_through, gradient_of_vectors
from executor.microbench.probes.bench import Bench, Numbered, float32, measures, shapes
from executor.microbench.probes.inputs import GraphSpec, StreamSpec
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World
from simgnn.graph.build import transpose_csr
from simgnn.graph.locality import reuse_profile
from simgnn.hardware.primitives import (
    ATTENTION_GRADIENTS,
    ATTENTION_MAXIMUM,
    ATTENTION_SCORES,
    ATTENTION_SUMS,
    SPARSE_MATMUL,
    SPMM,
)

FULL_GRAPHS: tuple[tuple[StreamSpec | GraphSpec, tuple[int, ...], tuple[tuple[int, int], ...]], ...] = (
    (StreamSpec(100, 120, 4), (16, 64), ((16, 1), (64, 4))),
    (StreamSpec(2_000, 2_200, 8), (7, 64, 256), ((8, 8), (40, 1), (128, 4))),
    (StreamSpec(20_000, 20_000, 20), (16, 64, 256), ((16, 1), (64, 8))),
    (StreamSpec(60_000, 80_000, 10), (40, 128, 256), ((40, 1), (128, 4))),
    (StreamSpec(60_000, 66_000, 14, local=0.95, band=300), (16, 128, 256, 512), ((16, 4), (64, 1), (256, 4))),
    (StreamSpec(40_000, 50_000, 25, local=0.6, band=2_000), (64, 256), ((64, 4),)),
    (StreamSpec(60_000, 80_000, 12, skew=0.8, degree_skew=1.0), (40, 128, 256), ((64, 4), (256, 1))),
    (GraphSpec("communities", 20_000, 150_000, halo=0.1), (16, 64, 256), ((16, 1), (64, 4), (256, 8))),
    (GraphSpec("communities", 80_000, 600_000, halo=0.1), (40, 128, 256), ((40, 1), (128, 4))),
    (GraphSpec("rmat", 16_384, 160_000), (16, 256), ((16, 4), (256, 2))),
    (GraphSpec("rmat", 65_536, 500_000), (64, 256), ((64, 4), (128, 1))),
)
"""Graphs of a full calibration, each with the widths of its aggregations, and (width, heads) of its attention."""
QUICK_GRAPHS: tuple[tuple[StreamSpec | GraphSpec, tuple[int, ...]], ...] = (
    (StreamSpec(500, 600, 8), (16, 128)),
    (StreamSpec(20_000, 20_000, 15), (16, 64, 128)),
    (StreamSpec(20_000, 22_000, 15, local=0.95, band=300), (16, 64, 256)),
    (GraphSpec("communities", 12_000, 90_000, halo=0.1), (16, 64, 256)),
)
SHIFT = 4.0
"""Subtracted from scores, near the greatest of normal ones, so that exponents are those of a softmax."""


@measures(
    SPMM,
    full=[((seed, graph), width) for seed, (graph, widths, _) in enumerate(FULL_GRAPHS) for width in widths],
    quick=[((seed, graph), width) for seed, (graph, widths) in enumerate(QUICK_GRAPHS) for width in widths],
)
def spmm_probes(bench: Bench, graph: Numbered, width: int) -> Iterator[Probe]:
    """Yield probes of the forward and the backward aggregation over a graph."""
    subject = bench.subject(graph)
    csr = subject.csr
    rows, halo = csr.rows, csr.columns - csr.rows
    forward, backward = subject.profiles if bench.world.rank == 0 else (None, None)

    def ahead(world: World) -> Run:
        inner, outer = bench.pool.matrix(rows, width), bench.pool.matrix(halo, width) if halo else None
        return lambda: subject.kernel.forward(inner, outer)

    back = bench.calling(lambda gradient: subject.kernel.backward(gradient, True, halo > 0), (rows, width))
    there = float32(edges=csr.edges, width=width, rows=rows, sources=csr.columns)
    yield Probe(SPMM.name, subject.name, there, ahead, locality=forward)
    reverse = float32(edges=csr.edges, width=width, rows=csr.columns, sources=rows)
    yield Probe(SPMM.name, f"{subject.name}-reversed", reverse, back, locality=backward)


@measures(
    SPARSE_MATMUL,
    full=shapes(
        "1_300x1_433x18x16 1_300x1_433x18x256 9_000x500x50x64 9_000x6_800x60x128 17_000x8_400x33x64 "
        "20_000x8_400x33x256 4_000x8_400x33x256 30_000x2_000x20x128 30_000x20_000x20x64"
    ),
    quick=shapes(
        "300x500x18x16 1_300x1_433x18x64 4_000x500x50x64 4_000x4_000x30x128 6_000x2_000x20x64 8_000x4_000x30x64 "
        "8_000x4_000x30x256"
    ),
)
def sparse_matmul_probes(bench: Bench, rows: int, columns: int, per_row: float, width: int) -> Iterator[Probe]:
    """Yield probes of sparse rows (``per_row`` of ``columns`` values stored) times a weight, and of its gradient."""
    csr = StreamSpec(rows, columns, per_row, skew=0.9).csr(rows)
    forward = backward = None
    if bench.world.rank == 0:
        forward, backward = reuse_profile(csr).tolist(), reuse_profile(transpose_csr(csr)).tolist()
    values = np.ones(csr.edges, dtype=np.float32)
    stored = sparse.csr_array((values, csr.indices, csr.indptr), shape=(rows, columns))
    matrix = SparseRows(from_scipy(stored).to(bench.device))
    there = float32(nonzeros=csr.edges, width=width, rows=rows, sources=columns)
    ahead = bench.calling(matrix.times, (columns, width))
    yield Probe(SPARSE_MATMUL.name, "forward", there, ahead, locality=forward)
    reverse = float32(nonzeros=csr.edges, width=width, rows=columns, sources=rows)
    back = bench.calling(matrix.transposed_times, (rows, width))
    yield Probe(SPARSE_MATMUL.name, "weight-gradient", reverse, back, locality=backward)


@measures(
    ATTENTION_MAXIMUM,
    ATTENTION_SUMS,
    ATTENTION_GRADIENTS,
    full=[((seed, graph), *each) for seed, (graph, _, attention) in enumerate(FULL_GRAPHS) for each in attention],
    quick=(),
)
def attention_probes(bench: Bench, graph: Numbered, width: int, heads: int) -> Iterator[Probe]:
    """Yield probes of the maxima, sums and gradients of attention over a graph.

    Both passes of the gradients read rows through an index, one in each direction; they have the reverse profile.
    """
    subject, pool = bench.subject(graph), bench.pool
    csr, kernel = subject.csr, subject.attention
    rows, sources, halo = csr.rows, csr.columns, csr.columns - csr.rows
    forward, backward = subject.profiles if bench.world.rank == 0 else (None, None)

    def inputs() -> tuple[torch.Tensor, torch.Tensor | None, Scores, torch.Tensor]:
        scores = Scores(pool.matrix(sources, heads), pool.matrix(rows, heads))
        remote = pool.matrix(halo, width) if halo else None
        return pool.matrix(rows, width), remote, scores, torch.full_like(scores.target, SHIFT)

    def maximum(world: World) -> Run:
        scores = inputs()[2]
        return lambda: kernel.maximum(scores)

    def sums(world: World) -> Run:
        given = inputs()
        return lambda: kernel.forward(*given)

    def gradients(world: World) -> Run:
        given, above = inputs(), pool.matrix(rows, width + heads)
        return lambda: kernel.backward(above, *given)

    there = float32(edges=csr.edges, rows=rows, sources=sources, width=width, heads=heads)
    yield Probe(ATTENTION_MAXIMUM.name, subject.name, {**there, "width": heads}, maximum, locality=forward)
    yield Probe(ATTENTION_SUMS.name, subject.name, there, sums, locality=forward)
    reverse = {**there, "rows": sources, "sources": rows}
    yield Probe(ATTENTION_GRADIENTS.name, subject.name, reverse, gradients, locality=backward)


@measures(
    ATTENTION_SCORES,
    full=shapes("16x16x1 1_000x64x4 5_000x256x4 17_000x40x1 17_000x256x8 60_000x64x8 85_000x64x1 85_000x256x4"),
    quick=(),
)
def score_probes(bench: Bench, rows: int, width: int, heads: int) -> Iterator[Probe]:
    """Yield probes of attention scores of rows, of the gradient of the attention vectors, and of that of the rows."""
    table, vectors, scores = (rows, width), (heads, width // heads), (rows, heads)

    def of_rows(world: World) -> Run:
        into, by, gradient = bench.pool.matrix(*table).clone(), bench.pool.matrix(*vectors), bench.pool.matrix(*scores)
        return lambda: add_through(into, gradient, by)

    def of_vectors(x: torch.Tensor, by: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return gradient_of_vectors(gradient, x, by)

    sizes = float32(rows=rows, width=width, heads=heads, passes=1)
    yield Probe(ATTENTION_SCORES.name, "scores", sizes, bench.calling(scores_of, table, vectors))
    yield Probe(ATTENTION_SCORES.name, "of-vectors", sizes, bench.calling(of_vectors, table, vectors, scores))
    yield Probe(ATTENTION_SCORES.name, "of-rows", sizes, of_rows)
