"""Batches drawn over hosts with real processes: those of a sampler of the whole graph, with the traffic that a dry run
foretells (DistDGL 5.5, 8, 13.2, 13.6, 13.7, 13.10)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from executor.minibatch.batches import PartedBatches
from executor.rank.interpreter import Interpreter
from executor.state.buffers import BufferStore
from executor.state.context import GroupHandle, RankContext
from executor.store.shared import shared_arrays
from simgnn.emit.batches.drawing import DEGREES, drawn_over_hosts
from simgnn.emit.batches.names import BATCHES, FEATURE_ROWS, VERTICES, edges_of, rows_after
from simgnn.emit.builder import ProgramBuilder, accesses
from simgnn.errors import BackendError, GraphError
from simgnn.graph.graph import Graph
from simgnn.partition.algorithms.metis import metis_owner
from simgnn.partition.local.serving import Serving
from simgnn.partition.partitioners.block_row import random_owner
from simgnn.policies.batching.sampled import Sampled
from simgnn.policies.codec.none import Plain
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Nature
from simgnn.program.program import Program
from simgnn.program.validate import validate
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import presample
from simgnn.sampling.batches.sizes import PartedSizes, SampleRequests
from simgnn.sampling.draw.parted import HostStructure
from simgnn.sampling.draw.sampler import Batch, Block, Sampler
from simgnn.sampling.fetches.measured_sizes import sample_requests
from tests.equality.wiretap import tapped
from tests.executor.harness import Notes, run_ranks
from tests.executor.minibatch.store_world import mapping_of, names_left, tapped_bytes
from tests.sampling.parted_sampling import assert_equal_batches, payload_bytes, sample_together, size_bytes, structures
from tests.sampling.sampling_graphs import csr_of

VERTICES_OF_GRAPH, ISOLATED, RANKS, EPOCHS, SEED = 240, 60, 4, 2, 7
FANOUTS = (4, -1, 2)
HOPS = range(1, len(FANOUTS) + 1)
CASES = {f"{hosts} {kind}": (tuple(range(hosts)), kind) for hosts in (2, 3, 4) for kind in ("metis", "random")} | {
    "2x2 metis": ((0, 0, 1, 1), "metis"),
    "uneven random": ((0, 1, 1), "random"),
}
"""Host of each rank, and how the graph is divided."""


def _graph() -> Graph:
    """Undirected, with a few hubs; the last vertices have no neighbours."""
    draw = np.random.default_rng(1)
    ends = draw.integers(0, VERTICES_OF_GRAPH - ISOLATED, (2, 900))
    ends[0, :500] = draw.integers(0, 6, 500)
    rows: list[set[int]] = [set() for _ in range(VERTICES_OF_GRAPH)]
    for one, other in ends.T.tolist():
        if one != other:
            rows[one].add(other)
            rows[other].add(one)
    return Graph(name="hubs", csr=csr_of([list(row) for row in rows]))


GRAPH = _graph()


def _workers(ranks: int) -> tuple[np.ndarray, ...]:
    """Any vertices: rank 0 has isolated ones only, with more than two ranks the last one has none at all."""
    isolated = np.arange(VERTICES_OF_GRAPH - ISOLATED, VERTICES_OF_GRAPH)
    others = np.random.default_rng(2).permutation(VERTICES_OF_GRAPH - ISOLATED)[:50]
    shares = [np.sort(share) for share in np.array_split(others, max(ranks - 2, 1))]
    return (isolated[::3], *shares, isolated[:0])[:ranks]


def plan_of(case: str, owner: np.ndarray) -> SamplingPlan:
    """Batches of 12 seeds."""
    return SamplingPlan(GRAPH.csr, owner, _workers(len(CASES[case][0])), FANOUTS, 12, SEED)


def _written() -> list[str]:
    return [VERTICES, "drawn_seeds", *(f"drawn/{hop}" for hop in HOPS)]


def drawing_program(case: str, plan: SamplingPlan, requests: SampleRequests) -> Program:
    """Nothing but the ops that draw; every batch of the run is kept."""
    hosts = CASES[case][0]
    builder = ProgramBuilder(case, hosts, "float32")
    builder.natures = [Nature.DRAWING]
    for hop in HOPS:
        builder.column(rows_after(hop - 1).name, requests.asked[hop - 1].sum(axis=1))
        builder.column(edges_of(hop).name, requests.returned[hop - 1].sum(axis=1))
    builder.column(FEATURE_ROWS.name, np.bincount(np.array(hosts)[plan.owner])[list(hosts)])
    for name in _written():
        builder.buffer(name, rows_after(0), 1, "int64", space="host", depth=EPOCHS * plan.steps, ring="step")
    sizes = PartedSizes(requests, np.zeros(len(hosts), np.int64))
    builder.templates["step"] = drawn_over_hosts(builder, sizes, accesses(_written()))
    return validate(builder.stated(Calendar("step", steps=plan.steps)))


def _planned(plan: SamplingPlan, rank: int) -> np.ndarray:
    """Rows of every batch of a rank after every hop [hops + 1, epochs, steps]."""
    found, sampler = np.zeros((len(FANOUTS) + 1, EPOCHS, plan.steps), np.int64), Sampler(plan.csr, FANOUTS)
    for epoch in range(EPOCHS):
        turn = plan.epoch(rank, epoch)
        for step in range(len(turn)):
            found[:, epoch, step] = turn.sample(step, sampler).sizes
    return found


def _context(program: Program, rank: int, plan: SamplingPlan, structure: HostStructure, group: Any) -> RankContext:
    degrees = {DEGREES: torch.from_numpy(structure.degrees())}
    drawn = PartedBatches(structure, Serving(program.hosts), rank, plan, _planned(plan, rank))
    return RankContext(
        program=program, rank=rank, device=torch.device("cpu"),
        store=BufferStore(program, rank, torch.device("cpu"), degrees),
        groups={"requests": group}, policies={BATCHES: Sampled(), "codec": Plain()},
        resources=drawn.functions(),
    )  # fmt: skip


def share_structure(
    make: Callable[[], HostStructure], serving: Serving, rank: int, group: GroupHandle
) -> HostStructure:
    host = serving.hosts[rank]
    return HostStructure.from_arrays(host, shared_arrays(lambda: make().arrays(), serving.writer(host), group))


def _run(case: str, owner: np.ndarray, requests: SampleRequests, rank: int, group: GroupHandle) -> dict[str, Any]:
    plan, serving = plan_of(case, owner), Serving(CASES[case][0])
    host, ranks = serving.hosts[rank], serving.ranks
    structure = share_structure(lambda: HostStructure.of(GRAPH.csr, owner, serving, host), serving, rank, group)
    context, notes = _context(drawing_program(case, plan, requests), rank, plan, structure, group), Notes()
    interpreter = Interpreter(context.program, context, notes)
    with tapped() as calls:
        interpreter.train(range(EPOCHS))
    interpreter.close()
    values, slots = context.store.values, [context.store.slot(name) for name in _written()]
    names = [op.name for _, op in context.program.ops]
    return {
        "batches": [[values[slot + turn] for slot in slots] for turn in range(EPOCHS * plan.steps)],
        "sent": [(now.epoch, now.step, names[op], list(sent)) for now, op, _, _, sent in notes.rows],
        "tapped": tapped_bytes(calls, ranks),
        "arrays": {name: torch.from_numpy(array.copy()) for name, array in structure.arrays().items()},
        "writable": [name for name, array in structure.arrays().items() if array.flags.writeable],
        "mapped": mapping_of(structure.part.indptr.ctypes.data),
    }


def _refused(rank: int, owner: np.ndarray, group: GroupHandle) -> list[str]:
    """Host 1 cannot make its structure: what each rank hears."""
    serving = Serving(CASES["2x2 metis"][0])

    def make() -> HostStructure:
        if serving.hosts[rank]:
            raise GraphError("the file is cut off")
        return HostStructure.of(GRAPH.csr, owner, serving, 0)

    try:
        share_structure(make, serving, rank, group)
    except (BackendError, GraphError) as error:
        return [type(error).__name__, str(error)]
    return []


def _everything(
    rank: int, ranks: int, owners: dict[str, np.ndarray], foretold: dict[str, SampleRequests]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case, (hosts, _) in CASES.items():
        members = tuple(range(len(hosts)))
        group = GroupHandle(dist.new_group(list(members)), members, torch.device("cpu"))
        if rank < len(hosts):
            found[case] = _run(case, owners[case], foretold[case], rank, group)
        if case == "2x2 metis":
            found["refused"] = _refused(rank, owners[case], group)
    found["left"] = names_left()
    return found


@pytest.fixture(scope="module")
def owners() -> dict[str, np.ndarray]:
    """Owner of each vertex by case: METIS is asked once, not by each rank."""
    return {
        case: random_owner(VERTICES_OF_GRAPH, len(hosts), 3)
        if kind == "random"
        else metis_owner(GRAPH, len(hosts), 0, None, 1.03)
        for case, (hosts, kind) in CASES.items()
    }


@pytest.fixture(scope="module")
def foretold(owners: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> dict[str, SampleRequests]:
    """Requests of every case, of batches that one process has sampled of the whole graph."""
    folder, told = tmp_path_factory.mktemp("presampled"), {}
    for case, (hosts, _) in CASES.items():
        plan = plan_of(case, owners[case])
        presample(plan, case, folder / case, EPOCHS, threads=1)
        told[case] = sample_requests(plan, folder / case, np.array(hosts), EPOCHS)
    return told


@pytest.fixture(scope="module")
def found(
    owners: dict[str, np.ndarray], foretold: dict[str, SampleRequests], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What four ranks found in all cases."""
    # kernels are compiled here once, not by every rank
    serving = Serving((0, 1))
    held = structures(GRAPH.csr, owners["2 random"], serving)
    sample_together(held, serving, FANOUTS, [np.arange(5), np.arange(9)], [1, 2])
    return run_ranks(RANKS, _everything, tmp_path_factory.mktemp("drawing"), owners, foretold)


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_the_whole_graph(
    found: list[dict[str, Any]], owners: dict[str, np.ndarray], case: str
) -> None:
    plan, whole, hosts = plan_of(case, owners[case]), Sampler(GRAPH.csr, FANOUTS), np.array(CASES[case][0])
    outside, largest = 0, 0
    for rank in range(plan.ranks):
        batches = iter(found[rank][case]["batches"])
        for epoch in range(EPOCHS):
            turn = plan.epoch(rank, epoch)
            for step in range(plan.steps):
                vertices, places, *blocks = next(batches)
                expected = turn.sample(step, whole)
                got = tuple(Block(indptr.numpy(), sources.numpy()) for indptr, sources in blocks)
                assert_equal_batches(Batch(vertices.numpy().astype(np.int32), expected.sizes, got), expected)
                np.testing.assert_array_equal(plan.workers[rank][places.numpy()], expected.seeds)
                outside += int((hosts[owners[case][expected.seeds]] != hosts[rank]).sum())
                largest = max(largest, len(expected.vertices))
                if rank == 0:  # isolated seeds: hops bring nothing
                    assert len(vertices) == len(expected.seeds)
        assert next(batches, None) is None
    assert outside > 0  # seeds that another host holds
    assert largest > 60
    assert plan.ranks == 2 or not any(len(one[0]) for one in found[plan.ranks - 1][case]["batches"])


