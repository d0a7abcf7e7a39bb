"""The main loop of the simulator: interprets a program's turns on SimPy's clock of integer picoseconds.

A SimPy process for each stream and rank (or host; one for each server of a stream with several) takes ops from the
rank's dispatcher (:mod:`simgnn.program.dispatch`) and calls handlers to find how long they last. One network process
owns all links. A rank begins its turns (training steps, evaluations) in order, with at most :attr:`Compiled.window` of
them unfinished. Events are ordered by (instant, priority, sequence), so that equal programs have equal traces.
"""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from simgnn.errors import BackendError
from simgnn.hardware.price.machine import Machine
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.calendar import Turn
from simgnn.program.dispatch import DONE, Dispatcher, Job, Lane, OpenTurn, Picks
from simgnn.program.drain_points import Stops, evaluations_in_turn, ranks_in_turn
from simgnn.sim.clock import FOREVER_PS, too_long
from simgnn.sim.engine.compiled import Compiled, CompiledOp, CompiledTemplate
from simgnn.sim.engine.handlers import HANDLERS, Begin, Context
from simgnn.sim.engine.host_turns import HostTurns
from simgnn.sim.engine.op_prices import Pricer
from simgnn.sim.engine.recorder import Recorder
from simgnn.sim.engine.sent_bytes import sent_by
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.link_limits import burdened_hosts
from simgnn.sim.network.network import BOUNDARY, Network
from simgnn.sim.shared_processors import share_devices

UNKNOWN = -1
"""End time in ``Engine.running`` of an op that ends with an event."""


class Clock(simpy.Environment):
    """An environment that counts the events that were scheduled."""

    scheduled = 0

    def schedule(self, *arguments: Any, **options: Any) -> None:
        self.scheduled += 1
        super().schedule(*arguments, **options)


@dataclass(eq=False)
class SharedTurn:
    """State of a turn shared by all ranks. ``sized``: turn to look up sizes for; ``ranks``: how many have ops left."""

    sized: Turn
    template: CompiledTemplate
    ranks: int


@dataclass(eq=False)
class ServedLane(Lane[SharedTurn]):
    """A stream of one rank or host. ``asleep``: wake-up events of its idle servers."""

    asleep: deque[simpy.Event] = field(default_factory=deque)

    def wake(self) -> None:
        """Wake an idle server, which then looks for work."""
        if self.asleep:
            self.asleep.popleft().succeed()


