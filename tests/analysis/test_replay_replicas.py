"""What masters published, where vertices have other numbers of replicas: the law of a made-up run is found again."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.analysis.replay.activity import Recording, Replay, replay
from simgnn.analysis.replay.row_fractions import fitted_exponents, limits, woken_share
from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import GraphFacts
from simgnn.partition.local.vertex_cut import BY_HOSTS, LEVELS
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray, Route
from simgnn.record.activity import decisions_in

EPOCHS, VERTICES = 6, 4000
MOVED = np.array([1.0, 0.7, 0.4, 0.2, 0.05, 0.0])
"""Share of mirrors that send in each epoch."""


def statistics(ranks: int) -> PartitionStats:
    """Vertices on some ranks each, the first of a random order being the master's."""
    draw = np.random.default_rng(ranks)
    mirrors = np.zeros((ranks, ranks), dtype=np.int64)
    counted: dict[tuple[int, int, int], int] = {}
    shared = np.zeros(ranks, dtype=np.int64)
    for _ in range(VERTICES):
        master, *others = draw.permutation(ranks)[: draw.integers(1, ranks + 1)].tolist()
        shared[master] += bool(others)
        for rank in others:
            mirrors[master, rank] += 1
            counted[master, rank, len(others) + 1] = counted.get((master, rank, len(others) + 1), 0) + 1
    halo = Route.from_matrix(mirrors)
    pair = {ends: place for place, ends in enumerate(zip(halo.source.tolist(), halo.target.tolist(), strict=True))}
    histogram = np.array(sorted((pair[i, j], r, count) for (i, j, r), count in counted.items()), dtype=np.int64)
    rows, edges = np.full(ranks, VERTICES // ranks), np.full(ranks, 40_000 // ranks)
    facts = GraphFacts("g", int(rows.sum()), int(edges.sum()), 12, None, 4, False, 100 * ranks, 10, 10)
    tables = {"train_rows": np.full(ranks, 100), "shared_masters": shared, "mirrors/histogram": histogram}
    return PartitionStats(facts, "vertex-cut", np.zeros(ranks, int), rows, edges, halo, f"of {ranks}", tables)


def on_hosts(ranks: int) -> PartitionStats:
    """Vertices on some ranks each, two ranks a host: one row a vertex travels to each other host."""
    draw, host = np.random.default_rng(ranks), np.arange(ranks) // 2
    mirrors, across, within = (np.zeros((ranks, ranks), dtype=np.int64) for _ in range(3))
    shared, by_hosts = np.zeros(ranks, dtype=np.int64), Counter[tuple[int, int, int]]()
    for _ in range(VERTICES):
        master, *others = draw.permutation(ranks)[: draw.integers(1, ranks + 1)].tolist()
        shared[master] += bool(others)
        stands = {host[master]: master}
        for rank in others:
            mirrors[master, rank] += 1
            within[stands.setdefault(host[rank], rank), rank] += stands[host[rank]] != rank
        for rank in list(stands.values())[1:]:
            across[master, rank] += 1
            by_hosts[master, rank, len(stands)] += 1
    levels = {
        name: np.array([(i, j, matrix[i, j]) for i, j in np.argwhere(matrix).tolist()])
        for name, matrix in zip(LEVELS, (across, within), strict=True)
    }
    counted = {BY_HOSTS: np.array([(*key, rows) for key, rows in sorted(by_hosts.items())]), "shared_masters": shared}
    stats = statistics(ranks)
    tables = {**stats.tables, **levels, **counted}
    return replace(stats, hosts=host, halo=Route.from_matrix(mirrors), tables=tables, digest=f"hosts of {ranks}")


def planned(stats: PartitionStats) -> Program:
    exchange = "direct" if stats.hosts.max() == 0 else "host-aggregated"
    settings = ["model.hidden=8", f"communication.exchange={exchange}"]
    return plan(load_experiment("cdfgnn", settings), stats).program


def recorded(program: Program, exponent: float) -> Recording:
    """A run in which copies of a vertex with r replicas move as if they were r**exponent that move by themselves."""
    decisions = dict[str, IntArray]()
    woken = {r: 1 - (1 - MOVED) ** (r**exponent) for r in program.publications[0].rows(program.sizes)}
    by_replicas = program.publications[0].rows(program.sizes)
    published = sum(route.matrix(program.ranks)[:, :, None] * woken[r] for r, route in by_replicas.items())
    for one in program.publications:
        gathered = limits(program, one.gathered)
        decisions[one.gathered] = np.floor(gathered[:, :, None] * MOVED + 0.5).astype(np.int64)[..., None]
        decisions[one.published] = np.floor(published + 0.5).astype(np.int64)[..., None]
        decisions[one.active] = np.zeros((program.ranks, EPOCHS, 1), dtype=np.int64)
    for name in decisions_in(program) - set(decisions):  # the top of the backward pass, and what arrives
        shape = (program.ranks,) * (1 + name.endswith("/rows"))
        decisions[name] = np.zeros((*shape, EPOCHS, 1), dtype=np.int64)
    return Recording(Path("made-up"), program, frozenset({"recorded"}), decisions)


def carried(record: Recording, here: Program, digest: str = "another") -> Replay:
    return replay(record, here, decisions_in(here), frozenset({digest}), EPOCHS, 0, None)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("there", "here"), [(3, 6), (6, 3), (2, 5), (4, 4)])
