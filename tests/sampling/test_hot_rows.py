"""Which rows are hot, and what a cache of them saves: exact for every size, from one look at the batches."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fetch_cases import EPOCHS, Case
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.policies.placement.store import staged_rows
from simgnn.sampling.batches.presample import open_part
from simgnn.sampling.fetches.measured_sizes import batch_sizes, forecast, pulled_rows
from simgnn.sampling.fetches.remote_rows import HitCurve, Ranking, Sources, rows_on_hosts

ALL = 10**6
SIZES = (0, 1, 5, 20, 60, ALL)
shared = settings(deadline=None, max_examples=25)
counts_of_rows = st.dictionaries(st.integers(0, 40), st.integers(1, 9), max_size=25)


def ranking_of(counts: dict[int, int]) -> Ranking:
    vertices = sorted(counts)
    return Ranking(np.array(vertices, np.int32), np.array([counts[v] for v in vertices], np.int32))


def ranking_in(case: Case, epoch: int, worker: int) -> tuple[Ranking, Sources]:
    sources = Sources.of_worker(case.plan.owner, case.rank_hosts, worker)
    return Ranking.of_part(open_part(case.folder, epoch, worker), sources), sources


@settings(deadline=None)
@given(counts_of_rows)
def test_hot_rows_are_the_most_frequent_and_ties_go_to_the_smaller_id(counts: dict[int, int]) -> None:
    ranking = ranking_of(counts)
    expected = sorted(counts, key=lambda vertex: (-counts[vertex], vertex))
    assert ranking.hot(len(counts) + 3).tolist() == expected
    for rows in range(len(counts)):
        assert ranking.hot(rows).tolist() == expected[:rows]  # nested: one row more changes no other
    assert ranking.places(np.array(expected, np.int32)).tolist() == list(range(len(expected)))


@settings(deadline=None)
@given(st.lists(counts_of_rows, max_size=5))
def test_a_curve_is_monotone_and_counts_what_caches_would(rankings: list[dict[int, int]]) -> None:
    curve = sum((HitCurve.of_ranking(ranking_of(counts)) for counts in rankings), HitCurve(*np.zeros((2, 0), np.int64)))
    longest = max((len(counts) for counts in rankings), default=0)
    assert curve.remote == sum(sum(counts.values()) for counts in rankings)
    assert curve.hits(0) == curve.cached(0) == 0
    assert curve.pulled(longest) == curve.pulled(ALL) == 0
    assert curve.cached(ALL) == sum(map(len, rankings))
    before = None
    for rows in range(longest + 2):
        kept = [sorted(counts.values(), reverse=True)[:rows] for counts in rankings]
        assert curve.hits(rows) == sum(map(sum, kept))
        assert curve.cached(rows) == sum(map(len, kept))
        total = curve.pulled(rows) + curve.cached(rows)
        if before is not None:
            assert curve.pulled(rows) <= before[0]
            assert total <= before[1]  # a row that is needed once costs what it saves
            assert (total < before[1]) == (rows <= curve.enough)
        before = (curve.pulled(rows), total)


def test_rankings_count_the_rows_of_other_hosts_only(case: Case) -> None:
    for epoch in range(EPOCHS):
        for worker in range(case.plan.ranks):
            ranking, sources = ranking_in(case, epoch, worker)
            counts = case.counts(epoch, worker)
            assert dict(zip(ranking.vertices.tolist(), ranking.counts.tolist(), strict=True)) == dict(counts)
            assert ranking.counts.sum() == sum(
                case.far(worker, v) for batch in case.inputs(epoch, worker) for v in batch
            )
            assert sources.of(ranking.vertices).tolist() == [case.sender(worker, v) for v in ranking.vertices.tolist()]


def test_a_row_of_the_own_host_comes_from_nobody(case: Case) -> None:
    for worker in range(case.plan.ranks):
        sources = Sources.of_worker(case.plan.owner, case.rank_hosts, worker)
        near = case.rank_hosts[case.plan.owner] == case.hosts[worker]
        np.testing.assert_array_equal(sources.of(np.arange(300)) == worker, near)


def test_pulled_rows_are_exact_for_every_size_rank_pair_and_step(case: Case) -> None:
    for epoch in (0, EPOCHS - 1):
        for worker in range(case.plan.ranks):
            ranking, sources = ranking_in(case, epoch, worker)
            part = open_part(case.folder, epoch, worker)
            found = pulled_rows(part, ranking, sources, SIZES)
            assert found.shape == (len(SIZES), len(part), case.plan.ranks)
            for place, size in enumerate(SIZES):
                for number, missing in enumerate(case.pulls(epoch, worker, size)):
                    expected = Counter(case.sender(worker, vertex) for vertex in missing)
                    assert found[place, number].tolist() == [expected[rank] for rank in range(case.plan.ranks)]
            assert not found[-1].any()
            assert found[0].sum() == ranking.counts.sum()
            assert (np.diff(found, axis=0) <= 0).all()


@shared
@given(hot_rows=st.integers(0, 250))
def test_misses_of_an_epoch_are_the_uses_of_rows_that_are_not_hot(case: Case, hot_rows: int) -> None:
    ranking, sources = ranking_in(case, 1, 0)
    found = pulled_rows(open_part(case.folder, 1, 0), ranking, sources, [hot_rows])
    held = set(ranking.hot(hot_rows).tolist())
    cold = [count for v, count in zip(ranking.vertices.tolist(), ranking.counts.tolist(), strict=True) if v not in held]
    assert found.sum() == sum(cold) == HitCurve.of_ranking(ranking).pulled(hot_rows)


def test_a_forecast_adds_up(case: Case) -> None:
    told: list[int] = []
    found = forecast(case.plan, case.folder, case.rank_hosts, EPOCHS, SIZES, done=told.append)
    assert told == list(range(1, EPOCHS * case.plan.ranks + 1))
    assert found.steps == EPOCHS * case.plan.steps
    for place, size in enumerate(SIZES):
        assert found.pulled[place].sum() == found.curve.pulled(size)
        assert found.cached[place].sum() == found.curve.cached(size)
        near = case.rank_hosts[:, None] == case.rank_hosts[None, :]
        assert not found.pulled[place][near].any()
        assert not found.cached[place][near].any()
        for worker in range(case.plan.ranks):
            hot = [case.hot(epoch, worker, size) for epoch in range(EPOCHS)]
            assert found.slots[place, worker] == max(map(len, hot))
            expected = Counter(case.sender(worker, vertex) for held in hot for vertex in held)
            assert found.cached[place, worker].tolist() == [expected[rank] for rank in range(case.plan.ranks)]
    most = [
        max((len(batch) for epoch in range(EPOCHS) for batch in case.inputs(epoch, worker)), default=0)
        for worker in range(case.plan.ranks)
    ]
    assert found.largest.tolist() == most
    assert found.rounds[-1] == 0
    assert (np.diff(found.rounds) <= 0).all()


def test_caches_that_pull_what_the_one_before_lacks_are_forecast(case: Case) -> None:
    """The first whole, then the difference of two sets; hits, misses and memory are those of caches pulled whole."""
    cached = (0, 20, ALL)
    found, whole = (forecast(case.plan, case.folder, case.rank_hosts, EPOCHS, cached, new) for new in (True, False))
    for field in ("pulled", "slots", "largest", "rounds"):
        np.testing.assert_array_equal(getattr(found, field), getattr(whole, field))
    orders = [[case.hot(epoch, worker, ALL) for epoch in range(EPOCHS)] for worker in range(case.plan.ranks)]
    for place, size in enumerate(cached):
        for worker, order in enumerate(orders):
            hot = [set(), *(set(ranked[:size]) for ranked in order)]
            new = Counter(case.sender(worker, v) for before, held in pairwise(hot) for v in held - before)
            assert found.cached[place, worker].tolist() == [new[rank] for rank in range(case.plan.ranks)]
        sizes = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS, size, only_new=True)
        if sizes.cache is not None:  # what a program is planned with
            pulled = sizes.cache.first.rows.sum() + sizes.cache.pulled.rows.sum()
            assert found.cached[place].sum() == pulled
    assert found.cached.sum() < whole.cached.sum(), "no row was in two caches that follow one another"


def test_one_cache_for_a_whole_run_is_forecast(case: Case) -> None:
    """Chosen from all batches and filled once; what it lacks is pulled. Caches of every epoch hit no less: none other
    of that size hits more in it."""
    whole = replace(case, whole_run=True)
    found = forecast(case.plan, case.folder, case.rank_hosts, EPOCHS, SIZES, whole_run=True)
    each = forecast(case.plan, case.folder, case.rank_hosts, EPOCHS, SIZES)
    assert found.curve.remote == each.curve.remote
    for place, size in enumerate(SIZES):
        assert found.pulled[place].sum() == found.curve.pulled(size) >= each.curve.pulled(size)
        assert found.cached[place].sum() == found.curve.cached(size) <= each.curve.cached(size)
        for worker in range(case.plan.ranks):
            held = whole.hot(0, worker, size)
            assert found.slots[place, worker] == len(held)
            senders = Counter(case.sender(worker, vertex) for vertex in held)
            assert found.cached[place, worker].tolist() == [senders[rank] for rank in range(case.plan.ranks)]
            missing = [v for e in range(EPOCHS) for batch in whole.pulls(e, worker, size) for v in batch]
            expected = Counter(case.sender(worker, vertex) for vertex in missing)
            assert found.pulled[place, worker].tolist() == [expected[rank] for rank in range(case.plan.ranks)]
    totals = [found.curve.pulled(rows) + found.curve.cached(rows) for rows in range(found.curve.enough + 3)]
    assert min(totals) == totals[found.curve.enough] == totals[-1]


def test_without_a_cache_the_traffic_is_that_of_the_plain_store(case: Case) -> None:
    if len(set(case.hosts)) < case.plan.ranks:
        pytest.skip("the tally of presampled batches is by owner, which sends where each host has one rank")
    found = forecast(case.plan, case.folder, case.rank_hosts, EPOCHS, [0])
    parts = [open_part(case.folder, epoch, rank) for epoch in range(EPOCHS) for rank in range(case.plan.ranks)]
    plain = sum(part.tally.rows for part in parts)
    np.testing.assert_array_equal(found.pulled[0], plain - np.diag(np.diag(plain)))
    assert not found.cached.any()


def test_a_route_holds_every_step(case: Case) -> None:
    ranks = case.plan.ranks
    for size in (0, 20, ALL):
        route = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS, size).pulled
        assert route.rows.shape == (len(route.source), EPOCHS, case.plan.steps)
        for epoch in range(EPOCHS):
            expected = np.zeros((case.plan.steps, ranks, ranks), np.int64)
            for worker in range(ranks):
                for step, missing in enumerate(case.pulls(epoch, worker, size)):
                    for vertex in missing:
                        expected[step, case.sender(worker, vertex), worker] += 1
            for step in range(case.plan.steps):
                np.testing.assert_array_equal(route.matrix(ranks, epoch, step), expected[step])


def test_one_host_pulls_nothing(case: Case) -> None:
    found = forecast(case.plan, case.folder, np.zeros(case.plan.ranks, np.int64), EPOCHS, [0, 10])
    assert (found.curve.remote, found.curve.enough, found.pulled.any(), found.cached.any()) == (0, 0, False, False)
    assert found.rounds.tolist() == [0, 0]


@given(st.integers(0, 5000), st.integers(1, 16), st.integers(0, 3000), st.integers(0, 4000), st.sampled_from([1, 2]))
def test_buffers_stay_within_the_published_bound(
    hot_rows: int, window: int, needed: int, largest: int, caches: int
) -> None:
    """A cache alone where it serves the whole run (docs/systems/rapidgnn.md)."""
    held = staged_rows(np.array([min(hot_rows, needed)]), np.array([largest]), window, caches)
    assert held.tolist() == [caches * min(hot_rows, needed) + window * largest]
    assert held[0] <= 2 * hot_rows + window * largest


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.permutations([0, 0, 1, 2]))
def test_rows_on_a_host_are_its_vertices_in_order(owner: list[int], hosts: list[int]) -> None:
    rows = rows_on_hosts(np.array(owner, np.int32), np.array(hosts, np.int64))
    for host in set(hosts):
        mine = [vertex for vertex, rank in enumerate(owner) if hosts[rank] == host]
        assert rows[mine].tolist() == list(range(len(mine)))
