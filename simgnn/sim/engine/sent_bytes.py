"""What every op sends: a pure function of program and activity, so the same bytes that the executor counts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.program.kinds import COLLECTIVE_KINDS, PAIRWISE_KINDS
from simgnn.program.program import Turn
from simgnn.program.sizes import IntArray
from simgnn.record.rundir import TRAFFIC_SCHEMA
from simgnn.sim.engine.compiled import Compiled, CompiledOp
from simgnn.sim.engine.handlers import handed_bytes
from simgnn.sim.engine.message_rounds import pairwise_rounds
from simgnn.sim.engine.op_prices import Pricer
from simgnn.sim.engine.turn_sizes import epoch_signature

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sent:
    """Counts of one op in one turn. ``counts`` int64 [P, 4]: bytes sent, collective bytes, control bytes, messages (the
    last columns of the trace). ``nbytes``, ``messages``: int64 [P, P], by (sender, receiver), headers left out."""

    counts: IntArray
    nbytes: IntArray
    messages: IntArray


def sent_by(pricer: Pricer, compiled: CompiledOp, turn: Turn) -> Sent:
    """What an op sends in a turn in which it runs."""
    kind = compiled.op.kind
    ranks = pricer.sizes.program.ranks
    counts = np.zeros((ranks, 4), dtype=np.int64)
    if kind in COLLECTIVE_KINDS:
        control = compiled.op.transfer is not None and compiled.op.transfer.control
        counts[:, 2 if control else 1] = handed_bytes(pricer.sizes, compiled, turn)
    if kind not in PAIRWISE_KINDS:
        # a view of one zero: pairs take memory by ranks squared
        none = np.broadcast_to(np.int64(0), (ranks, ranks))
        return Sent(counts, none, none)
    nbytes, messages = np.zeros((ranks, ranks), dtype=np.int64), np.zeros((ranks, ranks), dtype=np.int64)
    for found in pairwise_rounds(compiled, pricer.sizes, turn):
        np.add.at(counts[:, 2 if found.control else 0], found.source, found.nbytes)
        if not found.header:
            nbytes[found.source, found.target] += found.nbytes
            messages[found.source, found.target] += 1
    counts[:, 3] = messages.sum(axis=1)
    return Sent(counts, nbytes, messages)


@dataclass(frozen=True)
class Traffic:
    """Payload of pairwise ops by (sender, receiver). ``epochs``: for each epoch, op id -> what it sends in each step;
    equal epochs share one value."""

    ranks: int
    epochs: tuple[Mapping[int, tuple[Sent, ...]], ...]

    def matrix(self, epoch: int, messages: bool = False) -> IntArray:
        """Payload bytes (or messages) in one epoch, int64 [P, P]; control ops (masks, counts) are left out."""
        total = np.zeros((self.ranks, self.ranks), dtype=np.int64)
        for steps in self.epochs[epoch].values():
            for sent in steps:
                if sent.counts[:, 0].any():
                    total += sent.messages if messages else sent.nbytes
        return total

    def mean(self, epochs: range, messages: bool = False) -> Floats:
        """The same, mean of several epochs, float64 [P, P]."""
        times = Counter(id(self.epochs[epoch]) for epoch in epochs)
        one_of = {id(self.epochs[epoch]): epoch for epoch in epochs}
        total = sum((count * self.matrix(one_of[key], messages) for key, count in times.items()), np.int64(0))
        return np.asarray(total / len(epochs), np.float64)

    def table(self) -> pa.Table:
        """``traffic.parquet``: summed over the run's turns, sorted by (op, source, target)."""
        times = Counter(map(id, self.epochs))
        distinct = {id(epoch): epoch for epoch in self.epochs}
        totals: dict[int, tuple[IntArray, IntArray]] = {}
        for key, epoch in distinct.items():
            for op_id, steps in epoch.items():
                none = np.zeros((self.ranks, self.ranks), dtype=np.int64)
                nbytes, messages = totals.get(op_id, (none, none))
                for sent in steps:
                    nbytes, messages = nbytes + times[key] * sent.nbytes, messages + times[key] * sent.messages
                totals[op_id] = nbytes, messages
        columns: list[list[int]] = [[] for _ in TRAFFIC_SCHEMA]
        for op_id in sorted(totals):
            nbytes, messages = totals[op_id]
            source, target = np.nonzero(messages)
            ids = np.full(len(source), op_id)
            found = (ids, source, target, messages[source, target], nbytes[source, target])
            for column, values in zip(columns, found, strict=True):
                column.extend(values.tolist())
        arrays = [pa.array(c, f.type) for c, f in zip(columns, TRAFFIC_SCHEMA, strict=True)]
        return pa.table(arrays, schema=TRAFFIC_SCHEMA)


def count_traffic(compiled: Compiled, pricer: Pricer, epochs: int) -> Traffic:
    """The traffic of a run's training turns."""
    program, activity = compiled.program, pricer.sizes.activity
    known: dict[tuple[str | bytes, ...], Mapping[int, tuple[Sent, ...]]] = {}
    found = []
    for epoch in range(epochs):
        signature = epoch_signature(program, activity, epoch)
        if signature not in known:
            known[signature] = _count_epoch(compiled, pricer, epoch)
        found.append(known[signature])
    return Traffic(program.ranks, tuple(found))


def _count_epoch(compiled: Compiled, pricer: Pricer, epoch: int) -> Mapping[int, tuple[Sent, ...]]:
    calendar = compiled.program.calendar
    found: dict[int, list[Sent]] = {}
    for step in range(calendar.steps):
        turn = Turn(epoch, step, calendar.template(epoch, step))
        for op in compiled.templates[turn.template].ops:
            guard = op.op.guard
            if op.op.kind not in PAIRWISE_KINDS:
                continue
            if guard is not None and not pricer.sizes.guard(guard.decision, epoch, step, op.op.name).any():
                continue
            found.setdefault(op.op_id, []).append(sent_by(pricer, op, turn))
    return {op_id: tuple(steps) for op_id, steps in found.items()}
