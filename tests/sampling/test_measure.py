"""Sizes that programs are planned from: those of the batches on disk, counted one by one."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fetch_cases import EPOCHS, SOURCE, Case

from simgnn.sampling.batches.plan import open_plan, save_plan
from simgnn.sampling.batches.presample import open_part
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.fetches.fetch_plan import Pieces, plan_fetches
from simgnn.sampling.fetches.measured_sizes import batch_sizes, distinct_remote_rows


def test_rows_and_edges_are_those_of_every_batch(case: Case) -> None:
    sizes = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS)
    assert sizes.cache is None
    assert sizes.steps == case.plan.steps
    for epoch in range(EPOCHS):
        for rank in range(case.plan.ranks):
            part = open_part(case.folder, epoch, rank)
            for step in range(case.plan.steps):
                rows, edges = sizes.rows[:, rank, epoch, step], sizes.edges[:, rank, epoch, step]
                if step >= len(part):
                    assert not rows.any()
                    assert not edges.any()
                    continue
                batch = part.batch(step)
                assert rows.tolist() == batch.sizes.tolist()
                assert edges.tolist() == [len(block.sources) for block in batch.blocks]


@pytest.mark.parametrize("hot_rows", [0, 20, 10**6])
def test_sources_of_rows_are_those_of_the_fetch_plan(case: Case, hot_rows: int) -> None:
    sizes = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS, hot_rows)
    plan = plan_fetches(case.plan, SOURCE, case.folder, EPOCHS, case.rank_hosts, hot_rows)
    received = np.zeros(sizes.local.shape, np.int64)
    np.add.at(received, sizes.pulled.target, sizes.pulled.rows)
    np.testing.assert_array_equal(sizes.local + sizes.hits + received, sizes.rows[-1])
    for epoch in range(EPOCHS):
        for rank in range(case.plan.ranks):
            gathers = plan.gather(epoch, rank)
            for step in range(len(gathers)):
                one = gathers.gather(step)
                assert sizes.local[rank, epoch, step] == len(one.local)
                assert sizes.hits[rank, epoch, step] == len(one.hits)
                assert received[rank, epoch, step] == len(one.pulls)


@pytest.mark.parametrize("only_new", [False, True])
def test_caches_are_filled_in_pieces_that_add_up(case: Case, only_new: bool) -> None:
    hot_rows, ranks, steps = 20, case.plan.ranks, case.plan.steps
    cache = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS, hot_rows, only_new).cache
    assert cache is not None
    for rank in range(ranks):
        hot = [case.hot(epoch, rank, hot_rows) for epoch in range(EPOCHS)]
        assert cache.rows[rank] == max(map(len, hot))
        first = Counter(case.sender(rank, vertex) for vertex in hot[0])
        assert [cache.first.matrix(ranks)[sender, rank] for sender in range(ranks)] == [first[s] for s in range(ranks)]
        for epoch in range(EPOCHS - 1):
            size = -(-len(hot[epoch + 1]) // steps)
            for step in range(steps):
                piece = hot[epoch + 1][step * size : (step + 1) * size]
                kept = [vertex for vertex in piece if only_new and vertex in hot[epoch]]
                assert cache.kept[rank, epoch, step] == len(kept)
                senders = Counter(case.sender(rank, vertex) for vertex in piece if vertex not in kept)
                arrived = cache.pulled.matrix(ranks, epoch, step)[:, rank]
                assert arrived.tolist() == [senders[sender] for sender in range(ranks)]
    assert not cache.pulled.rows[:, -1].any()  # nothing follows the last epoch
    assert not cache.kept[:, -1].any()
    assert cache.kept.any() == only_new


def test_a_cache_for_a_whole_run_is_filled_once(case: Case) -> None:
    whole, ranks = replace(case, whole_run=True), case.plan.ranks
    sizes = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS, 20, whole_run=True)
    cache = sizes.cache
    assert cache is not None
    assert not cache.pulled.rows.any()
    assert not cache.kept.any()
    for rank in range(ranks):
        hot = whole.hot(0, rank, 20)
        assert cache.rows[rank] == len(hot)
        senders = Counter(case.sender(rank, vertex) for vertex in hot)
        assert cache.first.matrix(ranks)[:, rank].tolist() == [senders[sender] for sender in range(ranks)]
        for epoch in range(EPOCHS):
            hits = [sum(v in hot for v in batch) for batch in case.inputs(epoch, rank)]
            assert sizes.hits[rank, epoch, : len(hits)].tolist() == hits
            assert not sizes.hits[rank, epoch, len(hits) :].any()
    received = np.zeros(sizes.local.shape, np.int64)
    np.add.at(received, sizes.pulled.target, sizes.pulled.rows)
    np.testing.assert_array_equal(sizes.local + sizes.hits + received, sizes.rows[-1])


def test_an_empty_cache_has_no_pieces() -> None:
    none = np.zeros(0, np.int64)
    pieces = Pieces.of(none, none, 4, only_new=True)
    assert pieces.pulled(none, 3, 4).tolist() == [[0] * 4] * 3
    assert pieces.copied(4).tolist() == [0] * 4


def test_distinct_rows_are_a_mean_over_ranks_and_epochs(case: Case) -> None:
    lengths = [len(case.counts(epoch, rank)) for epoch in range(EPOCHS) for rank in range(case.plan.ranks)]
    found = distinct_remote_rows(case.plan, case.folder, case.rank_hosts, EPOCHS)
    assert found == pytest.approx(np.mean(lengths))


def test_blocks_have_profiles_of_every_rank_and_hop(case: Case) -> None:
    locality = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS).locality
    assert set(locality) == {f"locality/blocks/{hop}/{way}" for hop in (1, 2) for way in ("forward", "backward")}
    for profile in locality.values():
        assert profile.shape[0] == case.plan.ranks
        assert np.all(np.diff(profile, axis=1) >= 0)
        assert not profile[1].any()  # this worker has no training vertices
        assert profile[0].any()


def test_a_plan_on_disk_draws_the_same_batches(case: Case, tmp_path: Path) -> None:
    back = open_plan(save_plan(case.plan, SOURCE, tmp_path / "plan"))
    assert back.workers_digest == case.plan.workers_digest
    assert (back.fanouts, back.batch_size, back.seed) == (case.plan.fanouts, case.plan.batch_size, case.plan.seed)
    np.testing.assert_array_equal(back.owner, case.plan.owner)
    sampler = Sampler(back.csr, back.fanouts)
    drawn = [back.epoch(0, 1).sample(number, sampler).vertices.tolist() for number in range(len(back.epoch(0, 1)))]
    assert drawn == case.inputs(1, 0)
