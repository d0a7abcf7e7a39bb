"""How long ops of each kind take: a table from op kind to handler.

A handler begins an op on one rank at the current instant. It returns the ticks that the op takes if these are known, or
an event that fires when the op ends.

Where a library sends from host memory, a rank with a GPU copies what it sends to its host's memory before the call, and
what it received to its device afterwards: whole buffers, as the executor passes them (``executor/handlers/wire.py``).
These copies compete with all other traffic on the links that they cross. Ids and counts are copied with a fetch's rows.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import simpy

from simgnn.errors import ProgramError
from simgnn.program.calendar import Turn
from simgnn.program.kinds import COLLECTIVE_KINDS, COMPUTE_KINDS, LOCAL_COPY_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.program.ops import Work
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.sim.engine.compiled import CompiledOp
from simgnn.sim.engine.op_prices import HostWork, Messages, Pricer, Stream
from simgnn.sim.engine.rendezvous import Collective, Rounds, start_stream
from simgnn.sim.engine.sent_bytes import handed_bytes
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.network import Network
from simgnn.sim.shared_processors import HostCores

Outcome = int | simpy.Event
Meeting = Rounds | Collective


@dataclass
class Context:
    """Objects that handlers work with. ``cores``: shared cores that run device work, by rank; ``meetings``: ops of
    several ranks in progress, by (turn number, op id, team)."""

    env: simpy.Environment
    network: Network
    pricer: Pricer
    cores: Mapping[int, HostCores]
    meetings: dict[tuple[int, int, int], Meeting]


@dataclass(frozen=True)
class Begin:
    """An op that begins on a rank. ``number`` identifies its turn; ``turn``: epoch and step for size look-ups."""

    compiled: CompiledOp
    rank: int
    turn: Turn
    number: int


class Staged(NamedTuple):
    """Bytes that each rank copies out of its device before a call, and into its device afterwards; int64 [P] each."""

    out: IntArray
    back: IntArray


Handler = Callable[[Context, Begin], Outcome]


def compute(context: Context, begin: Begin) -> Outcome:
    """Run device work, which shares the device with other work of the rank or of ranks on the same cores.

    Copies and updates in the host memory of a GPU are work of the CPU there, and share this memory with copies. Where
    the profile names no such CPU they are flagged and take no time.
    """
    pricer, compiled, turn, rank = context.pricer, begin.compiled, begin.turn, begin.rank
    if works_in_host(pricer, compiled, rank):
        priced = host_work(pricer, compiled, turn, rank)
        if priced is None:
            pricer.flagged[compiled.op.name] = None
            return 0
        stream = pricer.host_stream(compiled, priced)
        return start_stream(context.env, context.network, stream, (begin.number, compiled.op_id, rank))
    durations = pricer.once("work", compiled, begin.turn, lambda: pricer.work_ps(compiled, begin.turn))
    return _on_device(context, begin, int(durations[begin.rank]))


def local_copy(context: Context, begin: Begin) -> Outcome:
    """Copy rows within a rank: the op's own work, or a copy of its bytes on the device."""
    pricer, compiled, turn = context.pricer, begin.compiled, begin.turn
    if compiled.op.work or works_in_host(pricer, compiled, begin.rank):
        return compute(context, begin)
    durations = pricer.once("copy", compiled, turn, lambda: copy_ps(pricer, compiled, turn))
    return _on_device(context, begin, int(durations[begin.rank]))


def works_in_host(pricer: Pricer, compiled: CompiledOp, rank: int) -> bool:
    """Whether an op copies or updates rows in the memory of the host of a GPU."""
    updates = compiled.op.kind in (OpKind.COPY, OpKind.ADD, OpKind.OPTIMIZE)
    return updates and pricer.machine.device(rank).kind == "gpu" and in_host(pricer.sizes.program, compiled)


def host_work(pricer: Pricer, compiled: CompiledOp, turn: Turn, rank: int) -> HostWork | None:
    """Price an op of which :func:`works_in_host` holds; see :meth:`Pricer.host_work`."""

    def priced() -> HostWork | None:
        copied = {"bytes": 1, "item_bytes": 1}
        if not compiled.op.work:
            copied["bytes"] = int(copied_bytes(pricer.sizes, compiled, turn)[rank])
        return pricer.host_work(compiled, turn, rank, compiled.op.work or (Work("copy", copied),))

    return pricer.once(f"host work of {rank}", compiled, turn, priced)


