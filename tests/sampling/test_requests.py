"""Sampling over a graph in parts: the whole graph's batches, and requests that a dry run foretells (DistDGL 13.7)."""

from pathlib import Path

import numpy as np
import pytest
from fetch_cases import EPOCHS, Case
from hypothesis import given, settings
from hypothesis import strategies as st
from parted_sampling import assert_equal_batches, payload_bytes, sample_together, size_bytes, structures
from sampling_graphs import csr_of, hubs, owners

from simgnn.errors import ConfigError, GraphError
from simgnn.graph.csr import CSR
from simgnn.partition.local.serving import Serving
from simgnn.sampling.batches.sizes import SampleRequests
from simgnn.sampling.draw.parted import HostStructure, Requester, structure_bytes
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.fetches.measured_sizes import requests_of, sample_requests
from simgnn.sampling.fetches.remote_rows import Sources

HOSTS = [(0,), (0, 0), (0, 1), (0, 0, 1), (0, 1, 1, 2), (0, 1, 2, 3), (0, 0, 1, 1, 2)]
FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 5, 70]), min_size=1, max_size=3).map(tuple)


@st.composite
def cases(draw: st.DrawFn) -> tuple[CSR, Serving, np.ndarray, list[np.ndarray]]:
    """A directed graph with empty rows and rows longer than a word of bits, its owners, seeds of each rank: of any
    host, or none."""
    vertices = draw(st.integers(1, 120))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    longest = draw(st.integers(0, vertices))
    rows = [random.choice(vertices, random.integers(0, longest + 1), replace=False).tolist() for _ in range(vertices)]
    serving = Serving(draw(st.sampled_from(HOSTS)))
    owner = random.integers(0, draw(st.integers(1, serving.ranks)), vertices).astype(np.int32)
    most = min(vertices, 30)
    seeds = [random.permutation(vertices)[: draw(st.integers(0, most))] for _ in range(serving.ranks)]
    return csr_of(rows), serving, owner, seeds


@settings(max_examples=80, deadline=None)
@given(cases(), FANOUTS, st.integers(0, 2**63))
def test_a_batch_does_not_show_how_the_graph_is_parted(
    case: tuple[CSR, Serving, np.ndarray, list[np.ndarray]], fanouts: tuple[int, ...], first: int
) -> None:
    csr, serving, owner, seeds = case
    batch_seeds = [first + rank for rank in range(serving.ranks)]
    together = sample_together(structures(csr, owner, serving), serving, fanouts, seeds, batch_seeds)
    whole = Sampler(csr, fanouts)
    for rank, found in enumerate(together.batches):
        expected = whole.sample(seeds[rank], batch_seeds[rank])
        assert_equal_batches(found, expected)
        asked, returned = requests_of(expected, Sources.of_worker(owner, np.array(serving.hosts), rank))
        np.testing.assert_array_equal(asked.sum(axis=1), expected.sizes[:-1])
        np.testing.assert_array_equal(returned.sum(axis=1), [len(block.sources) for block in expected.blocks])
        asked[:, rank] = returned[:, rank] = 0  # drawn from the own host's rows
        np.testing.assert_array_equal(together.asked[:, rank], asked)
        np.testing.assert_array_equal(together.returned[:, rank], returned)


def test_a_host_holds_its_own_rows_only() -> None:
    csr, serving = hubs(), Serving((0, 0, 1, 2))
    owner = owners(300, 4)
    held = structures(csr, owner, serving)
    degrees, hosts = csr.degrees(), np.array(serving.hosts)[owner]
    for host, structure in enumerate(held):
        core = np.flatnonzero(hosts == host)
        sources = [set(csr.indices[csr.indptr[v] : csr.indptr[v + 1]].tolist()) for v in core]
        n, edges, halo = len(core), int(degrees[core].sum()), len(set().union(*sources) - set(core.tolist()))
        assert structure.host == host
        assert structure.part.oid[:n].tolist() == core.tolist()
        # docs/systems/distdgl.md, and both tables of ids
        assert size_bytes(structure) == 8 * (n + 1) + 4 * edges + 8 * halo + 8 * (n + halo) + 8 * 4 + 16 * 300
        assert structure_bytes(csr, owner, serving)[host] == size_bytes(structure)
        again = HostStructure.from_arrays(host, structure.arrays())
        assert (again.part.first, again.host, size_bytes(again)) == (structure.part.first, host, size_bytes(structure))
        with pytest.raises(ValueError, match="read-only"):
            structure.part.indices[0] = 1