def test_the_law_of_a_record_holds_on_other_ranks(there: int, here: int, exponent: float) -> None:
    record, program = recorded(planned(statistics(there)), exponent), planned(statistics(here))
    found = carried(record, program)
    assert found.transferred
    assert not any("numbers of replicas" in note for note in found.notes)
    # the last epoch has no mirror that sends, and so tells nothing of replicas
    law = {r: 1 - (1 - MOVED[:-1]) ** (r**exponent) for r in program.publications[0].rows(program.sizes)}
    rows = sum(route.rows.sum() * law[r] for r, route in program.publications[0].rows(program.sizes).items())
    masters = sum(
        route.rows.sum() / (r - 1) * law[r] for r, route in program.publications[0].rows(program.sizes).items()
    )
    assert len(program.publications) == 3
    for one in program.publications:
        published = found.activity[one.published][..., 0].sum(axis=(0, 1))
        # rounded once for each pair there and here
        np.testing.assert_allclose(published[:-1], rows, atol=here**2, rtol=0.02)
        assert published[-1] == 0
        np.testing.assert_allclose(found.activity[one.active][:, :-1, 0].sum(axis=0), masters, atol=here**2, rtol=0.02)
        arrived = found.activity[one.published.replace("/rows", "/arrived")]
        assert np.array_equal(arrived, found.activity[one.published].sum(axis=0))