def copy_ps(pricer: Pricer, compiled: CompiledOp, turn: Turn) -> IntArray:
    """Ticks that a copy of an op's bytes on the device takes on every rank, int64 [P]."""
    nbytes = copied_bytes(pricer.sizes, compiled, turn)
    durations = np.zeros(len(nbytes), dtype=np.int64)
    for size in np.unique(nbytes).tolist():
        priced = pricer.work_ps(compiled, turn, (Work("copy", {"bytes": size, "item_bytes": 1}),))
        durations[nbytes == size] = priced[nbytes == size]
    return durations


def host_copy(context: Context, begin: Begin) -> Outcome:
    """Copy rows between host and device: a flow over the links between them; on a CPU a copy in memory."""
    pricer, compiled, turn, rank = context.pricer, begin.compiled, begin.turn, begin.rank
    nbytes = pricer.once("bytes", compiled, turn, lambda: copied_bytes(pricer.sizes, compiled, turn))
    if nbytes[rank] == 0:
        return 0
    stream = pricer.host_copy(compiled, rank, int(nbytes[rank]), compiled.op.kind is OpKind.H2D)
    if stream is None:
        return local_copy(context, begin)
    return start_stream(context.env, context.network, stream, (begin.number, compiled.op_id, rank))


def pairwise(context: Context, begin: Begin) -> Outcome:
    """Send messages between pairs of ranks. Each starts when both ends have issued the op and copied what they send."""
    pricer, compiled, turn = context.pricer, begin.compiled, begin.turn
    priced = pricer.once("messages", compiled, turn, lambda: pricer.messages(compiled, turn))
    if not priced:
        return 0

    def take_part() -> Outcome:
        meeting = _meeting(context, begin, lambda tag: Rounds(context.env, context.network, priced, compiled.runs, tag))
        return meeting.join(begin.rank)

    if not pricer.machine.through_host(begin.rank, compiled.backend) or in_host(pricer.sizes.program, compiled):
        return take_part()
    ranks = pricer.machine.ranks
    staged = pricer.once("staged", compiled, turn, lambda: staged_messages(priced, ranks))
    return _through_host(context, begin, staged, take_part)


def collective(context: Context, begin: Begin) -> Outcome:
    """Call a collective of a whole group. If members forward whole buffers (:class:`Relay`) or form a
    :func:`queued_ring`, each starts and ends on its own; otherwise all start when the last begins and end together."""
    pricer, compiled, turn = context.pricer, begin.compiled, begin.turn
    members = compiled.members[int(compiled.team[begin.rank])]
    if len(members) < 2:
        return 0
    handed = pricer.once("handed", compiled, turn, lambda: handed_bytes(pricer.sizes, compiled, turn))

    def make(tag: tuple[int, int, int]) -> Meeting:
        nbytes = int(handed[list(members)].max())
        what = f"collective {tag[2]}"
        priced = pricer.once(what, compiled, turn, lambda: pricer.collective(compiled, nbytes, members))
        if isinstance(priced, Stream):
            return Collective(context.env, context.network, priced, len(members), tag)
        return Rounds(context.env, context.network, priced, np.isin(np.arange(len(compiled.runs)), members), tag)

    def take_part() -> Outcome:
        return _meeting(context, begin, make).join(begin.rank)

    if not pricer.machine.through_host(begin.rank, compiled.backend):
        return take_part()
    return _through_host(context, begin, staged_collective(compiled.op.kind, handed, members), take_part)


def staged_messages(rounds: Sequence[Messages], ranks: int) -> Staged:
    """Bytes that each rank sends and receives in all rounds of a pairwise op."""
    out, back = np.zeros(ranks), np.zeros(ranks)
    for messages in rounds:
        out += np.bincount(messages.pairs.source, messages.sizes, ranks)
        back += np.bincount(messages.pairs.target, messages.sizes, ranks)
    return Staged(out.astype(np.int64), back.astype(np.int64))


