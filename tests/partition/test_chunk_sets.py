"""Chunks of partitions: sets, volumes, slots, request lists and edges by slot, against their definitions, exactly."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from chunk_reference import Reference, Sets, orders_of, total
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_graphs import graph_of, graphs, random_graph

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.hardware.price.transfer_rates import TransferRates
from simgnn.partition.chunks.needed_rows import ChunkedGraph, measure_order
from simgnn.partition.chunks.orders import CANDIDATES
from simgnn.partition.chunks.rank_chunks import RankChunks, rank_arrays, slots_at_owners
from simgnn.partition.chunks.reorganise import Reorganised, reorganise
from simgnn.partition.chunks.volumes import PeerRows

RATES = TransferRates(host_to_device_bytes_per_s=3e9, device_to_device_bytes_per_s=2e10, reuse_bytes_per_s=7e10)


def owners(graph: Graph, ranks: int, seed: int) -> np.ndarray:
    """A random owner of each vertex; no rank is empty."""
    random = np.random.default_rng(seed)
    owner = random.integers(0, ranks, graph.vertices).astype(np.int32)
    owner[random.permutation(graph.vertices)[:ranks]] = np.arange(ranks)
    return owner


def divided(
    graph: Graph, owner: np.ndarray, ranks: int, chunks: int, weight: float = 1.0, with_self: bool = True
) -> tuple[ChunkedGraph, Reference]:
    arguments = graph.csr, owner, ranks, chunks, weight, with_self
    return ChunkedGraph.of(*arguments), Reference.of(*arguments)


def ranks_of(graph: ChunkedGraph, found: Reorganised) -> list[RankChunks]:
    """The batches of all ranks."""
    arrays: dict[int, dict[str, Any]] = {i: rank_arrays(graph, i, found.transition) for i in range(graph.ranks)}
    return [RankChunks(i, {**arrays[i], "at_owner": slots_at_owners(arrays, i)}) for i in range(graph.ranks)]


def check(graph: Graph, ranks: int, chunks: int, with_self: bool, peer_rows: PeerRows, seed: int = 0) -> None:
    """Compare everything with the definitions, and check the identities among the sets."""
    owner = owners(graph, ranks, seed)
    chunked, reference = divided(graph, owner, ranks, chunks, with_self=with_self)
    found = reorganise(chunked, CANDIDATES, RATES, peer_rows)
    check_orders(reference, found, peer_rows)
    ordered = chunked.ordered(found.order)
    sets = Sets.of(reference, found.order.tolist())
    check_volumes(ordered, found, sets, reference)
    check_identities(reference, sets)
    batches = ranks_of(ordered, found)
    for rank in batches:
        check_rank(graph, rank, reference, sets, found.order.tolist(), batches)


def check_orders(reference: Reference, found: Reorganised, peer_rows: PeerRows) -> None:
    expected = {name: Sets.of(reference, order) for name, order in orders_of(reference).items()}
    assert list(found.costs) == list(CANDIDATES)
    for name, sets in expected.items():
        assert (found.costs[name].v_p2p, found.costs[name].v_ru) == (sets.v_p2p, sets.v_ru)
        assert found.costs[name].cost == pytest.approx(sets.cost(RATES, peer_rows), rel=1e-12)
        assert (sets.v_ori, total(sets.remote)) == (expected["initial"].v_ori, total(expected["initial"].remote))
    costs = {name: found.costs[name].cost for name in CANDIDATES}
    assert found.chosen == min(CANDIDATES, key=lambda name: costs[name])
    assert found.order.tolist() == orders_of(reference)[found.chosen]
    assert costs[found.chosen] <= costs["initial"]
    for row in found.order.tolist():
        assert sorted(row) == list(range(reference.chunks))
    by_batch = {
        name: {tuple(column) for column in zip(*order, strict=True)} for name, order in orders_of(reference).items()
    }
    assert by_batch["p1"] == by_batch["p1p2"], "phase 2 moves whole batches"


def check_volumes(graph: ChunkedGraph, found: Reorganised, sets: Sets, reference: Reference) -> None:
    measured = measure_order(graph, found.transition)
    volumes = measured.volumes
    assert volumes.as_dict() == {
        "v_ori": sets.v_ori, "v_reuse_only": sets.v_reuse_only, "v_p2p": sets.v_p2p, "v_ru": sets.v_ru,
        "v_dd": total(sets.remote), "v_ddr": total(sets.remote_new),
    }  # fmt: skip
    assert measured.buffer_rows.tolist() == [max(map(len, batches)) for batches in sets.held]
    assert volumes.v_ru <= volumes.v_p2p <= volumes.v_ori
    assert volumes.v_ru <= volumes.v_reuse_only <= volumes.v_ori
    assert volumes.v_ddr <= volumes.v_dd
    distinct = set().union(*(batch for batches in sets.needed for batch in batches))
    assert volumes.v_ru >= len(distinct)
    assert not reference.with_self or len(distinct) == reference.csr.rows
    idle_loads = sum(
        len(transition - needed)
        for transitions, needs in zip(sets.transition, sets.needed, strict=True)
        for transition, needed in zip(transitions, needs, strict=True)
    )
    assert volumes.v_dd == volumes.v_ori - volumes.v_p2p + idle_loads
    if graph.ranks == 1:
        assert (volumes.v_ori, volumes.v_dd) == (volumes.v_p2p, 0)
    if graph.chunks == 1:
        assert volumes.v_ru == volumes.v_p2p
        assert found.chosen == "initial"
    assert volumes.v_p2p + volumes.v_dd >= volumes.v_ori


def check_identities(reference: Reference, sets: Sets) -> None:
    for j in range(reference.chunks):
        union = set().union(*(sets.needed[i][j] for i in range(reference.ranks)))
        assert sum(len(sets.transition[i][j]) for i in range(reference.ranks)) == len(union)
    assert total(sets.evicted) == total(sets.loaded)


def check_rank(
    graph: Graph,
    rank: RankChunks,
    reference: Reference,
    sets: Sets,
    order: list[list[int]],
    all_ranks: list[RankChunks],
) -> None:
    i, slots = rank.rank, sets.slots(rank.rank)
    assert rank.buffer_rows == max(map(len, sets.held[i])) == 1 + max(max(one.values(), default=-1) for one in slots)
    own = range(reference.first[i], reference.first[i + 1])
    assert rank.vertices.tolist() == [reference.vertex[gid] for gid in own]
    rows, before, edges = [], {}, 0
    for j, batch in enumerate(rank.batches()):
        chunk = reference.chunk[i][order[i][j]]
        assert [own[row] for row in range(batch.rows.start, batch.rows.stop)] == chunk
        assert len(chunk) > 0
        rows += chunk
        held = batch.held.tolist()
        assert held == sorted(sets.held[i][j])
        assert batch.transition.tolist() == sorted(sets.transition[i][j])
        assert set(held[batch.own]) <= set(own)
        assert batch.needed.tolist() == sorted(sets.needed[i][j])
        assert batch.remote_rows.tolist() == sorted(sets.remote[i][j])
        for places, expected in (
            (batch.loaded, sets.loaded), (batch.reused, sets.reused), (batch.evicted, sets.evicted),
        ):  # fmt: skip
            assert batch.transition[places].tolist() == sorted(expected[i][j])
        kept = sets.reused[i][j + 1] if j + 1 < rank.chunks else set()
        assert batch.transition[batch.kept].tolist() == sorted(kept)
        here = dict(zip(held, batch.slots.tolist(), strict=True))
        assert here == slots[j]
        assert len(set(here.values())) == len(here)
        assert all(here[gid] == slot for gid, slot in before.items() if gid in here), "rows that stay are not moved"
        before = here
        check_requests(batch, j, i, reference, sets, here, all_ranks)
        assert batch.csr.columns == rank.buffer_rows
        for row, gid in enumerate(chunk):
            sources = reference.sources(gid)
            indices = batch.csr.indices[batch.csr.indptr[row] : batch.csr.indptr[row + 1]]
            assert indices.tolist() == [here[source] for source in sources]
            if graph.csr.weights is not None:
                v = reference.vertex[gid]
                expected_weights = graph.csr.weights[graph.csr.indptr[v] : graph.csr.indptr[v + 1]]
                part = batch.csr.weights[batch.csr.indptr[row] : batch.csr.indptr[row + 1]]  # type: ignore[index]
                assert part.tolist() == expected_weights.tolist()
        edges += batch.csr.edges
    assert sorted(rows) == list(own)
    assert edges == sum(len(reference.sources(gid)) for gid in own)


def check_requests(
    batch: Any, j: int, i: int, reference: Reference, sets: Sets, here: dict[int, int], all_ranks: list[RankChunks]
) -> None:
    for owner in range(reference.ranks):
        theirs = all_ranks[owner].batch(j)
        there = dict(zip(theirs.held.tolist(), theirs.slots.tolist(), strict=True))
        for way, wanted in ((batch.forward, sets.remote_new), (batch.backward, sets.remote)):
            rows = sorted(gid for gid in wanted[i][j] if gid in reference.own(owner))
            at_owner, local = way(owner)
            assert local.tolist() == [here[gid] for gid in rows]
            assert at_owner.tolist() == [there[gid] for gid in rows]


CASES = [(1, 1), (1, 5), (2, 1), (2, 3), (3, 8), (4, 4)]


@pytest.mark.parametrize("peer_rows", ["eq4", "exact"])
@pytest.mark.parametrize("with_self", [True, False])
@pytest.mark.parametrize(("ranks", "chunks"), CASES)
def test_sets_and_lists_are_those_of_the_definitions(
    ranks: int, chunks: int, with_self: bool, peer_rows: PeerRows
) -> None:
    check(random_graph(90, 260, seed=ranks), ranks, chunks, with_self, peer_rows)


def test_directed_and_weighted_graphs_and_more_batches_than_a_word_has_bits() -> None:
    check(random_graph(120, 300, seed=3, symmetric=False), 2, 5, True, "eq4")
    check(random_graph(170, 500, seed=4), 2, 70, True, "exact")
    graph = random_graph(80, 200, seed=5)
    weights = np.random.default_rng(0).random(graph.edges)
    object.__setattr__(graph.csr, "weights", weights)
    check(graph, 3, 4, True, "eq4")


def test_a_graph_without_edges_and_rows_that_are_loaded_for_others_alone() -> None:
    check(graph_of(np.empty((0, 2), dtype=np.int64), 12), 3, 3, True, "eq4")
    check(graph_of(np.empty((0, 2), dtype=np.int64), 12), 3, 3, False, "eq4")
    star = graph_of(np.array([[0, leaf] for leaf in range(1, 20)]), 20, symmetric=False)
    check(star, 2, 4, False, "exact")


CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, int, int, bool, PeerRows, int]:
    """A graph with ranks and chunks that suit it."""
    graph = draw(graphs(max_vertices=24))
    ranks = draw(st.integers(1, min(4, graph.vertices)))
    seed = draw(st.integers(0, 99))
    fewest = int(np.bincount(owners(graph, ranks, seed), minlength=ranks).min())
    chunks = draw(st.integers(1, min(fewest, 8)))
    return graph, ranks, chunks, draw(st.booleans()), draw(st.sampled_from(("eq4", "exact"))), seed


@settings(CALM, max_examples=40)
@given(cases())
def test_random_graphs(case: tuple[Graph, int, int, bool, PeerRows, int]) -> None:
    check(*case)


@pytest.mark.slow
@settings(CALM, max_examples=500)
@given(cases())
def test_many_random_graphs(case: tuple[Graph, int, int, bool, PeerRows, int]) -> None:
    check(*case)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_more_chunks_in_their_initial_order_need_no_larger_buffer_and_no_fewer_rows(ranks: int) -> None:
    graph = random_graph(3000, 12000, seed=1)
    owner, before = owners(graph, ranks, 0), None
    for chunks in (1, 2, 4, 8, 16, 32):
        chunked, _ = divided(graph, owner, ranks, chunks)
        bounds = [set(row) for row in chunked.bounds.tolist()]
        found = reorganise(chunked, ("initial",), None, "eq4")
        measured = measure_order(chunked, found.transition)
        if before is not None:
            assert all(coarse <= fine for coarse, fine in zip(before[0], bounds, strict=True))
            assert (measured.buffer_rows <= before[1].buffer_rows).all()
            assert measured.volumes.v_ori >= before[1].volumes.v_ori
            largest = [int(np.diff(one.bounds).max()) for one in (chunked, before[2])]
            assert largest[0] <= largest[1]
        before = bounds, measured, chunked


def test_chunks_have_equal_work_and_at_least_a_vertex() -> None:
    graph = random_graph(2000, 9000)
    chunked = ChunkedGraph.of(graph.csr, owners(graph, 2, 0), 2, 8, 1.0, True)
    for rank in range(2):
        work = graph.csr.degrees()[chunked.ids.core(rank)] + 1
        loads = [work[begin:end].sum() for begin, end in pairwise(chunked.bounds[rank].tolist())]
        assert max(loads) - min(loads) <= 2 * work.max()
    hub = graph_of(np.array([[leaf, 0] for leaf in range(1, 20)]), 20, symmetric=False)
    chunked = ChunkedGraph.of(hub.csr, np.zeros(20, np.int32), 1, 4, 0.0, True)
    assert chunked.bounds.tolist() == [[0, 1, 2, 3, 20]]
    bare = graph_of(np.empty((0, 2), dtype=np.int64), 7)
    chunked = ChunkedGraph.of(bare.csr, np.zeros(7, np.int32), 1, 3, 0.0, True)
    assert chunked.bounds.tolist() == [[0, 1, 2, 7]], "no work at all"


def test_the_published_greedy_order_alone_may_cost_more_than_the_initial_one() -> None:
    worse = 0
    for seed in range(20):
        graph = random_graph(120, 360, seed=seed)
        chunked, _ = divided(graph, owners(graph, 3, seed), 3, 6)
        found = reorganise(chunked, CANDIDATES, RATES, "eq4")
        raw, initial, chosen = (found.costs[name].cost or 0.0 for name in ("p1p2", "initial", found.chosen))
        worse += raw > initial
        assert chosen <= initial
    assert worse > 0


def test_more_chunks_than_vertices_and_missing_rates_are_refused() -> None:
    graph = random_graph(40, 90)
    owner = np.zeros(40, np.int32)
    owner[:5] = 1
    with pytest.raises(ConfigError, match=r"partition\.chunks: got 6, expected at most 5, the vertices of rank 1"):
        ChunkedGraph.of(graph.csr, owner, 2, 6, 1.0, True)
    chunked = ChunkedGraph.of(graph.csr, owner, 2, 3, 1.0, True)
    with pytest.raises(ConfigError, match=r"partition\.rates: missing"):
        reorganise(chunked, CANDIDATES, None, "eq4")
    alone = TransferRates(host_to_device_bytes_per_s=1.0, reuse_bytes_per_s=1.0)
    with pytest.raises(ConfigError, match=r"partition\.rates\.device_to_device_bytes_per_s: missing"):
        reorganise(chunked, CANDIDATES, alone, "eq4")
    one = ChunkedGraph.of(graph.csr, np.zeros(40, np.int32), 1, 3, 1.0, True)
    assert (
        reorganise(one, CANDIDATES, alone, "eq4").costs["p1"]
        == reorganise(one, CANDIDATES, alone, "eq4").costs["initial"]
    )