@pytest.mark.parametrize("case", CASES)
def test_traffic_is_what_the_dry_run_foretold(
    found: list[dict[str, Any]], foretold: dict[str, SampleRequests], case: str
) -> None:
    requests, ranks = foretold[case], len(CASES[case][0])
    for rank in range(ranks):
        told = found[rank][case]
        for epoch, step, name, sent in told["sent"]:
            part = name.rpartition("/")[2]
            if part not in ("request", "return"):
                assert sent == [0, 0, 0, 0]
                continue
            hop = int(name.split("/")[1])
            at = hop - 1, slice(None), slice(None), epoch, step
            asked, returned = requests.asked[at].copy(), requests.returned[at].copy()
            np.fill_diagonal(asked, 0)
            np.fill_diagonal(returned, 0)
            ids, degrees, neighbours = 8 * asked[rank], 4 * asked[:, rank], 8 * returned[:, rank]
            leaving = (ids, degrees) if part == "request" else (neighbours,)
            control = 8 * (ranks - 1) if part == "request" else 0
            messages = sum(np.count_nonzero(nbytes) for nbytes in leaving)
            assert sent == [sum(int(nbytes.sum()) for nbytes in leaving), 0, control, messages]
        assert told["tapped"] == payload_bytes(requests)[rank].sum(axis=(1, 2)).tolist()
    assert payload_bytes(requests).any()


