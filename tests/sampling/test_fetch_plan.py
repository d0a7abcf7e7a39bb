"""Fetches planned ahead: gathering by the plan gives the features, and what is sent is what is pulled."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fetch_cases import EPOCHS, SOURCE, Case

from simgnn.errors import ConfigError
from simgnn.partition.folder import CorruptArtifactError
from simgnn.sampling.batches.presample import presample
from simgnn.sampling.fetches.fetch_plan import FetchPlan, plan_fetches
from simgnn.sampling.fetches.measured_sizes import batch_sizes, forecast
from simgnn.sampling.fetches.remote_rows import rows_on_hosts

ALL = 10**6
SIZES = (0, 20, ALL)
CACHES = [*((size, False) for size in SIZES), (20, True)]
"""Hot rows; whether they are counted in the whole run."""
WIDTH = 3


def planned(case: Case, hot_rows: int, threads: int | None = None) -> FetchPlan:
    return plan_fetches(
        case.plan, SOURCE, case.folder, EPOCHS, case.rank_hosts, hot_rows, case.whole_run, threads=threads
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.suffix != ".lock"}


@pytest.mark.parametrize(("hot_rows", "whole_run"), CACHES)
def test_rows_put_together_by_the_plan_are_the_features_bit_by_bit(case: Case, hot_rows: int, whole_run: bool) -> None:
    case = replace(case, whole_run=whole_run)
    ranks, features = case.plan.ranks, np.random.default_rng(1).standard_normal((300, WIDTH))
    host_of = case.rank_hosts[case.plan.owner]
    stores = {host: features[host_of == host] for host in set(case.hosts)}
    found = planned(case, hot_rows)
    for epoch in range(EPOCHS):
        gathers = [found.gather(epoch, rank) for rank in range(ranks)]
        serves = [found.serve(epoch, rank) for rank in range(ranks)]
        caches = []
        for rank, plan in enumerate(gathers):
            cache = np.full((len(plan.hot), WIDTH), np.nan)
            for sender, served in enumerate(serves):
                rows, slots = served.cache(rank)
                cache[slots] = stores[case.hosts[sender]][rows]
            np.testing.assert_array_equal(cache, features[plan.hot])
            caches.append(cache)
        for step in range(case.plan.steps):
            sent = [stores[case.hosts[rank]][served.rows(step)] for rank, served in enumerate(serves)]
            pieces = [
                np.split(rows, np.cumsum(served.index[step])[:-1]) for rows, served in zip(sent, serves, strict=True)
            ]
            for rank, plan in enumerate(gathers):
                arrived = np.concatenate([piece[rank] for piece in pieces])
                if step >= len(plan):
                    assert len(arrived) == 0
                    continue
                one, inputs = plan.gather(step), case.inputs(epoch, rank)[step]
                slot = np.full((len(inputs), WIDTH), np.nan)
                slot[one.local] = stores[case.hosts[rank]][one.local_rows]
                slot[one.hits] = caches[rank][one.slots]
                slot[one.pulls] = arrived
                np.testing.assert_array_equal(slot, features[inputs])
                positions = np.concatenate((one.local, one.hits, one.pulls))
                assert sorted(positions.tolist()) == list(range(len(inputs)))


@pytest.mark.parametrize(("hot_rows", "whole_run"), CACHES)
def test_plans_are_those_of_batches_that_are_sampled_anew(case: Case, hot_rows: int, whole_run: bool) -> None:
    case = replace(case, whole_run=whole_run)
    rows = rows_on_hosts(case.plan.owner, case.rank_hosts)
    found = planned(case, hot_rows)
    for epoch in range(EPOCHS):
        pulls = [case.pulls(epoch, rank, hot_rows) for rank in range(case.plan.ranks)]
        for rank in range(case.plan.ranks):
            plan = found.gather(epoch, rank)
            assert plan.hot.tolist() == case.hot(epoch, rank, hot_rows)
            assert [plan.gather(number).pulled_rows.tolist() for number in range(len(plan))] == [
                rows[missing].tolist() for missing in pulls[rank]
            ]
            served = found.serve(epoch, rank)
            assert len(served.index) == case.plan.steps
            for step in range(case.plan.steps):
                lists = [batches[step] if step < len(batches) else [] for batches in pulls]
                mine = [
                    [vertex for vertex in missing if case.sender(worker, vertex) == rank]
                    for worker, missing in enumerate(lists)
                ]
                assert served.index[step].tolist() == list(map(len, mine))
                assert served.rows(step).tolist() == [int(rows[vertex]) for missing in mine for vertex in missing]
                assert served.exchanged[step] == any(lists)


@pytest.mark.parametrize("whole_run", [False, True])
def test_the_forecast_is_what_the_plan_does(case: Case, whole_run: bool) -> None:
    case = replace(case, whole_run=whole_run)
    expected = forecast(case.plan, case.folder, case.rank_hosts, EPOCHS, SIZES, whole_run=whole_run)
    for place, size in enumerate(SIZES):
        found, exchanges = planned(case, size), 0
        route = batch_sizes(case.plan, case.folder, case.rank_hosts, EPOCHS, size, whole_run=whole_run).pulled
        for epoch in range(EPOCHS):
            serves = [found.serve(epoch, rank) for rank in range(case.plan.ranks)]
            for one in serves[1:]:
                np.testing.assert_array_equal(one.exchanged, serves[0].exchanged)  # skipped by all or by none
            exchanges += int(serves[0].exchanged.sum())
            for step in range(case.plan.steps):
                sent = np.stack([one.index[step] for one in serves])
                np.testing.assert_array_equal(sent, route.matrix(case.plan.ranks, epoch, step))
        assert exchanges == expected.rounds[place]
        totals = [found.gather(e, r).folder.details["rows"] for e in range(EPOCHS) for r in range(case.plan.ranks)]
        assert sum(rows["pulls"] for rows in totals) == expected.curve.pulled(size)
        assert sum(rows["hits"] for rows in totals) == expected.curve.hits(size)
        fills = EPOCHS if whole_run else 1  # each epoch's plan names the one cache
        assert sum(rows["hot"] for rows in totals) == fills * expected.curve.cached(size)
        inputs = [batch for e in range(EPOCHS) for r in range(case.plan.ranks) for batch in case.inputs(e, r)]
        assert sum(rows["local"] + rows["hits"] + rows["pulls"] for rows in totals) == sum(map(len, inputs))


def test_threads_and_repetition_change_no_byte(case: Case, tmp_path: Path) -> None:
    first = planned(case, 7, threads=1)
    assert (first.made, first.reused) == (2 * EPOCHS * case.plan.ranks, 0)
    before = contents(first.path)
    again = planned(case, 7)
    assert (again.made, again.reused, again.digest) == (0, first.made, first.digest)
    copy = replace(case, folder=tmp_path / "batches")
    presample(copy.plan, SOURCE, copy.folder, EPOCHS, threads=2)
    assert planned(copy, 7, threads=3).digest == first.digest
    assert contents(tmp_path / "batches" / "hot-7") == before
    assert planned(case, 8).digest != first.digest
    shutil.rmtree(first.path)


def test_a_damaged_plan_is_refused_by_readers_and_made_again(case: Case) -> None:
    first = planned(case, 9)
    file = first.path / "epoch-1" / "gather-0" / "pulls.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-5] ^= 1
    file.write_bytes(bytes(damaged))
    with pytest.raises(CorruptArtifactError, match="damaged"):
        first.gather(1, 0)
    again = planned(case, 9)
    assert (again.made, again.digest) == (1, first.digest)


def test_batches_or_plans_of_other_settings_are_refused(case: Case) -> None:
    planned(case, 11)
    with pytest.raises(ConfigError, match=r"hot-11.*made from other settings"):
        plan_fetches(case.plan, SOURCE, case.folder, EPOCHS, case.rank_hosts[::-1].copy(), 11)
    other = replace(case, plan=replace(case.plan, seed=6))
    with pytest.raises(ConfigError, match=r"rank-0 was made from other settings"):
        planned(other, 12)
    with pytest.raises(ConfigError, match="expected presampled batches"):
        plan_fetches(case.plan, SOURCE, case.folder, EPOCHS + 1, case.rank_hosts, 13)


def test_replaced_batches_take_their_plans_with_them(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "batches"
    presample(case.plan, SOURCE, folder, 1)
    plan_fetches(case.plan, SOURCE, folder, 1, case.rank_hosts, 4)
    (folder / "hot-notes").mkdir()
    presample(replace(case.plan, seed=6), SOURCE, folder, 1, force=True)
    assert [path.name for path in folder.glob("hot-*")] == ["hot-notes"]


def test_on_one_host_nobody_sends_and_every_exchange_is_skipped(case: Case, tmp_path: Path) -> None:
    alone = replace(case, folder=tmp_path / "batches", hosts=(0,) * case.plan.ranks)
    presample(alone.plan, SOURCE, alone.folder, EPOCHS)
    found = planned(alone, 5)
    for rank in range(alone.plan.ranks):
        served, plan = found.serve(0, rank), found.gather(0, rank)
        assert not served.exchanged.any()
        assert not served.index.any()
        assert len(plan.hot) == 0
        for number, inputs in enumerate(alone.inputs(0, rank)):
            one = plan.gather(number)
            assert one.local.tolist() == list(range(len(inputs)))
            assert one.local_rows.tolist() == inputs  # all vertices, ascending, are one host's


def test_a_plan_for_a_whole_run_is_of_its_epochs_alone(case: Case) -> None:
    """The rows that are kept depend on every epoch, so that a plan of others is never taken for it."""
    whole = replace(case, whole_run=True)
    found, each = planned(whole, 6), planned(case, 6)
    fewer = plan_fetches(case.plan, SOURCE, case.folder, EPOCHS - 1, case.rank_hosts, 6, True)
    assert [one.path.name for one in (found, fewer, each)] == ["hot-6-of-3-epochs", "hot-6-of-2-epochs", "hot-6"]
    assert len({found.digest, fewer.digest, each.digest}) == 3
    for rank in range(case.plan.ranks):
        for epoch in range(EPOCHS):
            assert found.gather(epoch, rank).hot.tolist() == whole.hot(0, rank, 6)
    assert any(each.gather(epoch, 0).hot.tolist() != whole.hot(0, 0, 6) for epoch in range(EPOCHS))
