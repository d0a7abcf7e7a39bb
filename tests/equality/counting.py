"""What a program says that travels, turn by turn, from its size table alone; and what the tapped calls must be."""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.graph.graph import Graph
from simgnn.partition.edges import undirected_edges
from simgnn.partition.partition import Partition
from simgnn.program.calendar import EVALUATE, Turn
from simgnn.program.kinds import COLLECTIVE_KINDS, PAIRWISE_KINDS
from simgnn.program.ops import Op
from simgnn.program.program import Program
from tests.equality.wiretap import Call

Pairs = dict[tuple[int, int, int], tuple[int, int]]
"""(op id, source, target) -> (messages, bytes), over all turns."""
Rows = dict[tuple[int, int, int, int], tuple[int, int, int, int]]
"""(rank, epoch, step, op id) -> (bytes sent, collective bytes, control bytes, messages)."""


Decided = Mapping[str, NDArray[np.int64]]
"""What a run's policies decided, as ``simgnn.record.activity.decisions_of`` gives it."""
NOTHING: Decided = {}


def turns_of(program: Program, epochs: int, evaluations: Iterable[int]) -> list[Turn]:
    """All turns of a run, an evaluation after each of the named epochs."""
    after = set(evaluations)
    turns: list[Turn] = []
    for turn in program.calendar.turns(epochs):
        turns.append(turn)
        if turn.epoch in after and turn.step == program.calendar.steps - 1:
            turns.append(Turn(turn.epoch, -1, EVALUATE))
    return turns


def pair_bytes(program: Program, op: Op, turn: Turn, decided: Decided = NOTHING) -> NDArray[np.int64]:
    """Bytes [P, P] of a pairwise op in one turn; decided rows as the activity tells them."""
    assert op.route is not None
    assert op.transfer is not None
    if op.transfer.decision is not None:
        return np.asarray(decided[op.transfer.decision.name][:, :, turn.epoch, turn.step] * op.transfer.row_bytes)
    return program.sizes.routes[op.route].matrix(program.ranks, turn.epoch, max(turn.step, 0)) * op.transfer.row_bytes


def member_bytes(program: Program, op: Op, turn: Turn) -> NDArray[np.int64]:
    """Payload [P] that each rank hands to a collective in one turn."""
    assert op.transfer is not None
    return program.sizes.per_rank(op.transfer.rows, turn.epoch, max(turn.step, 0)) * op.transfer.row_bytes


def planned_pairs(program: Program, turns: Iterable[Turn], decided: Decided = NOTHING) -> Pairs:
    """Messages and bytes by op and rank pair; pairs without rows send no message."""
    found: Pairs = {}
    for turn in turns:
        for op in program.templates[turn.template].ops:
            if op.kind not in PAIRWISE_KINDS:
                continue
            matrix = pair_bytes(program, op, turn, decided)
            for source, target in zip(*np.nonzero(matrix), strict=True):
                key = (program.op_ids[turn.template, op.name], int(source), int(target))
                messages, nbytes = found.get(key, (0, 0))
                found[key] = (messages + 1, nbytes + int(matrix[source, target]))
    return found


def planned_rows(program: Program, turns: Iterable[Turn], decided: Decided = NOTHING) -> Rows:
    """The counted columns of the trace, for every op of every turn on every rank."""
    found: Rows = {}
    for turn in turns:
        for op in program.templates[turn.template].ops:
            sent, collective, control, messages = (np.zeros(program.ranks, dtype=np.int64) for _ in range(4))
            if op.kind in PAIRWISE_KINDS:
                matrix = pair_bytes(program, op, turn, decided)
                assert op.transfer is not None
                moved, messages = matrix.sum(axis=1), (matrix > 0).sum(axis=1)
                sent, control = (sent, moved) if op.transfer.control else (moved, control)
            elif op.kind in COLLECTIVE_KINDS and op.transfer is not None:
                if op.transfer.control:
                    control = member_bytes(program, op, turn)
                else:
                    collective = member_bytes(program, op, turn)
            op_id = program.op_ids[turn.template, op.name]
            for rank in range(program.ranks):
                counts = (int(sent[rank]), int(collective[rank]), int(control[rank]), int(messages[rank]))
                found[rank, turn.epoch, turn.step, op_id] = counts
    return found


def counted_rows(trace: pa.Table) -> Rows:
    """The same columns of a trace, of a run or of a simulation."""
    found: Rows = {}
    for row in trace.to_pylist():
        key = (row["rank"], row["epoch"], row["step"], row["op_id"])
        assert key not in found, f"{key} is told twice"
        found[key] = (row["bytes_sent"], row["collective_bytes"], row["control_bytes"], row["messages"])
    return found


def counted_pairs(traffic: pa.Table) -> Pairs:
    """Messages and bytes as a run's or a simulation's table of traffic tells them."""
    rows = traffic.to_pylist()
    found = {(row["op_id"], row["source"], row["target"]): (row["messages"], row["bytes"]) for row in rows}
    assert len(found) == len(rows), "a pair is told twice"
    return found


def planned_calls(program: Program, turns: Iterable[Turn], rank: int, decided: Decided = NOTHING) -> list[Call]:
    """What a rank hands to ``torch.distributed``, in order."""
    calls: list[Call] = []
    for turn in turns:
        for op in program.templates[turn.template].ops:
            if op.kind in PAIRWISE_KINDS:
                matrix = pair_bytes(program, op, turn, decided)
                calls += messages("irecv", rank, matrix[:, rank].tolist())
                calls += messages("isend", rank, matrix[rank].tolist())
            elif op.kind in COLLECTIVE_KINDS:
                calls.append(("all_reduce", -1, int(member_bytes(program, op, turn)[rank])))
    return calls


def messages(name: str, rank: int, nbytes: list[int]) -> list[Call]:
    """One message a pair that has bytes to move, receives posted first."""
    return [(name, peer, size) for peer, size in enumerate(nbytes) if size and peer != rank]


def counted_halo(graph: Graph, owner: NDArray[np.int32], ranks: int) -> NDArray[np.int64]:
    """Rows [P, P] that each rank needs of each other: distinct remote sources of edges into its vertices."""
    target = np.repeat(np.arange(graph.vertices), graph.csr.degrees())
    source = np.asarray(graph.csr.indices, dtype=np.int64)
    crossing = owner[source] != owner[target]
    needed = np.unique(np.stack([owner[target][crossing], source[crossing]]), axis=1)
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    np.add.at(matrix, (owner[needed[1]], needed[0]), 1)
    return matrix


def counted_mirrors(graph: Graph, partition: Partition) -> NDArray[np.int64]:
    """Mirrors [P, P] by (rank of the master, rank of the mirror), from the ranks of each vertex's edges."""
    assert partition.edge_part is not None
    holders = [{int(rank)} for rank in partition.owner]
    for *ends, rank in zip(*undirected_edges(graph), partition.edge_part, strict=True):
        for end in ends:
            holders[end].add(int(rank))
    matrix = np.zeros((partition.ranks, partition.ranks), dtype=np.int64)
    for master, ranks in zip(partition.owner.tolist(), holders, strict=True):
        for rank in ranks - {master}:
            matrix[master, rank] += 1
    return matrix


def differences(left: Mapping[tuple[int, ...], object], right: Mapping[tuple[int, ...], object]) -> list[str]:
    """Every key whose values differ, in words."""
    return [
        f"{key}: {left.get(key)} against {right.get(key)}"
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    ]
