"""Runs that broadcast whole blocks: their settings, what they sent, and what program and activity say of that."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.program.calendar import EVALUATE, Turn
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.record.traffic import traffic_by_rank
from simgnn.sim.simulate import Simulation, simulate
from tests.equality.cases import EPOCHS, Case
from tests.equality.conftest import Bench, Finished
from tests.equality.counting import differences, messages, pair_bytes
from tests.equality.wiretap import Call

PROFILE = str(Path(__file__).parents[1] / "hardware" / "data" / "invented-8x8.toml")
BLOCKS = ("communication.kind=block-broadcast", "communication.resend_inputs=true")
FIRST = "model.order=aggregate-first"

Counts = dict[tuple[int, ...], tuple[int, ...]]
"""(rank, epoch, step, op id) -> (bytes sent, collective bytes, control bytes, messages)."""


def block_case(model: str, ranks: int, *extra: str, graph: str = "communities", partition: str = "block-row") -> Case:
    """A run with block broadcasts that sends its inputs in every epoch, where it sends any, unless told otherwise."""
    none = model == "gat" or "model.order=transform-first" in extra
    return Case(graph, model, partition, ranks, extra=(*(BLOCKS[:1] if none else BLOCKS), *extra))


def example(*extra: str) -> Case:
    """V = 1000, P = 4, widths 32, 16, 5: docs/systems/cagnet.md."""
    return Case("thousand", "gcn", "block-row", 4, "float32-adam", (*BLOCKS, FIRST, "train.epochs=4", *extra))


def agrees_with_one_process(bench: Bench, wanted: Case) -> None:
    """All that training gives, against DGL's layers in one process."""
    pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")
    found = bench.errors(wanted)
    assert found["initial"] == 0
    assert max(found.values()) <= 1e-9, found


def parameters(finished: Finished) -> torch.Tensor:
    """Parameters after the last epoch, the same on every rank."""
    first = finished.ranks[0]
    for other in finished.ranks[1:]:
        assert torch.equal(other["parameters"], first["parameters"]), "ranks hold different parameters"
        assert other["losses"] == first["losses"]
    value: torch.Tensor = first["parameters"]
    return value


def broadcast_bytes(finished: Finished) -> IntArray:
    """Bytes that all roots together hand to broadcasts in each epoch of training."""
    trace, program = read_table(RunDirectory(finished.folder).trace), finished.plan.program
    chosen = np.array([template != EVALUATE and op.kind is OpKind.BROADCAST for template, op in program.ops])
    mask = chosen[trace["op_id"].to_numpy()]
    sums = np.bincount(trace["epoch"].to_numpy()[mask], trace["collective_bytes"].to_numpy()[mask])
    return np.asarray(sums, dtype=np.int64)


def collective_bytes(finished: Finished) -> int:
    """Payload of all collectives of a run."""
    return int(read_table(RunDirectory(finished.folder).trace)["collective_bytes"].to_numpy().sum())


def simulated(finished: Finished, activity: Mapping[str, IntArray]) -> Simulation:
    """The same program in the simulator."""
    program = finished.plan.program
    machine = Machine.place(load_profile(PROFILE), program.hosts)
    return simulate(program, machine, epochs=EPOCHS, activity=activity, evaluate_every=EPOCHS)


def told(trace: pa.Table) -> Counts:
    """What a trace tells of every op that ran."""
    keys, counts = ("rank", "epoch", "step", "op_id"), ("bytes_sent", "collective_bytes", "control_bytes", "messages")
    rows = trace.to_pylist()
    found = {tuple(row[k] for k in keys): tuple(row[k] for k in counts) for row in rows}
    assert len(found) == len(rows), "a row is told twice"
    return found


def nothing_is_lost(finished: Finished, activity: Mapping[str, IntArray]) -> None:
    """Ops that ran and what they sent: program and activity, simulation, executor, transport."""
    executed = told(read_table(RunDirectory(finished.folder).trace))
    found = differences(told(simulated(finished, activity).trace), executed)
    assert not found, "\n".join(found[:20])
    simulation = simulated(finished, activity)
    traffic = traffic_by_rank(finished.plan.program, simulation.columns, simulation.payload_epochs)
    assert traffic == read_result(RunDirectory(finished.folder).result).traffic
    assert finished.plan.program.ranks < 2 or sum(traffic.payload) > 0
    planned, calls = _planned(finished.plan.program, activity)
    found = differences(planned, executed)
    assert not found, "\n".join(found[:20])
    for rank, result in enumerate(finished.ranks):
        assert [tuple(call) for call in result["calls"]] == calls[rank], f"rank {rank}"


def _planned(program: Program, activity: Mapping[str, IntArray]) -> tuple[Counts, list[list[Call]]]:
    """Rows of the trace, and calls of ``torch.distributed`` on each rank, from program and activity alone."""
    rows: Counts = {}
    calls: list[list[Call]] = [[] for _ in range(program.ranks)]
    turns = [(turn.epoch, turn.step, turn.template) for turn in program.calendar.turns(EPOCHS)]
    for epoch, step, template in [*turns, (EPOCHS - 1, -1, EVALUATE)]:
        for op in program.templates[template].ops:
            exists = np.ones(program.ranks) if op.ranks is None else program.sizes.columns[op.ranks]
            for rank in np.flatnonzero(exists).tolist():
                if op.guard is not None and not activity[op.guard.decision][rank, epoch, step]:
                    continue
                counts = [0, 0, 0, 0]
                if op.kind is OpKind.EXCHANGE:
                    matrix = pair_bytes(program, op, Turn(epoch, step, template))
                    calls[rank] += messages("irecv", rank, matrix[:, rank].tolist())
                    calls[rank] += messages("isend", rank, matrix[rank].tolist())
                    counts[0], counts[3] = int(matrix[rank].sum()), int(np.count_nonzero(matrix[rank]))
                elif op.transfer is not None:
                    at = rank if op.root is None else op.root
                    nbytes = int(program.sizes.per_rank(op.transfer.rows, epoch, 0)[at]) * op.transfer.row_bytes
                    name = {"allreduce": "all_reduce", "allgather": "all_gather"}.get(op.kind.value, op.kind.value)
                    calls[rank].append((name, -1 if op.root is None else op.root, nbytes))
                    counts[2 if op.transfer.control else 1] = nbytes if at == rank else 0
                rows[rank, epoch, step, program.op_ids[template, op.name]] = tuple(counts)
    return rows, calls
