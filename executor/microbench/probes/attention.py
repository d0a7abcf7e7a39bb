"""Probes of attention: scores of rows and their reverse; maxima, weighted sums and gradients over edges.

A quick calibration leaves attention out: compiling its kernels would take most of its 20 seconds. Results then report
attention's prices as assumed.
"""

from collections.abc import Iterator

import torch

from executor.kernels.edges.attention import Scores, scores_of
from executor.layers.attention import add_through, gradient_of_vectors
from executor.microbench.probes.aggregation import FULL_GRAPHS
from executor.microbench.probes.bench import Bench, Numbered, float32, measures
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World
from simgnn.hardware.primitives import ATTENTION_GRADIENTS, ATTENTION_MAXIMUM, ATTENTION_SCORES, ATTENTION_SUMS

SHIFT = 4.0
"""What weights are relative to, about the greatest of normal scores: exponents are what those of a softmax are."""
WIDTHS_AND_HEADS = (
    ((16, 1), (64, 4)),
    ((8, 8), (40, 1), (128, 4)),
    ((16, 1), (64, 8)),
    ((40, 1), (128, 4)),
    ((16, 4), (64, 1), (256, 4)),
    ((64, 4),),
    ((64, 4), (256, 1)),
    ((16, 1), (64, 4), (256, 8)),
    ((40, 1), (128, 4)),
    ((16, 4), (256, 2)),
    ((64, 4), (128, 1)),
)
"""Over each graph."""


@measures(
    ATTENTION_MAXIMUM,
    ATTENTION_SUMS,
    ATTENTION_GRADIENTS,
    full=[(graph, *shape) for graph, shapes in zip(FULL_GRAPHS, WIDTHS_AND_HEADS, strict=True) for shape in shapes],
    quick=(),
)
def attention_probes(bench: Bench, graph: Numbered, width: int, heads: int) -> Iterator[Probe]:
    """Maxima, sums and gradients over a graph.

    Both passes of the gradients read rows through an index, one in each direction; the reverse one's profile is theirs.
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
    full=(
        (16, 16, 1),
        (1_000, 64, 4),
        (5_000, 256, 4),
        (17_000, 40, 1),
        (17_000, 256, 8),
        (60_000, 64, 8),
        (85_000, 64, 1),
        (85_000, 256, 4),
    ),
    quick=(),
)
def score_probes(bench: Bench, rows: int, width: int, heads: int) -> Iterator[Probe]:
    """A pass each: scores of rows, the gradient of the vectors that make them, and that of the rows, added to
    another."""
    matrix = bench.pool.matrix

    def scores(world: World) -> Run:
        x, vectors = matrix(rows, width), matrix(heads, width // heads)
        return lambda: scores_of(x, vectors)

    def of_vectors(world: World) -> Run:
        x, vectors, gradient = matrix(rows, width), matrix(heads, width // heads), matrix(rows, heads)
        return lambda: gradient_of_vectors(gradient, x, vectors)

    def of_rows(world: World) -> Run:
        into, vectors, gradient = matrix(rows, width).clone(), matrix(heads, width // heads), matrix(rows, heads)
        return lambda: add_through(into, gradient, vectors)

    sizes = float32(rows=rows, width=width, heads=heads, passes=1)
    for form, make in (("scores", scores), ("of-vectors", of_vectors), ("of-rows", of_rows)):
        yield Probe(ATTENTION_SCORES.name, form, sizes, make)
