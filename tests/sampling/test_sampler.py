"""Blocks: equal to the definition read literally, for any graph, and always well formed."""

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_graphs import csr_of, global_sources, hubs, literal_batch, plain

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR
from simgnn.sampling.draw.sampler import Sampler

FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 3, 5, 20, 70]), min_size=1, max_size=4).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> tuple[CSR, list[int]]:
    """A directed graph, empty rows and rows longer than a word of bits included, and different seeds."""
    vertices = draw(st.integers(1, 150))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    longest = draw(st.integers(0, vertices))
    rows = [random.choice(vertices, random.integers(0, longest + 1), replace=False).tolist() for _ in range(vertices)]
    seeds = random.permutation(vertices)[: draw(st.integers(0, vertices))]
    return csr_of(rows), seeds.tolist()


@settings(max_examples=60, deadline=None)
@given(cases(), FANOUTS, st.integers(0, 2**64 - 1))
def test_a_batch_equals_the_definition(case: tuple[CSR, list[int]], fanouts: tuple[int, ...], seed: int) -> None:
    csr, seeds = case
    batch = Sampler(csr, fanouts).sample(np.array(seeds, np.int64), seed)
    assert plain(batch) == literal_batch(csr, seeds, seed, fanouts)


@settings(max_examples=40, deadline=None)
@given(cases(), FANOUTS, st.integers(0, 2**64 - 1))
def test_blocks_are_well_formed(case: tuple[CSR, list[int]], fanouts: tuple[int, ...], seed: int) -> None:
    csr, seeds = case
    batch = Sampler(csr, fanouts).sample(np.array(seeds, np.int64), seed)
    assert batch.seeds.tolist() == seeds
    assert len(set(batch.vertices.tolist())) == len(batch.vertices) == batch.sizes[-1]
    degrees = csr.degrees()
    for hop, (fanout, block) in enumerate(zip(fanouts, batch.blocks, strict=True), start=1):
        before, after = int(batch.sizes[hop - 1]), int(batch.sizes[hop])
        rows = degrees[batch.vertices[:before]]
        np.testing.assert_array_equal(np.diff(block.indptr), rows if fanout < 0 else np.minimum(rows, fanout))
        assert np.all(block.sources < after)
        assert set(range(before, after)) <= set(block.sources.tolist())  # nothing is held that nothing needs
        sources = global_sources(batch, hop)
        for row in range(before):
            drawn = sources[block.indptr[row] : block.indptr[row + 1]]
            vertex = batch.vertices[row]
            assert np.all(np.diff(drawn) > 0)
            assert np.isin(drawn, csr.indices[csr.indptr[vertex] : csr.indptr[vertex + 1]]).all()


def test_all_neighbours_at_every_hop_are_breadth_first_search() -> None:
    csr = hubs(250, 3)
    reached = {5, 77}
    batch = Sampler(csr, (-1, -1, -1)).sample(np.array([5, 77]), 1)
    for size in batch.sizes:
        assert reached == set(batch.vertices[:size].tolist())
        reached |= {int(u) for v in reached for u in csr.indices[csr.indptr[v] : csr.indptr[v + 1]]}
    edges = [int(csr.degrees()[batch.vertices[:size]].sum()) for size in batch.sizes[:-1]]
    assert [len(block.sources) for block in batch.blocks] == edges


def test_a_choice_depends_on_seed_vertex_and_hop_alone() -> None:
    csr = hubs()
    sampler = Sampler(csr, (6, 6))
    alone = {v: global_sources(sampler.sample(np.array([v]), 9), 1).tolist() for v in range(20)}
    together = sampler.sample(np.arange(19, -1, -1), 9)
    bounds, sources = together.blocks[0].indptr, global_sources(together, 1)
    found = {v: sources[bounds[row] : bounds[row + 1]].tolist() for row, v in enumerate(together.seeds.tolist())}
    assert found == alone
    second = global_sources(together, 2)[: together.blocks[1].indptr[20]]
    assert second.tolist() != sources.tolist()  # the same vertices at hop 2 draw anew
    assert global_sources(sampler.sample(np.array([3]), 10), 1).tolist() != alone[3]


def test_ids_of_64_bits_give_the_same_batch() -> None:
    csr = hubs()
    wide = CSR(csr.indptr, csr.indices.astype(np.int64), csr.columns)
    narrow = Sampler(csr, (7, 4)).sample(np.arange(40), 5)
    other = Sampler(wide, (7, 4)).sample(np.arange(40), 5)
    assert plain(narrow) == plain(other)
    assert (narrow.vertices.dtype, other.vertices.dtype) == (np.int32, np.int64)
    assert narrow.blocks[0].sources.dtype == narrow.blocks[0].indptr.dtype == np.int32


@pytest.mark.parametrize(
    ("seeds", "told"), [([1, 2, 1], "3 of which 2 are different"), ([-1, 2], "0..299"), ([300], "got 300..300")]
)
def test_bad_seeds(seeds: list[int], told: str) -> None:
    sampler = Sampler(hubs(), (2,))
    with pytest.raises(GraphError, match=told):
        sampler.sample(np.array(seeds), 0)
    assert len(sampler.sample(np.array([4]), 0).seeds) == 1  # a refusal leaves nothing behind


def test_a_sampler_keeps_nothing_of_a_batch_that_it_gave() -> None:
    sampler = Sampler(hubs(250, 3), (5, 5))
    batch = sampler.sample(np.array([5, 77]), 1)
    held = [batch.vertices, *(array for block in batch.blocks for array in (block.indptr, block.sources))]
    gone = [weakref.ref(array) for array in held]
    del batch, held
    assert [one() for one in gone] == [None] * len(gone)
