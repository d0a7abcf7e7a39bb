"""Batches of three branches: what each branch's own sampler draws, side by side; and stored batches that hold them."""

from pathlib import Path

import numpy as np
import pytest

from simgnn.sampling.batches.plan import SamplingPlan, open_plan, save_plan
from simgnn.sampling.batches.presample import open_part, presample
from simgnn.sampling.draw.branches import BranchSampler
from simgnn.sampling.draw.compared import ComparedPairs
from simgnn.sampling.draw.pairs import NONE
from simgnn.sampling.draw.sampler import Batch, Sampler
from tests.sampling.sampling_graphs import csr_of, hubs, literal_batch, literal_choice, literal_hash, owners

FANOUTS, NEGATIVES = (4, 3), 3


def rows_of_branch(batch: Batch, edges_of: list[int], starts: list[int]) -> list[int]:
    """The rows that a branch's first rows reach, by following edges: hop after hop, in the order of the batch."""
    held = set(starts)
    for block, size in zip(batch.blocks, batch.sizes, strict=False):
        held |= {int(source) for row in held.copy() if row < size for source in
                 block.sources[block.indptr[row] : block.indptr[row + 1]]}  # fmt: skip
    return sorted(held)


@pytest.mark.parametrize("batch_seed", [0, 77, 2**64 - 1])
def test_branches_are_drawn_apart_and_lie_side_by_side(batch_seed: int) -> None:
    csr, seeds = hubs(), np.array([250, 3, 17, 120])
    batch = BranchSampler(csr, FANOUTS, NEGATIVES).sample(seeds, batch_seed)
    pairs = batch.pairs
    assert pairs is not None
    assert pairs.shape == (4, 1 + NEGATIVES)
    np.testing.assert_array_equal(batch.vertices[:4], seeds)
    partners = batch.vertices[pairs]
    rows = [csr.indices[csr.indptr[v] : csr.indptr[v + 1]].tolist() for v in seeds]
    drawn_seed = literal_hash("pos", batch_seed)
    for seed, row, found in zip(seeds, rows, partners, strict=True):
        assert [found[0]] == (literal_choice(row, drawn_seed, int(seed), 0, 1) or [seed])
        assert not set(found[1:].tolist()) & {*row, seed}
    seeds_of = (batch_seed, literal_hash("pos-br", batch_seed), literal_hash("neg-br", batch_seed))
    starts = [seeds.tolist(), sorted(set(partners[:, 0].tolist())), sorted(set(partners[:, 1:].reshape(-1).tolist()))]
    first, total = 0, np.zeros(3, np.int64)
    for own_seed, start in zip(seeds_of, starts, strict=True):
        held, blocks = literal_batch(csr, start, own_seed, FANOUTS)
        mine = rows_of_branch(batch, [], list(range(first, first + len(start))))
        assert batch.vertices[mine].tolist() == held, "rows of a branch keep their order, and reach no other branch"
        place = {row: number for number, row in enumerate(mine)}
        for block, (pointers, sources) in zip(batch.blocks, blocks, strict=True):
            targets = [row for row in mine if row < len(block.indptr) - 1]
            assert np.diff(pointers).tolist() == np.diff(block.indptr)[targets].tolist()
            found = [place[int(s)] for row in targets for s in block.sources[block.indptr[row] : block.indptr[row + 1]]]
            assert found == sources
        first += len(start)
        sizes = Sampler(csr, FANOUTS).sample(np.array(start), own_seed).sizes
        total += sizes
    np.testing.assert_array_equal(batch.sizes, total)


def test_a_seed_beside_all_others_has_no_negatives() -> None:
    vertices = 6
    rows = [[u for u in range(vertices) if u != v] for v in range(vertices)]
    rows[4] = [0, 5]
    batch = BranchSampler(csr_of(rows), (2,), 2).sample(np.array([0, 4]), 3)
    assert batch.pairs is not None
    assert (batch.pairs[0, 1:] == NONE).all()
    assert set(batch.vertices[batch.pairs[1, 1:]].tolist()) <= {1, 2, 3}


def unsupervised_plan() -> SamplingPlan:
    graph, owner = hubs(), owners(300, 3)
    chosen = np.random.default_rng(3).permutation(300)[:70]
    workers = tuple(np.sort(part) for part in np.split(chosen, [31, 60]))
    masks = np.arange(300) % 3 == 0, np.arange(300) % 3 == 1
    compared = ComparedPairs.of(graph, masks, 5, NEGATIVES)
    return SamplingPlan(graph, owner, workers, FANOUTS, 8, 5, negatives=NEGATIVES, compared=compared)


def test_stored_batches_and_plans_hold_the_pairs(tmp_path: Path) -> None:
    plan = unsupervised_plan()
    presample(plan, "digest", tmp_path / "batches", 2, threads=2)
    opened, sampler = open_plan(save_plan(plan, "digest", tmp_path / "plan")), plan.sampler()
    assert opened.negatives == NEGATIVES
    assert plan.compared is not None
    assert opened.compared is not None
    np.testing.assert_array_equal(opened.compared.partners, plan.compared.partners)
    assert opened.compared.validation == plan.compared.validation
    for worker in range(plan.ranks):
        for epoch in range(2):
            part, turn = open_part(tmp_path / "batches", epoch, worker), opened.epoch(worker, epoch)
            assert len(part) == len(turn)
            for number in range(len(part)):
                got, wanted = part.batch(number), turn.sample(number, sampler)
                np.testing.assert_array_equal(got.vertices, wanted.vertices)
                assert got.pairs is not None
                assert wanted.pairs is not None
                np.testing.assert_array_equal(got.pairs, wanted.pairs)
                for one, other in zip(got.blocks, wanted.blocks, strict=True):
                    np.testing.assert_array_equal(one.indptr, other.indptr)
                    np.testing.assert_array_equal(one.sources, other.sources)


def test_compared_pairs_are_neighbours_and_others_of_the_right_vertices() -> None:
    plan = unsupervised_plan()
    compared, csr = plan.compared, plan.csr
    assert compared is not None
    degrees = csr.degrees()
    validation = [v for v in range(300) if v % 3 == 0 and degrees[v]]
    test = [v for v in range(300) if v % 3 == 1 and degrees[v]]
    assert compared.vertices.tolist() == validation + test
    assert compared.validation == len(validation)
    for vertex, partners in zip(compared.vertices, compared.partners, strict=True):
        row = csr.indices[csr.indptr[vertex] : csr.indptr[vertex + 1]].tolist()
        assert partners[0] in row
        assert not set(partners[1:].tolist()) & {*row, vertex}
    sizes = compared.sizes(plan.owner, 3)
    assert sizes.by_rank.sum() == sizes.entries == compared.partners.size
    for rank in range(3):
        needed = compared.needed(plan.owner, rank)
        assert (np.diff(plan.owner[needed]) >= 0).all()
        mine = compared.partners[plan.owner[compared.vertices] == rank]
        assert set(needed.tolist()) == {int(v) for v in np.unique(mine) if plan.owner[v] != rank}
