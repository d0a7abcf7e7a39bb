"""Late rows and rows of unequal bits on the wire: what ``torch.distributed`` was handed is what the formulas say of
each pair, layer, direction and epoch, and so do program, trace, traffic and simulation."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.partition.store import PartitionArtifact
from simgnn.program.calendar import EVALUATE
from simgnn.record.activity import decisions_in, decisions_of, read_activity
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.coded_reference import Assigning, train_coded_reference
from tests.equality.cases import Case
from tests.equality.conftest import Bench, Finished
from tests.equality.counting import (
    counted_halo,
    counted_pairs,
    counted_rows,
    differences,
    messages,
    planned_calls,
    planned_pairs,
    planned_rows,
    turns_of,
)
from tests.equality.late_runs import HIDDEN, PIPED, ROWS, STALE, ZEROS
from tests.equality.wiretap import Call
from tests.sim.worlds import machine

EPOCHS, EVALUATED, PERIOD, GROUP, LAM = 5, (1, 3, 4), 3, 7, 0.2
INPUT = "communication.rows=input"
SHORT = (f"train.epochs={EPOCHS}", "train.eval_every=2", "model.layers=3")
SLOW = "train.learning_rate=0.001"
DOUBLE = "train.dtype=float64"
UNEQUAL = (
    "codec.kind=stochastic", "codec.bits=adaptive", f"codec.assign_period={PERIOD}", f"codec.group_size={GROUP}",
    f"codec.lam={LAM}", INPUT,
)  # fmt: skip
AHEAD = "schedule.kind=pipelined"


def late(graph: str, model: str, cut: str, ranks: int, *extra: str) -> Case:
    """Rows that are one epoch late."""
    return Case(graph, model, cut, ranks, "float32-adam", (*SHORT, SLOW, *extra))


def coded(graph: str, model: str, cut: str, ranks: int, *extra: str, hosts: int = 1) -> Case:
    """Rows whose bits are assigned after the third epoch."""
    rate = [SLOW] if model == "gin" else []
    return Case(graph, model, cut, ranks, "float32-sgd", (*SHORT, *UNEQUAL, *rate, *extra), hosts)


LATE = [
    late("small", "gcn", "metis", 2, HIDDEN, *PIPED),
    late("small", "sage", "random", 4, *STALE),
    late("small", "gin", "random", 3, *PIPED, ZEROS),
    late("small", "gat", "metis", 4, *PIPED, ROWS),
    late("path", "gcn", "block-row", 4, *PIPED),
    late("islands", "sage", "block-row", 4, *PIPED),
    late("communities", "sage", "metis", 4, *PIPED, "model.layers=4", DOUBLE),
]
CODED = [
    coded("small", "gcn", "metis", 2, HIDDEN, AHEAD),
    coded("small", "sage", "random", 4),
    coded("small", "gin", "random", 3, AHEAD),
    coded("small", "gat", "metis", 4, AHEAD),
    coded("path", "gcn", "block-row", 4, AHEAD),
    coded("communities", "sage", "metis", 4, AHEAD, "codec.group_size=100"),
    coded("small", "gcn", "random", 4, HIDDEN, AHEAD, "codec.between_hosts=9", "codec.message_bytes=30", hosts=2),
]
REFERRED = [
    coded("small", "gcn", "metis", 2, HIDDEN, AHEAD, DOUBLE),
    coded("small", "sage", "random", 4, DOUBLE),
    coded("small", "gat", "random", 3, AHEAD, DOUBLE),
    coded("small", "gin", "metis", 4, AHEAD, DOUBLE),
]
Bytes = NDArray[np.int64]
"""Of each pair [P, P], by sender and receiver."""
Coded = Callable[[int, int, str], Bytes]
"""Bytes of the coded rows of an exchange, from epoch, layer and direction."""


def quickly(cases: list[Case], *quick: int) -> list[Any]:
    """The cases at some places, and all others as slow ones."""
    marks = [[] if place in quick else [pytest.mark.slow] for place in range(len(cases))]
    return [pytest.param(case, id=case.name, marks=mark) for case, mark in zip(cases, marks, strict=True)]


def halo_of(bench: Bench, case: Case, finished: Finished) -> Bytes:
    """Rows by owner and receiver, counted on the edges of the graph."""
    owner = PartitionArtifact.open(finished.plan.partition).partition.owner
    return counted_halo(bench.graph(case.graph), owner, case.ranks)


def check_transport(finished: Finished, matrices: Iterable[Bytes]) -> None:
    """Each rank received and sent ``matrices``, one after the other, and no other message."""
    expected = list(matrices)
    for rank, result in enumerate(finished.ranks):
        wanted: list[Call] = []
        for matrix in expected:
            wanted += messages("irecv", rank, matrix[:, rank].tolist()) + messages("isend", rank, matrix[rank].tolist())
        handed = [tuple(call) for call in result["calls"]]
        assert [call for call in handed if call[0] in ("irecv", "isend")] == wanted, f"rank {rank}"


def check_counts(finished: Finished) -> None:
    """Program, trace, traffic, simulation and transport tell the same bytes and messages."""
    program, run = finished.plan.program, RunDirectory(finished.folder)
    decided = decisions_of(read_activity(run.activity), program.ranks) if run.activity.is_file() else {}
    turns = turns_of(program, EPOCHS, EVALUATED)
    rows = planned_rows(program, turns, decided)
    assert not differences(rows, counted_rows(read_table(run.trace)))
    assert not differences(planned_pairs(program, turns, decided), counted_pairs(read_table(run.traffic)))
    activity = {name: decided[name] for name in decisions_in(program)}
    simulated = simulate(program, machine(program.hosts), epochs=EPOCHS, evaluate_every=2, activity=activity)
    assert not differences(rows, counted_rows(simulated.trace))
    training = planned_pairs(program, [turn for turn in turns if turn.template != EVALUATE], decided)
    assert not differences(training, counted_pairs(simulated.traffic_table))
    for rank, result in enumerate(finished.ranks):
        # streams of their own have an order of their own
        planned = planned_calls(program, turns, rank, decided)
        assert sorted(tuple(call) for call in result["calls"]) == sorted(planned), f"rank {rank}"


def late_messages(plan: RunPlan, halo: Bytes, item: int) -> Iterator[Bytes]:
    """Inputs once; the rows of each later layer once forward and once backward in every epoch; evaluations exact."""
    hidden = plan.layers[1:]
    yield halo * plan.layers[0].width_in * item
    for epoch in range(EPOCHS):
        for layer in hidden:
            yield halo * layer.prepared_width * item
        for layer in reversed(hidden):
            yield halo.T * layer.prepared_width * item
        if epoch in EVALUATED:
            for layer in hidden:
                yield halo * layer.prepared_width * item


@pytest.mark.parametrize("case", quickly(LATE, 0, 4))
def test_late_rows_travel_as_the_formulas_say(bench: Bench, case: Case) -> None:
    finished = bench.run(case)
    item = 8 if DOUBLE in case.extra else 4
    check_transport(finished, late_messages(finished.plan, halo_of(bench, case, finished), item))
    check_counts(finished)


def coded_messages(plan: RunPlan, halo: Bytes, item: int, group: int, sizes: Coded) -> Iterator[Bytes]:
    """Inputs once, exact; the coded rows of each later layer in every epoch, and what an assignment of bits needs: 8
    bytes a halo row once, 24 bytes a group to rank 0, and a byte a group and end from there."""
    hidden, first = plan.layers[1:], np.arange(len(halo)) == 0

    def assignment(rows: Bytes) -> Iterator[Bytes]:
        groups = -(-rows // group)
        yield np.where(first[None, :], 24 * groups.sum(1)[:, None], 0)
        yield np.where(first[:, None], (groups.sum(0) + groups.sum(1))[None, :], 0)

    yield halo * plan.layers[0].width_in * item
    for epoch in range(EPOCHS):
        assigns = epoch % PERIOD == PERIOD - 1
        for layer in hidden:
            yield sizes(epoch, layer.index, "forward")
            if epoch == 0:
                yield halo.T * 8
            if assigns:
                yield from assignment(halo)
        for layer in reversed(hidden):
            yield sizes(epoch, layer.index, "backward")
            if assigns:
                yield from assignment(halo.T)
        if epoch in EVALUATED:
            for layer in hidden:
                yield halo * layer.prepared_width * item


def group_of(case: Case) -> int:
    return int([one for one in case.extra if one.startswith("codec.group_size=")][-1].partition("=")[2])


@pytest.mark.parametrize("case", quickly(CODED, 0, 4))
def test_coded_rows_travel_as_the_formulas_say(bench: Bench, case: Case) -> None:
    """The codes of a row, padded to a byte, and a header of 8 bytes: 8 bits an element at first, then those that a rank
    holds for the row it sends."""
    finished = bench.run(case)
    halo = halo_of(bench, case, finished)
    width = {layer.index: layer.prepared_width for layer in finished.plan.layers}

    def row_bytes(layer: int, bits: NDArray[np.int64]) -> NDArray[np.int64]:
        return -(-width[layer] * bits // 8) + 8

    def sizes(epoch: int, layer: int, phase: str) -> Bytes:
        rows, found = halo if phase == "forward" else halo.T, np.zeros_like(halo)
        if epoch < PERIOD:
            return rows * row_bytes(layer, np.array(8))
        for rank, result in enumerate(finished.ranks):
            bits = result["caches"][f"bits_out/{layer}/{phase}#0"].numpy().astype(np.int64).ravel()
            receiver = np.repeat(np.arange(case.ranks), rows[rank])
            np.add.at(found[rank], receiver, row_bytes(layer, bits))
        return found

    check_transport(finished, coded_messages(finished.plan, halo, 4, group_of(case), sizes))
    check_counts(finished)


@pytest.mark.parametrize("case", quickly(REFERRED, 0))
def test_coded_rows_travel_with_the_bits_of_one_process(bench: Bench, case: Case) -> None:
    """The reference trains on the same coded rows, and assigns their bits itself."""
    finished = bench.run(case)
    plan, graph, halo = finished.plan, bench.graph(case.graph), halo_of(bench, case, finished)
    initial = [dict(layer.named_parameters()) for layer in build_layers(plan.layers, plan.seed, torch.float64)]
    owner = PartitionArtifact.open(plan.partition).partition.owner
    alike = np.ones((case.ranks, case.ranks))
    expected = train_coded_reference(plan, graph, initial, owner, Assigning(PERIOD, GROUP, LAM, alike))
    given = np.concatenate([bits for pairs in expected.wire.bits.values() for bits in pairs.values()])
    assert len({*given.tolist()}) > 1, "rows differ in bits"

    def sizes(epoch: int, layer: int, phase: str) -> Bytes:
        found = np.zeros_like(halo)
        for pair, nbytes in expected.wire.bytes_sent[epoch, layer, phase].items():
            found[pair] = nbytes
        return found

    check_transport(finished, coded_messages(plan, halo, 8, GROUP, sizes))
    np.testing.assert_allclose(finished.ranks[0]["losses"], expected.losses, rtol=1e-10)
