"""Bytes that every op sends, from the program and an activity (sizes fixed at run time), as the executor counts them.

A pairwise op sends rounds of messages between pairs of ranks, as the executor passes them to its library. An exchange
is one round. If its row counts are known only at run time, a round of counts (the header) precedes it, unless masks
have announced them. A fetch sends counts, ids and rows, in as many rounds as it needs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.errors import ProgramError
from simgnn.program.calendar import Turn
from simgnn.program.kinds import COLLECTIVE_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.program.sizes import IntArray
from simgnn.record.rundir import TRAFFIC_SCHEMA
from simgnn.sim.engine.compiled import Compiled, CompiledOp
from simgnn.sim.engine.turn_sizes import Sizes, epoch_signature

Floats = NDArray[np.float64]
WORD_BYTES = 8
"""Bytes of one count or id, which travel as int64."""


class Round(NamedTuple):
    """Messages of one call: int64 [n] sender, receiver, bytes (each pair at most once, none empty). ``control``: they
    are control data, not payload. ``header``: they are counts sent before rows, which do not count as messages."""

    source: IntArray
    target: IntArray
    nbytes: IntArray
    control: bool
    header: bool = False

    @classmethod
    def of(cls, nbytes: IntArray, control: bool, header: bool = False) -> "Round":
        """Build a round from the bytes of each (sender, receiver), [P, P]."""
        source, target = np.nonzero(nbytes)
        found = source.astype(np.int64), target.astype(np.int64), nbytes[source, target].astype(np.int64)
        return cls(*found, control, header)


def pairwise_rounds(compiled: CompiledOp, sizes: Sizes, turn: Turn) -> tuple[Round, ...]:
    """The rounds of an exchange, fetch or peer read in one turn. Empty: no rank has anything to send."""
    op = compiled.op
    if op.route is None or op.transfer is None:
        raise ProgramError(f"op '{op.name}' of kind {op.kind} has no route or no transfer; it needs both")
    transfer = op.transfer
    if transfer.decision is not None:
        matrix = sizes.pairs(transfer.decision, turn.epoch, turn.step, op.name).copy()
    else:
        route = sizes.program.sizes.routes[op.route]
        matrix = route.matrix(sizes.program.ranks, turn.epoch, turn.step)
    np.fill_diagonal(matrix, 0)
    together = (compiled.team[:, None] == compiled.team) & compiled.runs[:, None] & compiled.runs
    if op.kind is not OpKind.PEER_READ and np.any(matrix[~together]):
        raise ProgramError(f"op '{op.name}' sends along the route '{op.route}' to ranks outside its process group")
    headed = transfer.decision is not None and not transfer.announced
    if headed or op.kind is OpKind.FETCH:
        header = Round.of(header_bytes(compiled), True, True)
        if op.kind is OpKind.FETCH:
            return _fetch_rounds(matrix, transfer.row_bytes, int(op.options.get("round_rows", 0)), header)
        return (header, Round.of(matrix * transfer.row_bytes, transfer.control))
    rows = Round.of(matrix * transfer.row_bytes, transfer.control)
    return (rows,) if len(rows.source) else ()


def header_bytes(compiled: CompiledOp) -> IntArray:
    """Bytes of the messages in which every member of a team tells every other one count, int64 [P, P]."""
    together = (compiled.team[:, None] == compiled.team) & compiled.runs[:, None] & compiled.runs
    np.fill_diagonal(together, False)
    return np.asarray(together, dtype=np.int64) * WORD_BYTES


def _fetch_rounds(matrix: IntArray, row_bytes: int, limit: int, header: Round) -> tuple[Round, ...]:
    """Rounds of a fetch: counts, ids to owners, rows back. A rank sends at most ``limit`` ids a round (0: all)."""
    wanted = matrix.sum(axis=0)
    count = max(1, -(-int(wanted.max(initial=0)) // limit)) if limit else 1
    rounds = [header] if limit else []
    sent = np.zeros_like(matrix)
    for number in range(1, count + 1):
        # Ids are in no order by owner: each owner's share of a round is its share of all.
        share = np.minimum(number * limit, wanted) / np.maximum(wanted, 1) if limit else np.ones(len(wanted))
        until = matrix if number == count else np.floor(matrix * share).astype(np.int64)
        rows, sent = until - sent, until
        rounds += [header, Round.of(rows.T * WORD_BYTES, False), Round.of(rows * row_bytes, False)]
    return tuple(rounds)


def handed_bytes(sizes: Sizes, compiled: CompiledOp, turn: Turn) -> IntArray:
    """Bytes of the tensor that each rank passes to a collective, int64 [P].

    For a broadcast only the bytes of the root count. Parts of an all-gather are padded to the longest in the group."""
    op = compiled.op
    if op.transfer is None:
        return np.zeros(sizes.program.ranks, dtype=np.int64)
    nbytes = sizes.per_rank(op.transfer.rows, turn.epoch, turn.step, op.name) * op.transfer.row_bytes
    if op.kind is OpKind.BROADCAST:
        nbytes = np.where(np.arange(len(nbytes)) == op.root, nbytes, 0)
    if op.kind is OpKind.ALLGATHER:
        nbytes = nbytes.copy()
        for members in compiled.members.values():
            nbytes[list(members)] = nbytes[list(members)].max(initial=0)
    return np.where(compiled.runs, nbytes, 0)


@dataclass(frozen=True)
class Sent:
    """Counts of one op in one turn. ``counts`` int64 [P, 4]: bytes sent, collective bytes, control bytes, messages (the
    last columns of the trace). ``nbytes``, ``messages``: int64 [P, P], by (sender, receiver), without headers.
    ``headers``: number of rounds of headers, in each of which every member of a team sends one word to every other."""

    counts: IntArray
    nbytes: IntArray
    messages: IntArray
    headers: int = 0


def sent_by(sizes: Sizes, compiled: CompiledOp, turn: Turn) -> Sent:
    """Count what an op sends in a turn in which it runs."""
    kind, ranks = compiled.op.kind, sizes.program.ranks
    counts = np.zeros((ranks, 4), dtype=np.int64)
    if kind in COLLECTIVE_KINDS:
        control = compiled.op.transfer is not None and compiled.op.transfer.control
        counts[:, 2 if control else 1] = handed_bytes(sizes, compiled, turn)
    if kind not in PAIRWISE_KINDS:
        # a view of one zero: pairs take memory by ranks squared
        none = np.broadcast_to(np.int64(0), (ranks, ranks))
        return Sent(counts, none, none)
    nbytes, messages = np.zeros((ranks, ranks), dtype=np.int64), np.zeros((ranks, ranks), dtype=np.int64)
    headers = 0
    for found in pairwise_rounds(compiled, sizes, turn):
        np.add.at(counts[:, 2 if found.control else 0], found.source, found.nbytes)
        if found.header:
            headers += 1
        else:
            nbytes[found.source, found.target] += found.nbytes
            messages[found.source, found.target] += 1
    counts[:, 3] = messages.sum(axis=1)
    return Sent(counts, nbytes, messages, headers)


@dataclass(frozen=True)
class Traffic:
    """Payload of pairwise ops. ``epochs``: a map per epoch from op id to what the op sends in each step in which it
    runs; equal epochs share one map."""

    ranks: int
    epochs: tuple[Mapping[int, tuple[Sent, ...]], ...]

    def matrix(self, epoch: int, messages: bool = False) -> IntArray:
        """Payload bytes (or messages) in one epoch, int64 [P, P], without control ops (masks, counts)."""
        total = np.zeros((self.ranks, self.ranks), dtype=np.int64)
        for steps in self.epochs[epoch].values():
            for sent in steps:
                if sent.counts[:, 0].any():
                    total += sent.messages if messages else sent.nbytes
        return total

    def mean(self, epochs: Sequence[int] | IntArray, messages: bool = False) -> Floats:
        """Mean of :meth:`matrix` over several epochs, float64 [P, P]."""
        times = Counter(id(self.epochs[epoch]) for epoch in epochs)
        one_of = {id(self.epochs[epoch]): epoch for epoch in epochs}
        total = sum((count * self.matrix(one_of[key], messages) for key, count in times.items()), np.int64(0))
        return np.asarray(total / len(epochs), np.float64)

    def table(self) -> pa.Table:
        """The table ``traffic.parquet``: sums over all turns of the run, sorted by (op, source, target)."""
        times = Counter(map(id, self.epochs))
        distinct = {id(epoch): epoch for epoch in self.epochs}
        totals: dict[int, IntArray] = {}
        for key, epoch in distinct.items():
            for op_id, steps in epoch.items():
                both = totals.setdefault(op_id, np.zeros((2, self.ranks, self.ranks), dtype=np.int64))
                for sent in steps:
                    both += times[key] * np.stack((sent.messages, sent.nbytes))
        parts = [np.zeros((5, 0), dtype=np.int64)]
        for op_id, both in sorted(totals.items()):
            source, target = np.nonzero(both[0])
            parts.append(np.stack([np.full(len(source), op_id), source, target, *both[:, source, target]]))
        columns = zip(np.concatenate(parts, axis=1), TRAFFIC_SCHEMA, strict=True)
        return pa.table([pa.array(column, field.type) for column, field in columns], schema=TRAFFIC_SCHEMA)


def count_traffic(compiled: Compiled, sizes: Sizes, epochs: int) -> Traffic:
    """Count the traffic of all training turns of a run."""
    program, calendar = compiled.program, compiled.program.calendar
    known: dict[tuple[str | bytes, ...], Mapping[int, tuple[Sent, ...]]] = {}
    found = []
    for epoch in range(epochs):
        signature = epoch_signature(program, sizes.activity, epoch)
        if signature not in known:
            sent: dict[int, tuple[Sent, ...]] = {}
            for step in range(calendar.steps):
                turn = Turn(epoch, step, calendar.template(epoch, step))
                for op in compiled.templates[turn.template].ops:
                    if op.op.kind in PAIRWISE_KINDS and sizes.runs_in(op.op, epoch, step).any():
                        sent[op.op_id] = (*sent.get(op.op_id, ()), sent_by(sizes, op, turn))
            known[signature] = sent
        found.append(known[signature])
    return Traffic(program.ranks, tuple(found))