def test_a_host_draws_from_its_own_rows_only() -> None:
    serving = Serving((0, 1))
    held = structures(hubs(), owners(300, 2), serving)
    rows = held[0].part.core
    for lids, counts in (([rows], [0, 1]), ([rows - 1, rows], [2, 0]), ([-1], [1, 0])):
        with pytest.raises(GraphError, match=rf"host 0 holds the rows 0\.\.{rows - 1} .*different partitions"):
            held[0].serve(np.array(lids), counts, [1, 2], 1, 3)


def test_answers_of_another_partition_are_refused() -> None:
    """Nothing looks ids up beyond the tables: what does not add up is told."""
    serving = Serving((0, 1))
    held = structures(hubs(), owners(300, 2), serving)
    for degrees, neighbours in (([1], [0]), ([2, 0], [3]), ([1, 1], [3, 300]), ([1, 1], [-1, 3])):
        requester = Requester(held[0], serving.servers[0], 2, (3,))
        requester.begin(np.flatnonzero(owners(300, 2) == 1)[:2], 0)
        asked = requester.ask()
        assert len(asked.away) == 2
        with pytest.raises(GraphError, match=r"hop 1: .* were asked for; .*different partitions"):
            requester.stitch(asked, requester.draw(asked), np.array(degrees, np.int32), np.array(neighbours))


@pytest.fixture(scope="module")
def requests(case: Case) -> SampleRequests:
    return sample_requests(case.plan, case.folder, case.rank_hosts, EPOCHS)


def _slow(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Asked and returned, one vertex of a frontier at a time."""
    plan, ranks = case.plan, len(case.hosts)
    asked = np.zeros((len(plan.fanouts), ranks, ranks, EPOCHS, plan.steps), np.int64)
    returned = np.zeros_like(asked)
    degrees, sampler = plan.csr.degrees(), Sampler(plan.csr, plan.fanouts)
    for epoch in range(EPOCHS):
        for worker in range(ranks):
            turn = plan.epoch(worker, epoch)
            for number in range(len(turn)):
                batch = turn.sample(number, sampler)
                for hop, fanout in enumerate(plan.fanouts):
                    for vertex in batch.vertices[: batch.sizes[hop]].tolist():
                        server = case.sender(worker, vertex) if case.far(worker, vertex) else worker
                        asked[hop, worker, server, epoch, number] += 1
                        returned[hop, worker, server, epoch, number] += min(fanout, degrees[vertex])
    return asked, returned


def test_requests_of_a_run_are_those_counted_vertex_by_vertex(case: Case, requests: SampleRequests) -> None:
    asked, returned = _slow(case)
    np.testing.assert_array_equal(requests.asked, asked)
    np.testing.assert_array_equal(requests.returned, returned)
    assert not asked[:, 1].any()  # without training vertices: it asks nobody
    assert asked[:, :, 1].any()  # and is asked


def test_routes_and_bytes_are_the_formula(case: Case, requests: SampleRequests) -> None:
    ranks, steps = len(case.hosts), case.plan.steps
    total = np.zeros((ranks, ranks, EPOCHS, steps), np.int64)
    for a in range(ranks):
        for o in range(ranks):
            if a != o:
                n, c = requests.asked[:, a, o].sum(axis=0), requests.returned[:, a, o].sum(axis=0)
                total[a, o] += 8 * n
                total[o, a] += 4 * n + 8 * c
    np.testing.assert_array_equal(payload_bytes(requests), total)
    for epoch in range(EPOCHS):
        for step in range(steps):
            bytes_sent = np.zeros((ranks, ranks), np.int64)
            for hop in range(1, requests.hops + 1):
                answering = requests.answering(hop).matrix(ranks, epoch, step)
                bytes_sent += 8 * answering.T + 4 * answering
                bytes_sent += 8 * requests.returning(hop).matrix(ranks, epoch, step)
            np.testing.assert_array_equal(bytes_sent, total[:, :, epoch, step])


def test_every_row_is_drawn_on_its_own_host(case: Case, requests: SampleRequests) -> None:
    for hop in range(1, requests.hops + 1):
        routes = requests.answering(hop), requests.returning(hop)
        for mine, route, dense in zip(requests.drawn(hop), routes, (requests.asked, requests.returned), strict=True):
            np.testing.assert_array_equal(mine.sum(axis=0) + route.rows.sum(axis=0), dense[hop - 1].sum(axis=(0, 1)))
            assert (route.source != route.target).all()


def test_one_host_asks_nobody(case: Case) -> None:
    alone = sample_requests(case.plan, case.folder, np.zeros(len(case.hosts), np.int64), EPOCHS)
    assert not payload_bytes(alone).any()
    assert len(alone.answering(1).source) == len(alone.returning(1).source) == 0
    assert alone.drawn(1)[0].sum() == sum(map(len, case.plan.workers)) * EPOCHS


def test_missing_batches_are_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="simgnn sample"):
        sample_requests(case.plan, tmp_path, case.rank_hosts, EPOCHS)
