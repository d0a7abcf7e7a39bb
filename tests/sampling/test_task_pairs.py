"""Positives are neighbours, negatives are not; both uniform, and equal to a slow reading of their definition."""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from simgnn.graph.csr import CSR
from simgnn.partition.local.serving import Serving
from simgnn.sampling.draw.parted import HostStructure
from simgnn.sampling.draw.seeds import hash64
from simgnn.sampling.tasks.pairs import NONE, REJECTIONS, negatives, positives
from tests.sampling.sampling_graphs import MASK, PHI, csr_of, hubs, literal_choice, literal_hash, mix, owners

LEVEL = 0.001
SAMPLED = 24
"""Vertices whose draws are tested by chi-square."""
BATCHES, EACH = 30_000, 2


def rows_of(csr: CSR) -> list[list[int]]:
    return [csr.indices[csr.indptr[v] : csr.indptr[v + 1]].tolist() for v in range(csr.rows)]


def literal_negative(row: list[int], vertex: int, vertices: int, batch_seed: int, number: int) -> int:
    """Section 5 of the spec, word by word."""
    stream = mix(mix((literal_hash("neg", batch_seed) + PHI) & MASK) ^ ((vertex + PHI) & MASK))
    for turn in range(64):
        candidate = mix(stream ^ ((number * 64 + turn + PHI) & MASK)) * vertices >> 64
        if candidate != vertex and candidate not in row:
            return candidate
    return next((v for v in range(vertices) if v != vertex and v not in row), -1)


def both(csr: CSR, seeds: NDArray[np.int64], batch_seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = csr.indptr, csr.indices, None, seeds, batch_seed
    return positives(*rows), negatives(*rows, EACH, csr.rows)


def test_equal_their_definition() -> None:
    csr = hubs()
    rows, seeds = rows_of(csr), np.arange(csr.rows)
    for batch_seed in (0, 5, 2**64 - 1):
        positive, negative = both(csr, seeds, batch_seed)
        for vertex, row in enumerate(rows):
            drawn = literal_choice(row, literal_hash("pos", batch_seed), vertex, 0, 1)
            assert [positive[vertex]] == (drawn or [vertex])
            for number in range(EACH):
                # rows of this graph may hold their own vertex, which is never drawn either
                assert negative[vertex, number] == literal_negative(row, vertex, csr.rows, batch_seed, number)


def test_a_positive_is_a_neighbour_and_a_negative_is_none() -> None:
    csr = hubs()
    rows, seeds = rows_of(csr), np.arange(csr.rows)
    for number in range(200):
        positive, negative = both(csr, seeds, hash64("sample", 0, 0, 0, number))
        for vertex, row in enumerate(rows):
            assert positive[vertex] in row or (not row and positive[vertex] == vertex)
            assert not set(negative[vertex].tolist()) & {*row, vertex}


def test_parts_draw_the_same() -> None:
    csr, serving = hubs(), Serving((0, 1, 2))
    owner = owners(csr.rows, 3)
    positive, negative = both(csr, np.arange(csr.rows), 9)
    for host in range(3):
        part = HostStructure.of(csr, owner, serving, host).part
        lids = np.arange(part.core)
        mine = part.indptr, part.indices, part.oid, lids, 9
        np.testing.assert_array_equal(positives(*mine), positive[part.oid[: part.core]])
        np.testing.assert_array_equal(negatives(*mine, EACH, csr.rows), negative[part.oid[: part.core]])


def test_a_vertex_beside_all_others_has_no_negative() -> None:
    for vertices in (2, 3, 200):
        everyone = [[u for u in range(vertices) if u != v] for v in range(vertices)]
        _, negative = both(csr_of(everyone), np.arange(vertices), 3)
        assert (negative == NONE).all()


def test_the_smallest_non_neighbour_after_all_rejections() -> None:
    vertices = 5000
    row = [u for u in range(vertices) if u not in (0, 17, 4000)]
    csr = csr_of([row, *([[]] * (vertices - 1))])
    missed = 0
    for number in range(200):
        found = int(negatives(csr.indptr, csr.indices, None, np.array([0]), number, 1, vertices)[0, 0])
        assert found == literal_negative(row, 0, vertices, number, 0)
        missed += found == 17
    assert missed > 150, f"chance finds one of two vertices of {vertices} in {REJECTIONS} turns seldom"


def test_both_are_uniform() -> None:
    csr = hubs(300, SAMPLED)
    rows, seeds = rows_of(csr), np.arange(SAMPLED)
    drawn = [both(csr, seeds, hash64("sample", 1, 0, 0, number)) for number in range(BATCHES)]
    positive = np.stack([one for one, _ in drawn])
    negative = np.stack([other for _, other in drawn])
    found = []
    for vertex in range(SAMPLED):
        others = np.setdiff1d(np.arange(csr.rows), [*rows[vertex], vertex])
        for draws, allowed in ((positive[:, vertex], rows[vertex]), (negative[:, vertex].reshape(-1), others)):
            counts = np.bincount(draws, minlength=csr.rows)[np.asarray(allowed)]
            assert counts.sum() == draws.size
            found.append(float(stats.chisquare(counts).pvalue))
    assert len(found) == 2 * SAMPLED >= 40
    assert min(found) > LEVEL
    assert stats.kstest(found, "uniform").pvalue > LEVEL


def test_draws_of_one_seed_are_unrelated() -> None:
    csr = hubs(300, SAMPLED)
    drawn = [both(csr, np.arange(SAMPLED), hash64("sample", 2, 0, 0, number))[1] for number in range(1000)]
    pairs = np.stack(drawn).reshape(-1, EACH)
    correlation = np.corrcoef(pairs[:, 0], pairs[:, 1])[0, 1]
    assert abs(correlation) < stats.norm.isf(LEVEL / 2) / np.sqrt(len(pairs))