def staged_collective(kind: OpKind, handed: IntArray, members: Sequence[int]) -> Staged:
    """Bytes that the members of a collective copy between device and host. ``handed`` [P]: bytes of the tensor that
    each rank passes to the call (for a broadcast only the root)."""
    out, back, mine = np.zeros_like(handed), np.zeros_like(handed), list(members)
    out[mine] = handed[mine]
    if kind is OpKind.ALLREDUCE:
        back[mine] = handed[mine]
    elif kind is OpKind.ALLGATHER:
        back[mine] = handed[mine].sum()
    elif kind is OpKind.BROADCAST:
        back[mine] = np.where(handed[mine] > 0, 0, handed[mine].max(initial=0))
    return Staged(out, back)


def copied_bytes(sizes: Sizes, compiled: CompiledOp, turn: Turn) -> IntArray:
    """Bytes that a local copy moves on every rank, int64 [P]: rows of its transfer, or rows that its route sends."""
    op = compiled.op
    if op.transfer is None:
        raise ProgramError(f"op '{op.name}' of kind {op.kind} needs work or a transfer, else it has no price")
    if op.route is not None and op.kind is OpKind.COPY:
        route = sizes.program.sizes.routes[op.route]
        rows: IntArray = route.matrix(sizes.program.ranks, turn.epoch, turn.step).sum(axis=1)
    else:
        rows = sizes.per_rank(op.transfer.rows, turn.epoch, turn.step, op.name)
    return rows * op.transfer.row_bytes


def _through_host(context: Context, begin: Begin, staged: Staged, take_part: Callable[[], Outcome]) -> Outcome:
    """Simulate a call on rows of a device: copy them to the host, communicate, copy the result back."""
    env, compiled, rank = context.env, begin.compiled, begin.rank

    def copy(nbytes: int, to_device: bool) -> Generator[simpy.Event, object, None]:
        stream = context.pricer.host_copy(compiled, rank, nbytes, to_device) if nbytes else None
        if stream is not None:
            tag = (begin.number, compiled.op_id, rank, -1 - int(to_device))  # rounds of messages count from 0
            yield start_stream(env, context.network, stream, tag)

    def steps() -> Generator[simpy.Event, object, None]:
        yield from copy(int(staged.out[rank]), False)
        outcome = take_part()
        if isinstance(outcome, simpy.Event):
            yield outcome
        elif outcome:
            yield env.timeout(outcome)
        yield from copy(int(staged.back[rank]), True)

    return env.process(steps())


def _on_device(context: Context, begin: Begin, duration_ps: int) -> Outcome:
    shared = context.cores.get(begin.rank)
    if shared is None or duration_ps == 0 or (begin.compiled.op.kind is OpKind.SAMPLE and _on_gpu(context, begin)):
        return duration_ps
    return shared.run(duration_ps)


def _on_gpu(context: Context, begin: Begin) -> bool:
    return context.pricer.machine.device(begin.rank).kind == "gpu"


def in_host(program: Program, compiled: CompiledOp) -> bool:
    """Whether all buffers that an op touches lie in host memory, so that nothing is copied from or to a GPU."""
    touched = [program.buffers[access.buffer].space != "device" for access in compiled.op.reads + compiled.op.writes]
    return bool(touched) and all(touched)


def _meeting(context: Context, begin: Begin, make: Callable[[tuple[int, int, int]], Meeting]) -> Meeting:
    key = begin.number, begin.compiled.op_id, int(begin.compiled.team[begin.rank])
    if key not in context.meetings:
        context.meetings[key] = make(key)
    return context.meetings[key]


HANDLERS: Mapping[OpKind, Handler] = MappingProxyType(
    {
        **dict.fromkeys(sorted(COMPUTE_KINDS), compute),
        **dict.fromkeys(sorted(LOCAL_COPY_KINDS), host_copy),
        OpKind.COPY: local_copy,
        **dict.fromkeys(sorted(PAIRWISE_KINDS), pairwise),
        **dict.fromkeys(sorted(COLLECTIVE_KINDS), collective),
    }
)
"""Handler of every op kind, by the family of the kind; a test checks that no kind is missing."""
