"""Nothing is lost or invented on the way: bytes and messages of every op and rank pair are the same number in the
program, in the simulation, in the executor's counts and in the tensors that ``torch.distributed`` was handed."""

import itertools
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.store import PartitionArtifact
from simgnn.program.calendar import EVALUATE, Turn
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.record.traffic import traffic_by_rank
from simgnn.sim.simulate import simulate
from tests.equality.cases import Case
from tests.equality.conftest import Bench, Finished
from tests.equality.counting import (
    counted_halo,
    counted_mirrors,
    counted_pairs,
    counted_rows,
    differences,
    planned_calls,
    planned_pairs,
    planned_rows,
    turns_of,
)

EPOCHS = 3
PROFILE = str(Path(__file__).parents[1] / "hardware" / "data" / "invented-8x8.toml")
SHORT = (f"train.epochs={EPOCHS}", "train.eval_every=2", "train.learning_rate=0.001")


def _cases() -> list[Case]:
    modes = [
        (model, graph, rows)
        for model, graph, rows in itertools.product(
            ("gcn", "sage", "gin"), ("small", "small-sparse"), ("auto", "input", "transformed")
        )
        if (model, rows) != ("gin", "transformed")  # GIN has no transformed rows
    ]
    cases = [
        Case(graph, model, "random", ranks, "float32-adam", (*SHORT, f"communication.rows={rows}"))
        for model, graph, rows in modes
        for ranks in (2, 4)
    ]
    cases.append(Case("small-centred", "gcn", "random", 2, "float32-adam", (*SHORT, "communication.rows=input")))
    for ranks in (2, 4):
        cases += [
            Case("small", "gcn", "metis", ranks, "float64-adam", (*SHORT, "communication.resend_inputs=true")),
            Case("small", "sage", "block-row", ranks, "float64-adam", (*SHORT, "model.layers=3", "model.hidden=[7,5]")),
            Case("small", "gcn", "random", ranks, "float32-adam", (*SHORT, "model.order=transform-first")),
            Case("small-sparse", "gcn", "metis", ranks, "float64-adam", (*SHORT, "model.order=aggregate-first")),
            # ranks that have nothing to say to each other send no message
            Case("path", "gcn", "block-row", ranks, "float32-adam", SHORT),
            Case("islands", "sage", "block-row", ranks, "float32-adam", SHORT),
            # masters and mirrors
            Case("small", "gcn", "ebv", ranks, "float32-adam", (*SHORT, "model.hoist=never")),
            Case("small", "gin", "ebv", ranks, "float64-adam", (*SHORT, "model.layers=3", "model.hidden=[7,5]")),
            Case("small-sparse", "sage", "ebv", ranks, "float32-adam", SHORT),
            Case("small", "gat", "ebv", ranks, "float32-adam", SHORT),
            Case("small", "gat", "metis", ranks, "float32-adam", SHORT),
            Case(
                "small",
                "sage",
                "ebv",
                ranks,
                "float32-adam",
                (*SHORT, "communication.exchange=host-aggregated"),
                hosts=2,
            ),
        ]
    return cases


def _quick() -> list[Case]:
    """Each mode on two or four ranks, in turn, and everything else on four; the rest of the product is slow."""
    seen: dict[tuple[object, ...], list[Case]] = {}
    for case in CASES:
        seen.setdefault((case.graph, case.model, case.partition, case.extra), []).append(case)
    found = []
    for place, (few, *many) in enumerate(seen.values()):
        both = few.graph == "islands" or "communication.resend_inputs=true" in few.extra
        found += [few, *many] if both or not many else many if few.partition != "random" or place % 2 else [few]
    return found


CASES = _cases()
QUICK = _quick()


@dataclass(frozen=True)
class Run:
    """A run, its program and its turns."""

    finished: Finished
    program: Program
    turns: list[Turn]


@pytest.fixture(scope="module")
def runs(bench: Bench) -> "_Runs":
    return _Runs(bench)