@pytest.mark.parametrize("case", CASES)
def test_ranks_of_a_host_read_its_structure_in_one_memory(
    found: list[dict[str, Any]], owners: dict[str, np.ndarray], case: str
) -> None:
    hosts = CASES[case][0]
    held = structures(GRAPH.csr, owners[case], Serving(hosts))
    inodes: dict[int, set[int]] = {host: set() for host in hosts}
    for rank, host in enumerate(hosts):
        told, expected = found[rank][case], held[host].arrays()
        assert told["arrays"].keys() == expected.keys()
        for name, array in told["arrays"].items():
            assert array.numpy().dtype == expected[name].dtype
            np.testing.assert_array_equal(array.numpy(), expected[name])
        name, inode = told["mapped"]
        assert name.startswith("/dev/shm/simgnn-")
        assert name.endswith("(deleted)")
        assert told["writable"] == []
        inodes[host].add(inode)
    assert all(len(one) == 1 for one in inodes.values())
    assert len(set.union(*inodes.values())) == len(inodes)
    assert [told["left"] for told in found] == [[]] * RANKS


def test_a_structure_that_one_host_cannot_make_is_refused_by_all(found: list[dict[str, Any]]) -> None:
    heard = [told["refused"] for told in found]
    assert heard[2] == ["GraphError", "the file is cut off"]
    said = ["BackendError", "rank 2 could not share its rows: the file is cut off"]
    assert [heard[0], heard[1], heard[3]] == [said] * 3


def test_one_rank_shares_with_itself() -> None:
    group, serving = GroupHandle(None, (0,), torch.device("cpu")), Serving((0,))
    owner = np.zeros(VERTICES_OF_GRAPH, np.int32)
    structure = share_structure(lambda: HostStructure.of(GRAPH.csr, owner, serving, 0), serving, 0, group)
    assert size_bytes(structure) == size_bytes(HostStructure.of(GRAPH.csr, owner, serving, 0))
    assert not list(Path("/dev/shm").glob(f"simgnn-{os.getpid()}-*"))
