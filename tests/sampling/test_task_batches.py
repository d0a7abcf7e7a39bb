"""A batch drawn by tasks is that of the one-shot sampler, whatever chunks, threads, ranks and delays."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR
from simgnn.partition.local.serving import Serving
from simgnn.sampling.draw.pairs import negatives, positives
from simgnn.sampling.draw.sampler import Batch, Sampler
from simgnn.sampling.draw.seeds import hash64
from simgnn.sampling.tasks.batch import BatchMaker, TaskBatch, room_bytes
from simgnn.sampling.tasks.graph import TaskGraph
from simgnn.sampling.tasks.pool import TaskPool
from simgnn.sampling.tasks.requests import GROUP_BYTES, RowRequest, SampleReply, SampleRequest
from simgnn.sampling.tasks.rows import RowTable
from simgnn.sampling.tasks.structure import WholeStructure
from tests.sampling.parted_sampling import assert_equal_batches
from tests.sampling.sampling_graphs import csr_of, hubs, owners
from tests.sampling.task_worlds import World, delayed

FANOUTS = (4, 3)
NEGATIVES = 2
HOSTS = {1: (0,), 2: (0, 1), 4: (0, 0, 1, 1), 5: (0, 0, 1, 1, 2)}


def features_of(csr: CSR) -> NDArray[np.float32]:
    return np.random.default_rng(7).standard_normal((csr.rows, 3), dtype=np.float32)


def expected(csr: CSR, seeds: NDArray[np.int64], batch_seed: int, unsupervised: bool) -> list[Batch]:
    """Every branch by the one-shot sampler."""
    sampler = Sampler(csr, FANOUTS)
    found = [sampler.sample(seeds, batch_seed)]
    if unsupervised:
        rows = csr.indptr, csr.indices, None, seeds, batch_seed
        pairs = (("pos-br", positives(*rows)), ("neg-br", negatives(*rows, NEGATIVES, csr.rows)))
        found += [sampler.sample(np.unique(drawn[drawn >= 0]), hash64(tag, batch_seed)) for tag, drawn in pairs]
    return found


def check(made: TaskBatch, csr: CSR, features: NDArray[np.float32], seeds: NDArray[np.int64], batch_seed: int) -> None:
    unsupervised = made.positive is not None
    for mine, whole in zip(made.branches, expected(csr, seeds, batch_seed, unsupervised), strict=True):
        assert_equal_batches(mine, whole)
    assert made.inputs is not None
    for branch, places in zip(made.branches, made.inputs.row_of, strict=True):
        np.testing.assert_array_equal(made.inputs.rows[places], features[branch.vertices])
    every = np.unique(np.concatenate([branch.vertices for branch in made.branches]))
    assert len(made.inputs.rows) == len(every), "each row is fetched once"
    if made.positive is not None and made.negative is not None:
        rows = csr.indptr, csr.indices, None, seeds, batch_seed
        np.testing.assert_array_equal(made.branches[1].seeds[made.positive], positives(*rows))
        drawn = negatives(*rows, NEGATIVES, csr.rows)
        np.testing.assert_array_equal(made.negative < 0, drawn < 0)
        np.testing.assert_array_equal(made.branches[2].seeds[made.negative[drawn >= 0]], drawn[drawn >= 0])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize("ranks", [1, 2, 4, 5])
@pytest.mark.parametrize("each", [0, NEGATIVES], ids=["supervised", "unsupervised"])
def test_equals_the_one_shot_sampler(each: int, ranks: int, chunk: int, threads: int) -> None:
    csr, serving = hubs(), Serving(HOSTS[ranks])
    features, owner = features_of(csr), owners(csr.rows, ranks)
    world = World.of(csr, owner, serving, features, FANOUTS)
    for rank in range(ranks):
        # without pairs, seeds may lie on any host
        own = np.arange(csr.rows) if not each else np.flatnonzero(np.array(serving.hosts)[owner] == serving.hosts[rank])
        draw = np.random.default_rng(rank)
        batches = [(draw.permutation(own)[:20], hash64("sample", 3, rank, number)) for number in range(4)]
        made = world.draw(rank, world.maker(rank, csr, chunk, each), batches, threads)
        for one, (seeds, batch_seed) in zip(made, batches, strict=True):
            check(one, csr, features, seeds, batch_seed)


@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize("each", [0, NEGATIVES], ids=["supervised", "unsupervised"])
def test_requests_are_those_of_the_formulas(each: int, chunk: int) -> None:
    """docs/specs: ids, neighbours and rows by pair, from the one-shot batch alone."""
    csr, serving = hubs(), Serving(HOSTS[5])
    features, owner = features_of(csr), owners(csr.rows, 5)
    hosts = np.array(serving.hosts)[owner]
    world = World.of(csr, owner, serving, features, FANOUTS)
    rank = 2
    seeds = np.flatnonzero(hosts == serving.hosts[rank])[:25]
    world.draw(rank, world.maker(rank, csr, chunk, each), [(seeds, 11)], 4)
    branches = expected(csr, seeds, 11, bool(each))
    inputs = np.unique(np.concatenate([branch.vertices for branch in branches]))
    requests = world.carried[rank, 0]
    for host in set(range(serving.parts)) - {serving.hosts[rank]}:
        server = serving.servers[rank][host]
        mine = [request for request in requests if request.server == server]
        asked = ids = neighbours = 0
        for branch, batch in enumerate(branches):
            for hop, block in enumerate(batch.blocks, start=1):
                front = batch.vertices[: batch.sizes[hop - 1]]
                there = np.flatnonzero(hosts[front] == host)
                of_hop = [r for r in mine if isinstance(r, SampleRequest) and (r.branch, r.hop) == (branch, hop)]
                found = np.concatenate([r.lids for r in of_hop]) if of_hop else np.empty(0, np.int64)
                gids = world.held[0].old2new[front[there]] - world.held[0].node_map[host]
                np.testing.assert_array_equal(np.sort(found), np.sort(gids))  # each once a hop and branch
                assert 0 < len(of_hop) <= -(-len(batch.seeds) // chunk) or not len(there)
                asked += len(there)
                ids += 8 * len(there)
                neighbours += 4 * len(there) + 8 * int(np.diff(block.indptr)[there].sum())
        samples = [request for request in mine if isinstance(request, SampleRequest)]
        assert sum(request.ask_bytes for request in samples) == ids
        assert sum(request.reply_bytes for request in samples) == neighbours
        assert GROUP_BYTES == 24
        rows = [request for request in mine if isinstance(request, RowRequest)]
        remote = np.flatnonzero(hosts[inputs] == host)
        assert sum(request.ask_bytes for request in rows) == 8 * len(remote)
        assert sum(request.reply_bytes for request in rows) == 4 * features.shape[1] * len(remote)


def random_csr(vertices: int, density: float, seed: int) -> CSR:
    random = np.random.default_rng(seed)
    adjacency = random.random((vertices, vertices)) < density
    np.fill_diagonal(adjacency, False)
    return csr_of([np.flatnonzero(row).tolist() for row in adjacency])


@settings(max_examples=40, deadline=None)
@given(
    vertices=st.integers(2, 70),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    chunk=st.integers(1, 9),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_graph_and_any_seeds(vertices: int, density: float, chunk: int, share: float, seed: int) -> None:
    csr = random_csr(vertices, density, seed % 2**32)
    features = features_of(csr)
    seeds = np.random.default_rng(seed).permutation(vertices)[: round(share * vertices)]
    maker = BatchMaker(WholeStructure(csr), FANOUTS, chunk, NEGATIVES, RowTable(features))
    pool = TaskPool(2)
    try:
        pool.launch(0, maker.begin(seeds, seed))
        check(pool.take(0, 60), csr, features, seeds, seed)
    finally:
        pool.close()


def test_tasks_grow_with_chunks_hops_and_branches() -> None:
    for seeds, hops, chunk, each in ((512, 2, 256, 0), (20, 3, 7, 2), (1, 1, 1, 0), (0, 2, 4, 1)):
        graph = TaskGraph.of(seeds, hops, chunk, each)
        chains = sum(-(-count // chunk) for count in ((seeds,) if not each else (seeds, seeds, seeds * each)))
        assert len(graph.tasks) == (2 * hops + 1) * chains + 2 + (2 if each else 0)
        assert all(parent < number for number, parents in enumerate(graph.parents) for parent in parents)
        reached = {0}
        for number in range(len(graph.tasks)):
            if reached & set(graph.parents[number]):
                reached.add(number)
        assert len(reached) == len(graph.tasks), "every task waits for the seeds"
        ancestors = {len(graph.tasks) - 1}
        for number in reversed(range(len(graph.tasks))):
            if set(graph.children[number]) & ancestors:
                ancestors.add(number)
        assert len(ancestors) == len(graph.tasks), "the last task waits for all others"


def test_memory_of_batches_is_used_again() -> None:
    csr = hubs()
    maker = BatchMaker(WholeStructure(csr), FANOUTS, 7)
    pool = TaskPool(2)
    try:
        rooms = set()
        for number in range(6):
            tasks = maker.begin(np.arange(number, number + 20), number)
            rooms.add(id(tasks._room))
            pool.launch(number, tasks)
            assert_equal_batches(
                pool.take(number, 60).branches[0], Sampler(csr, FANOUTS).sample(np.arange(number, number + 20), number)
            )
    finally:
        pool.close()
    assert len(rooms) == 1


@pytest.mark.parametrize("chunk", [1, 7, 256])
def test_each_host_may_hold_the_whole_graph_and_its_own_rows(chunk: int) -> None:
    csr, serving = hubs(), Serving(HOSTS[4])
    features, owner = features_of(csr), owners(csr.rows, 4)
    world = World.of(csr, owner, serving, features, FANOUTS)
    table = world.maker(1, csr, chunk).table
    seeds = np.arange(5, 45)
    (made,) = world.draw(1, BatchMaker(WholeStructure(csr), FANOUTS, chunk, table=table), [(seeds, 8)], 4)
    check(made, csr, features, seeds, 8)
    requests = world.carried[1, 0]
    assert all(isinstance(request, RowRequest) for request in requests)
    hosts = np.array(serving.hosts)[owner]
    assert sum(len(request.lids) for request in requests) == (hosts[made.branches[0].vertices] != 0).sum()


@pytest.mark.parametrize(("hops", "each"), [(1, 0), (2, 0), (3, 2)])
def test_memory_of_a_batch_in_flight_is_stated(hops: int, each: int) -> None:
    for vertices in (1, 64, 65, 300):
        csr = csr_of([[] for _ in range(vertices)])
        room = BatchMaker(WholeStructure(csr), (2,) * hops, 7, each).take_room()
        arrays = [room.fetched, *(branch._marks for branch in room.branches)]
        assert sum(array.nbytes for array in arrays) == room_bytes(vertices, hops, 3 if each else 1)


def test_refuses_pairs_of_seeds_on_other_hosts() -> None:
    csr, serving = hubs(), Serving((0, 1))
    owner = owners(csr.rows, 2)
    world = World.of(csr, owner, serving, features_of(csr), FANOUTS)
    tasks = world.maker(0, csr, 7, NEGATIVES).begin(np.arange(20), 1)
    tasks.run(0)
    with pytest.raises(GraphError, match="other hosts"):
        tasks.run(1)


@pytest.mark.parametrize("fault", ["degrees", "neighbours", "ids", "rows"])
def test_refuses_replies_that_do_not_fit(fault: str) -> None:
    csr, serving = hubs(), Serving((0, 1))
    world = World.of(csr, owners(csr.rows, 2), serving, features_of(csr), FANOUTS)
    tasks = world.maker(0, csr, 256).begin(np.arange(100), 1)
    tasks.run(0)
    kinds = {task.kind: number for number, task in reversed(list(enumerate(tasks.graph.tasks)))}
    (request,) = tasks.run(kinds["rows" if fault == "rows" else "neighbours"])
    if isinstance(request, RowRequest):
        reply = world.server(1).rows(request.lids)[1:]
    else:
        good = world.server(1).sample(request.seed, request.hop, request.lids)
        reply = {
            "degrees": SampleReply(good.degrees[1:], good.neighbours),
            "neighbours": SampleReply(good.degrees, good.neighbours[1:]),
            "ids": SampleReply(good.degrees, good.neighbours + csr.rows),
        }[fault]
    with pytest.raises(GraphError, match="different partitions"):
        tasks.accept(request, reply)


def test_refuses_requests_that_do_not_fit() -> None:
    csr, serving = hubs(), Serving((0, 1))
    world = World.of(csr, owners(csr.rows, 2), serving, features_of(csr), FANOUTS)
    server, many = world.server(1), np.array([csr.rows])
    for wrong in (lambda: server.sample(1, 3, many[:0]), lambda: server.sample(1, 1, many), lambda: server.rows(many)):
        with pytest.raises(GraphError, match="different partitions"):
            wrong()


def test_delays_are_those_of_the_seed() -> None:
    """The batches of these tests are delayed, or their equality would say nothing about orders."""
    maker = BatchMaker(WholeStructure(hubs()), FANOUTS, 1)
    order: list[str] = []
    pool = TaskPool(4, record=lambda record: order.append(str(record.ready.task)))
    try:
        pool.launch(0, delayed(maker, np.arange(30), 5))
        pool.take(0, 60)
    finally:
        pool.close()
    assert order != sorted(order, key=[str(task) for task in maker.graph(30).tasks].index)


@pytest.mark.realdata
@pytest.mark.parametrize("hosts", [1, 4])
def test_a_real_graph(hosts: int, data_dir: Path) -> None:
    with np.load(data_dir / "ogbn_arxiv.npz", allow_pickle=False) as data:
        csr = CSR(data["indptr"].astype(np.int64), data["indices"].astype(np.int32), len(data["indptr"]) - 1)
        train = np.flatnonzero(data["train_mask"])
    serving, fanouts = Serving(tuple(range(hosts))), (15, 10)
    world = World.of(csr, owners(csr.rows, hosts), serving, np.zeros((csr.rows, 1), np.float32), fanouts)
    sampler = Sampler(csr, fanouts)
    batches = [(train[512 * number : 512 * (number + 1)], number) for number in range(4)]
    made = world.draw(0, world.maker(0, csr, 256), batches, 4)
    for one, (seeds, batch_seed) in zip(made, batches, strict=True):
        assert_equal_batches(one.branches[0], sampler.sample(seeds, batch_seed))