class Engine:
    """One simulation of a program on a machine. Fast-forwarding shrinks ``epochs``; ``epoch_shift`` and ``tick_shift``
    count the skipped epochs and ticks, and are added to every recorded row."""

    def __init__(
        self,
        compiled: Compiled,
        machine: Machine,
        sizes: Sizes,
        epochs: int,
        *,
        stats: PartitionStats | None,
        evaluate_every: int,
        stops: Stops | None,
        schedule: Picks | None,
        window: float,
        bundle_above: int,
    ) -> None:
        self.compiled, self.program, self.epochs = compiled, compiled.program, epochs
        self.epoch_shift = self.tick_shift = 0
        self.recorder = Recorder()
        self.env = Clock(initial_time=0)
        names = [link.name for link in machine.links]
        capacity = np.array([link.capacity_bytes_per_s for link in machine.links], dtype=np.float64)
        burst = np.array([link.burst_bytes for link in machine.links], dtype=np.float64)
        self.network = Network(self.env, capacity, names, burst, window)
        self.pricer = Pricer(sizes, machine, stats, self.network, bundle_above)
        burdened = {host for ends in burdened_hosts(machine).values() for host in ends}
        self.cores = share_devices(self.env, self.program, machine, burdened)
        if any(link.load is not None for link in machine.links):
            self.network.bear(machine, self.cores)
        self.context = Context(self.env, self.network, self.pricer, self.cores, {})
        self.turns: dict[int, Sequence[OpenTurn[SharedTurn]]] = {}
        in_turn = [name for name, stream in self.program.streams.items() if stream.in_turn]
        self.host_turns = {(name, host): HostTurns(self.env) for name in in_turn for host in set(self.program.hosts)}
        self.running: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.on_epoch: Any = None
        self._evaluate_every = evaluate_every if self.program.sweep else 0
        ranks, streams = range(self.program.ranks), self.program.streams
        # as the executor runs these: one turn after the other, even where an op of the next is ready and a stream idle
        picks = schedule is not None and schedule.picks
        serial = (False,) * len(ranks) if picks else ranks_in_turn(self.program)
        swept = (False,) * len(ranks) if picks else evaluations_in_turn(self.program)
        self._windows, self._sweep_windows = (
            [1 if alone else compiled.window for alone in each]
            for each in (serial, [one or other for one, other in zip(serial, swept, strict=True)])
        )
        self._stops = None if all(serial) else stops
        self._next = [0] * len(ranks)
        self._active: list[list[int]] = [[] for _ in ranks]
        self.reached, self._unfinished = -1, 0
        self._over = self.env.event()
        self._shares = any(stream.owner == "host" for stream in streams.values())
        self.dispatchers = []
        for rank in ranks:
            mine = {n: s for n, s in streams.items() if s.owner == "rank" or compiled.leader[rank] == rank}
            lanes = {name: ServedLane(stream) for name, stream in mine.items()}
            self.dispatchers.append(Dispatcher[SharedTurn](rank, lanes, schedule, self._decided))

    def run(self) -> None:
        """Simulate to the end. Raises :class:`BackendError` when ops wait for one another forever."""
        for name, stream in self.program.streams.items():
            for rank, dispatcher in enumerate(self.dispatchers):
                for _ in range((stream.servers if stream.group is None else 1) if name in dispatcher.lanes else 0):
                    self.env.process(self._serve(rank, name))
        for rank in range(self.program.ranks):
            self._open_turns(rank)
        if self.turns:
            try:
                self.env.run(until=self._over)
            except RuntimeError as error:
                if self.env.peek() != float("inf"):
                    raise
                raise BackendError(describe_stuck(self.turns)) from error

    def end(self) -> None:
        """End the run at this instant, even if ops are still running."""
        self._over.succeed()

    def _serve(self, rank: int, stream: str) -> Generator[simpy.Event, Any, None]:
        """Run one server of a stream: an endless loop over ops, which stops when the run ends."""
        env, dispatcher = self.env, self.dispatchers[rank]
        lane = dispatcher.lanes[stream]
        assert isinstance(lane, ServedLane)
        turns = self.host_turns.get((stream, self.program.hosts[rank]))
        while True:
            job = dispatcher.take(lane)
            if job is None:
                wake = env.event()
                lane.asleep.append(wake)
                yield wake
                continue
            shared, issued = job.turn.what, int(env.now)
            compiled = shared.template.ops[job.turn.order.places[job.position]]
            sized, guard = shared.sized, compiled.op.guard
            runs = guard is None or bool(self.pricer.sizes.runs_in(compiled.op, sized.epoch, sized.step)[rank])
            if runs:
                self._reach(job.number)
                key = job.number, rank, compiled.index
                self.running[key] = issued, UNKNOWN
                if turns is not None and (turn := turns.arrive(rank)) is not None:
                    yield turn
                started = int(env.now)
                outcome = HANDLERS[compiled.op.kind](self.context, Begin(compiled, rank, sized, job.number))
                if isinstance(outcome, simpy.Event):
                    yield outcome
                elif outcome:
                    self.running[key] = issued, started + outcome
                    yield env.timeout(outcome)
                if env.now >= FOREVER_PS:
                    raise too_long()
                del self.running[key]
                if turns is not None:
                    turns.leave()
                self._note(job, rank, compiled, issued, started)
            self._finish(job, rank, runs)

    def _decided(self, turn: OpenTurn[SharedTurn], name: str) -> int | None:
        """Return the value of a decision (a size or guard fixed at run time) on a rank; None if it has one per peer."""
        values = self.pricer.sizes.recorded(name, turn.epoch, turn.step, "pick")
        return int(values[turn.on.rank]) if values.ndim == 1 else None

    def _note(self, job: Job[SharedTurn], rank: int, compiled: CompiledOp, issued: int, started: int) -> None:
        sized, sizes = job.turn.what.sized, self.pricer.sizes
        sent = self.pricer.once("sent", compiled, sized, lambda: sent_by(sizes, compiled, sized).counts.tolist())
        epoch = job.number // self.compiled.slots + self.epoch_shift
        ticks = (at + self.tick_shift for at in (issued, started, int(self.env.now)))
        self.recorder.add((rank, epoch, sized.step, compiled.op_id, *ticks, *sent[rank]))

    def _finish(self, job: Job[SharedTurn], rank: int, ran: bool) -> None:
        """Release the successors of an op that ended; open new turns if it was the last op of its turn on the rank."""
        self.dispatchers[rank].finish(job.turn, job.position, ran)
        if not job.turn.left:
            self._active[rank].remove(job.number)
            self._unfinished -= 1
            self._leave(job.number)
            self._open_turns(rank)
            if not self._unfinished:
                self._over.succeed()

    def _open_turns(self, rank: int) -> None:
        """Open a rank's next turns in its window. Evaluations run apart from training; after a stop, turns wait for all
        before it."""
        slots, steps = self.compiled.slots, self.program.calendar.steps
        active = self._active[rank]
        while self._next[rank] < self.epochs * slots:
            number = self._next[rank]
            evaluation = number % slots >= steps
            window = (self._sweep_windows if evaluation else self._windows)[rank]
            if evaluation and not self.evaluates(number // slots):
                self._next[rank] += 1
                continue
            lag = 0 if not active else self._position(number) - self._position(active[0])
            apart = active and (active[-1] % slots >= steps) is not evaluation
            stopped = number % slots == 0 and self.stops_after(number // slots - 1)
            if active and (apart or stopped or lag >= window):
                return
            self._next[rank] += 1
            self._open(number, rank)

    def _position(self, number: int) -> int:
        return number // self.compiled.slots * self.program.calendar.steps + number % self.compiled.slots

    def evaluates(self, epoch: int) -> bool:
        """Whether an evaluation follows an epoch: every ``evaluate_every`` epochs, and after the last."""
        done = epoch + 1 + self.epoch_shift
        return self._evaluate_every > 0 and (done % self._evaluate_every == 0 or epoch + 1 == self.epochs)

    def stops_after(self, epoch: int) -> bool:
        """Whether each rank ends all its ops of an epoch before it begins any op of the next one."""
        return self._stops is not None and self._stops.after(epoch + 1 + self.epoch_shift)

    def _open(self, number: int, rank: int) -> None:
        if number not in self.turns:
            # fast-forwarded epochs count for the template and the sizes
            epoch, step = number // self.compiled.slots + self.epoch_shift, number % self.compiled.slots
            calendar, slots = self.program.calendar, self.compiled.slots
            trains = step < calendar.steps
            name = calendar.template(epoch, step) if trains else self.program.sweep[step - calendar.steps]
            sized = Turn(epoch, step if trains else step - slots, name)
            template = self.compiled.templates[sized.template]
            shared = SharedTurn(sized, template, self.program.ranks)
            self.turns[number] = [
                OpenTurn(dispatcher, number, epoch, sized.step, order, shared)
                for dispatcher, order in zip(self.dispatchers, template.orders, strict=True)
            ]
        opened = self.turns[number][rank]
        if not opened.left:
            self._leave(number)
            return
        self._active[rank].append(number)
        self._unfinished += 1
        self.dispatchers[rank].open(opened, self._before)

    def _before(self, turn: OpenTurn[SharedTurn], index: int, back: int, name: str) -> Sequence[OpenTurn[SharedTurn]]:
        """The turns ``back`` steps earlier whose op ``name`` must end first: of the same rank, or ranks of its host."""
        rank, template = turn.on.rank, turn.what.template
        here = Turn(turn.number // self.compiled.slots, turn.step, template.name)
        number = self.compiled.earlier(here, back)
        turns = None if number is None else self.turns.get(number)
        if turns is None:
            return ()
        if not self._shares:
            return (turns[rank],)
        there = turns[rank].what.template
        if name not in there.index:
            return ()
        child, parent = template.ops[turn.order.places[index]], there.ops[there.index[name]]
        return [turns[other] for other in self.compiled.parent_ranks(child, rank, parent)]

    def _leave(self, number: int) -> None:
        """Record that one more rank has finished a turn, and delete the turn when all ranks have."""
        turns = self.turns[number]
        shared = turns[0].what
        shared.ranks -= 1
        if shared.ranks:
            return
        del self.turns[number]
        self.pricer.forget(shared.sized)
        for key in [key for key in self.context.meetings if key[0] == number]:
            del self.context.meetings[key]

    def _reach(self, number: int) -> None:
        """Call ``on_epoch`` when the first op of an epoch is issued, after everything else at that instant."""
        epoch = number // self.compiled.slots
        if epoch > self.reached:
            self.reached = epoch
            if self.on_epoch is not None:
                boundary = self.env.event()
                boundary._ok, boundary._value = True, epoch
                boundary.callbacks.append(self.on_epoch)
                self.env.schedule(boundary, BOUNDARY)


def describe_stuck(turns: Mapping[int, Sequence[OpenTurn[SharedTurn]]]) -> str:
    """Return the error message for a program whose ops wait for one another forever."""
    waiting = [
        f"'{op.name}' of epoch {turn.epoch + 1} on rank {turn.on.rank}"
        for _, ranks in sorted(turns.items())
        for turn in ranks
        for op, count in zip(turn.order.ops, turn.waiting, strict=True)
        if turn.opened and count != DONE
    ]
    return (
        f"the program is deadlocked: {len(waiting)} ops cannot end, the first of them {', '.join(waiting[:3])}. "
        f"Check its dependencies and group calls with simgnn.program.validate."
    )