class _Runs:
    """Each case is carried out once for all tests."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.of = lru_cache(None)(self._of)

    def _of(self, case: Case) -> Run:
        finished = self.bench.run(case)
        program = finished.plan.program
        # evaluated after every second epoch and after the last
        return Run(finished, program, turns_of(program, EPOCHS, (1, EPOCHS - 1)))


@pytest.fixture(
    params=[pytest.param(case, id=case.name, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES]
)
def run(request: pytest.FixtureRequest, runs: _Runs) -> Run:
    return runs.of(request.param)


def test_every_pair_is_counted_as_planned(run: Run) -> None:
    counted = counted_pairs(read_table(RunDirectory(run.finished.folder).traffic))
    assert not differences(planned_pairs(run.program, run.turns), counted)


def test_every_row_of_the_trace_is_counted_as_planned(run: Run) -> None:
    counted = counted_rows(read_table(RunDirectory(run.finished.folder).trace))
    assert not differences(planned_rows(run.program, run.turns), counted)


def test_tensors_handed_over_are_as_planned(run: Run) -> None:
    for rank, result in enumerate(run.finished.ranks):
        handed = [tuple(call) for call in result["calls"]]
        assert handed == planned_calls(run.program, run.turns, rank), f"rank {rank}"


def test_the_result_tells_the_first_epoch_and_those_between_it_and_the_last(run: Run) -> None:
    result = read_result(RunDirectory(run.finished.folder).result)
    ranks = run.program.ranks
    assert result.payload_epochs == (1, EPOCHS - 2) == (1, 1)
    for epoch, nbytes, messages in ((0, result.bytes_sent_first_epoch, None), (1, result.bytes_sent, 1)):
        expected = np.zeros((2, ranks, ranks), dtype=np.int64)
        for (_, source, target), counted in planned_pairs(run.program, _training(run, epoch)).items():
            expected[:, source, target] += counted
        assert nbytes == expected[1].tolist()
        if messages:
            assert result.messages == expected[0].tolist()
    rows = planned_rows(run.program, _training(run, 1))
    for rank in range(ranks):
        mine = [counts for key, counts in rows.items() if key[0] == rank]
        assert result.collective_bytes[rank] == sum(counts[1] for counts in mine)
        assert result.control_bytes[rank] == sum(counts[2] for counts in mine)


def _training(run: Run, epoch: int) -> list[Turn]:
    return [turn for turn in run.turns if turn.epoch == epoch and turn.template != EVALUATE]


@pytest.mark.parametrize("fast_forward", [False, True], ids=["every epoch", "fast forward"])
def test_the_simulation_sends_what_is_planned(run: Run, fast_forward: bool) -> None:
    epochs = 12
    program, machine = run.program, Machine.place(load_profile(PROFILE), run.program.hosts)
    simulation = simulate(program, machine, epochs=epochs, fast_forward=fast_forward, evaluate_every=epochs)
    assert not fast_forward or simulation.copied, "nothing was fast-forwarded"
    turns = turns_of(program, epochs, (epochs - 1,))
    training = planned_pairs(program, [turn for turn in turns if turn.template != EVALUATE])
    assert not differences(training, counted_pairs(simulation.traffic_table))
    assert not differences(planned_rows(program, turns), counted_rows(simulation.trace))
    executed = read_result(RunDirectory(run.finished.folder).result)
    assert traffic_by_rank(program, simulation.columns, range(1, EPOCHS - 1)) == executed.traffic


def test_the_route_is_that_of_the_graph(run: Run, runs: _Runs, request: pytest.FixtureRequest) -> None:
    case: Case = request.node.callspec.params["run"]
    partition = PartitionArtifact.open(run.finished.plan.partition).partition
    graph, ranks = runs.bench.graph(case.graph), run.program.ranks
    if partition.kind == "vertex-cut":
        name, expected = "mirrors", counted_mirrors(graph, partition)
    else:
        name, expected = "halo", counted_halo(graph, partition.owner, ranks)
    matrices = {one: route.matrix(ranks) for one, route in run.program.sizes.routes.items()}
    if case.extra[-1].endswith("host-aggregated"):
        # every copy arrives once, from its master or from another copy
        arriving = matrices["mirrors/across"] + matrices["mirrors/within"]
        assert arriving.sum(axis=0).tolist() == expected.sum(axis=0).tolist()
    else:
        assert matrices[name].tolist() == expected.tolist()


def test_what_is_sent_arrives_once(run: Run) -> None:
    """Rows of a route and of its reverse mirror each other, and no rank writes to itself."""
    for name, route in run.program.sizes.routes.items():
        matrix = route.matrix(run.program.ranks)
        assert not matrix.diagonal().any()
        if not name.endswith("/reverse"):
            assert (run.program.sizes.routes[f"{name}/reverse"].matrix(run.program.ranks) == matrix.T).all()


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_cases_reach_what_they_are_for(ranks: int, runs: _Runs) -> None:
    """Sparse blocks, resent inputs, pairs without a message, and no exchange at all do occur."""
    seen = {case.name: runs.of(case).program for case in QUICK if case.ranks == ranks}
    ops = {name: [op for _, op in program.ops if op.kind is OpKind.EXCHANGE] for name, program in seen.items()}
    assert any(op.route == "halo_feature_bytes" for found in ops.values() for op in found)
    assert any(name.startswith("islands") and not found for name, found in ops.items())
    assert any("resend" in name and "setup/1/exchange" in {op.name for op in found} for name, found in ops.items())
    if ranks == 4:
        path = next(program for name, program in seen.items() if name.startswith("path"))
        assert 0 < (path.sizes.routes["halo"].matrix(4) > 0).sum() < 12