@pytest.mark.parametrize("exponent", [0.0, 1.0])
@pytest.mark.parametrize(("there", "here"), [(4, 8), (8, 4)])
def test_the_law_holds_of_hosts_that_add_up_first(there: int, here: int, exponent: float) -> None:
    stats = on_hosts(here)
    record, program = recorded(planned(on_hosts(there)), exponent), planned(stats)
    found = carried(record, program)
    assert not any("without regard to" in note for note in found.notes)
    routes = program.publications[0].rows(program.sizes)
    assert sorted(routes) == list(range(2, here // 2 + 1))
    law = {h: 1 - (1 - MOVED[:-1]) ** (h**exponent) for h in (1, *routes)}
    rows = sum(route.rows.sum() * law[h] for h, route in routes.items())
    masters = {h: route.rows.sum() / (h - 1) for h, route in routes.items()}
    # those that lie on their host alone publish nothing to others, but are woken too
    masters[1] = stats.tables["shared_masters"].sum() - sum(masters.values())
    assert masters[1] > 0
    woken = sum(count * law[h] for h, count in masters.items())
    assert len(program.publications) == 3
    for one in program.publications:
        assert one.tally.endswith("/across/hosts")
        published = found.activity[one.published][..., :-1, 0].sum(axis=(0, 1))
        np.testing.assert_allclose(published, rows, atol=here**2, rtol=0.02)
        np.testing.assert_allclose(found.activity[one.active][:, :-1, 0].sum(axis=0), woken, atol=here**2, rtol=0.02)


def test_counts_by_hosts_are_used_where_they_were_recorded() -> None:
    program, here = planned(on_hosts(8)), planned(on_hosts(4))
    law, one = recorded(program, 1.0), program.publications[1]
    shares = {h: np.linspace(1.0, 0.5 / h, EPOCHS) for h in range(1, 5)}
    tallies, masters = dict[str, IntArray](), on_hosts(8).tables["shared_masters"].copy()
    for h, route in program.publications[0].rows(program.sizes).items():
        counts = route.matrix(8).sum(axis=1) // (h - 1)
        masters -= counts
        tallies[f"{one.tally}-{h}"] = np.floor(counts[:, None] * shares[h] + 0.5).astype(np.int64)[..., None]
    tallies[f"{one.tally}-1"] = np.floor(masters[:, None] * shares[1] + 0.5).astype(np.int64)[..., None]
    found = carried(replace(law, decisions={**law.decisions, **tallies}), here).activity
    rows = {h: route.rows.sum() for h, route in here.publications[0].rows(here.sizes).items()}
    published = sum(rows[h] * shares[h] for h in rows)
    np.testing.assert_allclose(found[one.published][..., 0].sum(axis=(0, 1)), published, atol=4**2, rtol=0.01)
    alone = on_hosts(4).tables["shared_masters"].sum() - sum(rows[h] / (h - 1) for h in rows)
    woken = alone * shares[1] + sum(rows[h] / (h - 1) * shares[h] for h in rows)
    np.testing.assert_allclose(found[one.active][..., 0].sum(axis=0), woken, atol=4**2, rtol=0.01)


def test_more_replicas_are_published_more_often_than_equal_fractions_say() -> None:
    """What was wrong before: one fraction for all vertices."""
    record, program = recorded(planned(statistics(2)), 1.0), planned(statistics(6))
    one = program.publications[0]
    there = record.decisions[one.published][..., 0].sum(axis=(0, 1)) / statistics(2).halo.rows.sum()
    here = carried(record, program).activity[one.published][..., 0].sum(axis=(0, 1)) / statistics(6).halo.rows.sum()
    assert here[0] == there[0] == 1
    assert np.all(here[1:-1] > there[1:-1] + 0.02)


def test_shares_that_were_recorded_by_numbers_of_replicas_are_used_as_they_are() -> None:
    program, here = planned(statistics(6)), planned(statistics(4))
    law, one = recorded(program, 1.0), program.publications[1]
    shares = {r: np.linspace(1.0, 1.0 / r, EPOCHS) for r in range(2, 7)}
    tallies = dict[str, IntArray]()
    for r, route in program.publications[0].rows(program.sizes).items():
        rows = route.matrix(6).sum(axis=1)
        counts = np.floor((rows // (r - 1))[:, None] * shares[r] + 0.5).astype(np.int64)
        counts[rows == 0] = -1  # a rank without such vertices tells nothing
        tallies[f"{one.tally}-{r}"] = counts[..., None]
    record = replace(law, decisions={**law.decisions, **tallies})
    found = carried(record, here).activity[one.published][..., 0].sum(axis=(0, 1))
    expected = sum(route.rows.sum() * shares[r] for r, route in here.publications[0].rows(here.sizes).items())
    np.testing.assert_allclose(found, expected, atol=4**2, rtol=0.01)
    # the other syncs have no tallies, so the law holds for them
    other = program.publications[0].published
    assert np.array_equal(carried(record, here).activity[other], carried(law, here).activity[other])


def test_each_pair_publishes_by_the_replicas_of_its_own_vertices() -> None:
    """Ranks 0 and 1 share vertices of two replicas, rank 0 shares others with all: the second go out more often."""
    whole = statistics(4)
    record = recorded(planned(whole), 1.0)
    mirrors = np.zeros((4, 4), dtype=np.int64)
    mirrors[0] = [0, 900, 600, 600]
    halo = Route.from_matrix(mirrors)
    # 300 of the first pair have two replicas, 600 of each pair four
    table = np.array([[0, 2, 300], [0, 4, 600], [1, 4, 600], [2, 4, 600]])
    tables = {**whole.tables, "mirrors/histogram": table, "shared_masters": np.array([900, 0, 0, 0])}
    program = planned(replace(whole, halo=halo, tables=tables, digest="uneven"))
    found = carried(record, program)
    law = {r: (1 - (1 - MOVED[:-1]) ** r) for r in (2, 4)}
    for one in program.publications:
        rows = found.activity[one.published][0, :, :-1, 0]
        np.testing.assert_allclose(rows[1], 300 * law[2] + 600 * law[4], rtol=0.02, atol=2)
        for other in (2, 3):
            np.testing.assert_allclose(rows[other], 600 * law[4], rtol=0.02, atol=2)
        assert np.all(found.activity[one.published][..., 0] <= mirrors[:, :, None])


def test_without_numbers_of_replicas_fractions_are_equal_and_it_says_so() -> None:
    stats = statistics(5)
    silent = replace(stats, tables={name: t for name, t in stats.tables.items() if name != "mirrors/histogram"})
    record, program = recorded(planned(statistics(3)), 1.0), planned(silent)
    found = carried(record, program)
    told = "without regard to numbers of replicas, which the statistics of this partition do not have"
    assert told in found.notes[-1]
    unheard = replace(recorded(planned(statistics(5)), 1.0), program=planned(silent))
    both = carried(unheard, program).notes[-1]
    assert both.endswith("which the statistics of the record and this partition do not have")
    hosts = on_hosts(4)
    unnamed = replace(hosts, tables={name: table for name, table in hosts.tables.items() if name != BY_HOSTS})
    elsewhere = carried(recorded(planned(on_hosts(6)), 1.0), planned(unnamed))
    assert "without regard to numbers of hosts" in elsewhere.notes[-1]
    name = program.publications[0].published
    share = record.decisions[name][..., 0].sum(axis=(0, 1)) / statistics(3).halo.rows.sum()
    np.testing.assert_allclose(found.activity[name][..., 0], stats.halo.matrix(5)[:, :, None] * share, atol=1)


def test_the_same_partition_needs_no_law() -> None:
    program = planned(statistics(3))
    record = recorded(program, 0.5)
    found = carried(record, program, "recorded")
    assert not found.transferred
    assert all(np.array_equal(values, record.decisions[name]) for name, values in found.activity.items())


@given(
    moved=st.floats(0.01, 0.9),
    exponent=st.floats(0, 3),
    rows=st.dictionaries(st.integers(2, 40), st.integers(1, 10**6), min_size=1, max_size=5),
)
def test_the_exponent_gives_the_share_back(moved: float, exponent: float, rows: dict[int, int]) -> None:
    f, total = np.array([moved]), sum(rows.values())
    sent = np.array([sum(n * (1 - (1 - moved) ** (r**exponent)) for r, n in rows.items()) / total])
    found = fitted_exponents(f, sent, rows)
    again = sum(n * woken_share(f, sent, found, r) for r, n in rows.items()) / total
    np.testing.assert_allclose(again, sent, atol=1e-9)
    shares = [float(woken_share(f, sent, found, r)[0]) for r in sorted(rows)]
    assert shares == sorted(shares)
    assert shares[0] >= moved - 1e-9
