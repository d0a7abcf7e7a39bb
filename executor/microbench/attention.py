"""Probes of attention: scores of rows and their reverse; maxima, weighted sums and gradients over edges."""

from collections.abc import Sequence
from functools import partial

import torch

from executor.kernels.attention import Scores, scores_of
from executor.layers.attention import add_through, gradient_of_vectors
from executor.microbench.aggregation import ITEM_BYTES, Subject
from executor.microbench.pool import Pool
from executor.microbench.timing import Probe, Run, Who
from executor.microbench.world import World

SHIFT = 4.0
"""What weights are relative to, about the greatest of normal scores: exponents are what those of a softmax are."""


def attention_probes(
    pool: Pool, subject: Subject, shapes: Sequence[tuple[int, int]], profiled: bool, who: Who = "all"
) -> list[Probe]:
    """For each (width, heads): maxima, sums and gradients. Profiles are made where ``profiled`` (rank 0) only.

    Both passes of the gradients read rows through an index, one in each direction; the reverse one's profile is theirs.
    """
    csr, kernel = subject.csr, subject.attention
    rows, sources, halo = csr.rows, csr.columns, csr.columns - csr.rows
    forward, backward = subject.profiles if profiled else (None, None)

    def inputs(width: int, heads: int) -> tuple[torch.Tensor, torch.Tensor | None, Scores, torch.Tensor]:
        scores = Scores(pool.matrix(sources, heads), pool.matrix(rows, heads))
        remote = pool.matrix(halo, width) if halo else None
        return pool.matrix(rows, width), remote, scores, torch.full_like(scores.target, SHIFT)

    def maximum(world: World, width: int, heads: int) -> Run:
        scores = inputs(width, heads)[2]
        return lambda: kernel.maximum(scores)

    def sums(world: World, width: int, heads: int) -> Run:
        given = inputs(width, heads)
        return lambda: kernel.forward(*given)

    def gradients(world: World, width: int, heads: int) -> Run:
        given, above = inputs(width, heads), pool.matrix(rows, width + heads)
        return lambda: kernel.backward(above, *given)

    probes = []
    for width, heads in shapes:
        for primitive, make, gathered, made, read, locality in (
            ("attention_maximum", maximum, heads, rows, sources, forward),
            ("attention_sums", sums, width, rows, sources, forward),
            ("attention_gradients", gradients, width, sources, rows, backward),
        ):
            run = partial(make, width=width, heads=heads)
            sizes = {"edges": csr.edges, "rows": made, "sources": read, "width": gathered, "heads": heads}
            probes.append(Probe(primitive, subject.name, {**sizes, "item_bytes": ITEM_BYTES}, run, who,
                                locality=locality))  # fmt: skip
    return probes


def score_probes(pool: Pool, shapes: Sequence[tuple[int, int, int]], who: Who = "all") -> list[Probe]:
    """For each (rows, width, heads), a pass each: scores of rows, the gradient of the vectors that make them, and that
    of the rows, added to another."""
    probes = []
    for rows, width, heads in shapes:

        def scores(world: World, shape: tuple[int, int, int] = (rows, width, heads)) -> Run:
            x, vectors = pool.matrix(shape[0], shape[1]), pool.matrix(shape[2], shape[1] // shape[2])
            return lambda: scores_of(x, vectors)

        def of_vectors(world: World, shape: tuple[int, int, int] = (rows, width, heads)) -> Run:
            x, vectors = pool.matrix(shape[0], shape[1]), pool.matrix(shape[2], shape[1] // shape[2])
            gradient = pool.matrix(shape[0], shape[2])
            return lambda: gradient_of_vectors(gradient, x, vectors)

        def of_rows(world: World, shape: tuple[int, int, int] = (rows, width, heads)) -> Run:
            into, vectors = pool.matrix(shape[0], shape[1]).clone(), pool.matrix(shape[2], shape[1] // shape[2])
            gradient = pool.matrix(shape[0], shape[2])
            return lambda: add_through(into, gradient, vectors)

        for form, make in (("scores", scores), ("of-vectors", of_vectors), ("of-rows", of_rows)):
            sizes = {"rows": rows, "width": width, "heads": heads, "passes": 1, "item_bytes": ITEM_BYTES}
            probes.append(Probe("attention_scores", form, sizes, make, who))
    return probes
