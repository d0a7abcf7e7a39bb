"""Who trains on what, and in which order: every training vertex exactly once an epoch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_graphs import hubs, literal_batch, literal_hash, literal_order, owners, plain

from simgnn.sampling.batches.plan import SamplingPlan, even_split, local_split
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.draw.seeds import batch_seed, epoch_order, hash64

MANY = 2**64 - 1


@given(st.lists(st.integers(0, MANY), max_size=5), st.sampled_from(["sample", "perm", "split"]))
def test_seeds_are_those_of_the_contract(numbers: list[int], tag: str) -> None:
    assert hash64(tag, *numbers) == literal_hash(tag, *numbers)


def test_different_batches_have_different_seeds() -> None:
    keys = [batch_seed(s, w, e, i) for s in range(3) for w in range(4) for e in range(5) for i in range(20)]
    assert len(set(keys)) == len(keys)


@settings(deadline=None)
@given(st.sets(st.integers(0, 500)), st.integers(0, 2**63 - 1), st.integers(0, 50), st.integers(0, 50))
def test_the_order_of_an_epoch_is_the_literal_one(held: set[int], seed: int, worker: int, epoch: int) -> None:
    vertices = np.array(sorted(held), np.int64)
    assert epoch_order(vertices, seed, worker, epoch).tolist() == literal_order(sorted(held), seed, worker, epoch)


@settings(deadline=None)
@given(st.sets(st.integers(0, 199)), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5))
def test_an_even_split_differs_by_one_at_most(held: set[int], hosts: int, each: int, seed: int) -> None:
    train, rank_hosts = np.array(sorted(held), np.int64), np.repeat(np.arange(hosts), each)
    parts = even_split(train, owners(200, hosts * each, seed), rank_hosts, seed)
    assert len(parts) == hosts * each
    assert sorted(np.concatenate(parts).tolist()) == sorted(held)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all(np.all(np.diff(part) > 0) for part in parts)


def test_an_even_split_keeps_vertices_where_they_are_owned() -> None:
    owner = np.repeat([3, 1, 0, 2], 100).astype(np.int32)  # hosts in another order than their ids
    train = np.flatnonzero(np.random.default_rng(0).random(400) < 0.6)
    hosts = np.arange(4)
    parts = even_split(train, owner, hosts, 0)
    local = sum(int((owner[part] == rank).sum()) for rank, part in enumerate(parts))
    assert local >= 0.9 * len(train)
    two = even_split(train, owner, np.array([0, 0, 1, 1]), 0)
    assert sum(int((owner[part] // 2 == rank // 2).sum()) for rank, part in enumerate(two)) >= 0.9 * len(train)


def test_a_local_split_is_what_a_rank_owns() -> None:
    owner, train = owners(300, 5), np.arange(0, 300, 2)
    owner[owner == 3] = 0
    parts = local_split(train, owner, 5)
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(part, train[owner[train] == rank])
    assert len(parts[3]) == 0


@pytest.fixture(scope="module")
def uneven() -> SamplingPlan:
    """Four workers of 37, 0, 9 and 64 training vertices, batches of 10."""
    train = np.random.default_rng(3).permutation(300)[:110]
    workers = tuple(np.sort(part).astype(np.int64) for part in np.split(train, [37, 37, 46]))
    return SamplingPlan(hubs(), owners(300, 4), workers, (5, 3), 10, 11)


def test_each_training_vertex_is_a_seed_exactly_once_an_epoch(uneven: SamplingPlan) -> None:
    sampler = Sampler(uneven.csr, uneven.fanouts)
    orders = []
    for epoch in range(3):
        seeds: list[int] = []
        for worker in range(uneven.ranks):
            turn = uneven.epoch(worker, epoch)
            sizes = [len(turn.sample(number, sampler).seeds) for number in range(len(turn))]
            assert sum(sizes) == len(uneven.workers[worker])
            assert all(size == 10 for size in sizes[:-1])  # only the last one is short
            seeds += turn.order.tolist()
        assert sorted(seeds) == sorted(np.concatenate(uneven.workers).tolist())
        orders.append(seeds)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert [uneven.batches(worker) for worker in range(4)] == [4, 0, 1, 7]
    assert uneven.steps == 7


def test_a_batch_of_a_plan_is_the_literal_one(uneven: SamplingPlan) -> None:
    sampler = Sampler(uneven.csr, uneven.fanouts)
    vertices = uneven.workers[0].tolist()
    for epoch in (0, 4):
        order = literal_order(vertices, 11, 0, epoch)
        for number in (3, 0):
            found = uneven.epoch(0, epoch).sample(number, sampler)
            seed = literal_hash("sample", 11, 0, epoch, number)
            assert plain(found) == literal_batch(uneven.csr, order[10 * number : 10 * number + 10], seed, (5, 3))


def test_dropping_last_batches_leaves_full_ones_of_every_worker() -> None:
    train = np.random.default_rng(3).permutation(300)[:110]
    workers = tuple(np.sort(part).astype(np.int64) for part in np.split(train, [37, 64]))  # 37, 27, 46
    keep = SamplingPlan(hubs(), owners(300, 3), workers, (5, 3), 10, 11)
    drop = replace(keep, last="drop")
    assert [keep.batches(worker) for worker in range(3)] == [4, 3, 5]
    assert [drop.batches(worker) for worker in range(3)] == [2, 2, 2]
    assert (keep.steps, drop.steps, keep.trained, drop.trained) == (5, 2, 110, 60)
    sampler = Sampler(drop.csr, drop.fanouts)
    for worker in range(3):
        turn = drop.epoch(worker, 1)
        assert len(turn) == 2
        for number in range(2):
            batch = turn.sample(number, sampler)
            assert len(batch.seeds) == 10
            assert plain(batch) == plain(keep.epoch(worker, 1).sample(number, sampler))
