"""The simulator's driver loop: interprets a program's turns, generically, on SimPy's clock of integer picoseconds.

One SimPy process a stream and rank (or host, and one for each server of a stream that has several) takes ops and lets
handlers say how long they last; one network process owns all links. A communicating stream issues in program order; of
the ready ops of any other stream ``pick`` chooses, the default being the first in program order. A rank opens its turns
in order, as many ahead as dependencies can reach. Events are ordered by (instant, priority, sequence), so that equal
programs have equal traces.
"""

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from simgnn.errors import BackendError
from simgnn.hardware.machine import Machine
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policies.schedule.pick import Observed, Pick, ProgramOrder, Ready
from simgnn.program.program import EVALUATE, Turn
from simgnn.program.stops import Stops, ranks_in_turn
from simgnn.sim.accounting import sent_by
from simgnn.sim.bundles import BUNDLED_ABOVE
from simgnn.sim.clock import FOREVER_PS, too_long
from simgnn.sim.compiled import Compiled, turn_of_number
from simgnn.sim.decided import Sizes
from simgnn.sim.device import share_devices
from simgnn.sim.handlers import HANDLERS, Begin, Context
from simgnn.sim.loads import burdened_hosts
from simgnn.sim.network import BOUNDARY, WINDOW, Network
from simgnn.sim.pricing import Pricer
from simgnn.sim.recorder import Recorder
from simgnn.sim.turns import ABSENT, DONE, Lane, TurnState, describe_stuck


class Engine:
    """One simulation of a program on a machine. ``epochs`` may shrink while it runs, as epochs are fast-forwarded;
    ``epoch_shift`` and ``tick_shift`` then say what was left out, and every row that is noted is moved by them."""

    def __init__(
        self,
        compiled: Compiled,
        machine: Machine,
        sizes: Sizes,
        epochs: int,
        *,
        stats: PartitionStats | None = None,
        evaluate_every: int = 0,
        stops: Stops | None = None,
        pick: Pick | None = None,
        window: float = WINDOW,
        bundle_above: int = BUNDLED_ABOVE,
    ) -> None:
        self.compiled = compiled
        self.program = compiled.program
        self.epochs = epochs
        self.epoch_shift = self.tick_shift = 0
        self.recorder = Recorder()
        self.env = simpy.Environment(initial_time=0)
        names = [link.name for link in machine.links]
        capacity = np.array([link.capacity_bytes_per_s for link in machine.links], dtype=np.float64)
        burst = np.array([link.burst_bytes for link in machine.links], dtype=np.float64)
        self.network = Network(self.env, capacity, names, burst=burst, window=window)
        self.pricer = Pricer(sizes, machine, stats, self.network, bundle_above)
        burdened = burdened_hosts(machine)
        self.cores = share_devices(self.env, self.program, machine, {host for at in burdened.values() for host in at})
        loads = [link.load for link in machine.links]
        if any(load is not None for load in loads):
            hosts = machine.hosts
            here = {hosts[rank]: cores for rank, cores in self.cores.items() if machine.cores(hosts[rank]) is not None}
            ends = {link: [here[host] for host in at if host in here] for link, at in burdened.items()}
            self.network.bear(loads, ends)
        self.context = Context(self.env, self.network, self.pricer, self.cores, {})
        self.turns: dict[int, TurnState] = {}
        self.running: dict[tuple[int, int, int], tuple[int, int]] = {}
        self.on_epoch: Any = None
        self._evaluate_every = evaluate_every if EVALUATE in self.program.templates else 0
        self._pick = ProgramOrder() if pick is None else pick
        # as the executor runs these: one turn after the other, even where an op of the next is ready and a stream idle
        serial = ranks_in_turn(self.program) if pick is None else (False,) * self.program.ranks
        self._windows = [1 if alone else compiled.window for alone in serial]
        self._stops = None if all(serial) else stops
        self._next = [0] * self.program.ranks
        self._active: list[list[int]] = [[] for _ in range(self.program.ranks)]
        self.reached = -1
        self._unfinished = 0
        self._over = self.env.event()
        self.lanes: dict[tuple[str, int], Lane] = {}
        for name, stream in self.program.streams.items():
            for rank in range(self.program.ranks):
                if stream.owner == "rank" or compiled.leader[rank] == rank:
                    self.lanes[name, rank] = Lane(stream, state=self._pick.init())

    def run(self) -> None:
        """Simulate to the end. Raises :class:`BackendError` when ops wait for one another for ever."""
        for (_, rank), lane in self.lanes.items():
            for _ in range(lane.stream.servers if lane.stream.group is None else 1):
                self.env.process(self._serve(lane, rank))
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
        """End the run at this instant, whatever is under way."""
        self._over.succeed()

    @property
    def orderly(self) -> bool:
        """Whether no schedule looks at ops that are ready but not issued."""
        return isinstance(self._pick, ProgramOrder)

    def _serve(self, lane: Lane, rank: int) -> Generator[simpy.Event, Any, None]:
        """One server of a stream: takes ops for ever; the run ends around it."""
        env = self.env
        while True:
            job = self._take(lane, rank)
            if job is None:
                wake = env.event()
                lane.asleep.append(wake)
                yield wake
                continue
            state, owner, index = job
            issued = int(env.now)
            runs = self._guarded(state, owner, index)
            if runs:
                self._reach(state.number)
                key = state.number, owner, index
                self.running[key] = issued, DONE
                compiled = state.template.ops[index]
                outcome = HANDLERS[compiled.op.kind](self.context, Begin(compiled, owner, state.sized, state.number))
                if isinstance(outcome, simpy.Event):
                    yield outcome
                elif outcome:
                    self.running[key] = issued, issued + outcome
                    yield env.timeout(outcome)
                if env.now >= FOREVER_PS:
                    raise too_long()
                del self.running[key]
                self._note(state, owner, index, issued)
            lane.ended += 1
            self._finish(state, owner, index)

    def _take(self, lane: Lane, rank: int) -> tuple[TurnState, int, int] | None:
        """The op that a free server of a stream runs next; None: none can start."""
        if lane.stream.group is not None:
            if lane.queue and lane.queue[0][0].waiting[lane.queue[0][1]][lane.queue[0][2]] == 0:
                return lane.queue.popleft()
            return None
        if not lane.ready:
            return None
        choice = 0
        if len(lane.ready) > 1:
            lane.ready.sort(key=lambda entry: entry[:3])
        if not isinstance(self._pick, ProgramOrder):
            seen = Observed({}, {name: other.ended for (name, at), other in self.lanes.items() if at == rank})
            ops = [(state, state.template.ops[index]) for _, index, _, state in lane.ready]
            choices = [Ready(s.sized.epoch, s.sized.step, compiled.op_id, compiled.op.name) for s, compiled in ops]
            choice, lane.state = self._pick.pick(choices, seen, lane.state)
        _, index, owner, state = lane.ready.pop(choice)
        return state, owner, index

    def _guarded(self, state: TurnState, rank: int, index: int) -> bool:
        guard = state.template.ops[index].op.guard
        if guard is None:
            return True
        sized, name = state.sized, state.template.ops[index].op.name
        return bool(self.pricer.sizes.guard(guard.decision, sized.epoch, sized.step, name)[rank])

    def _note(self, state: TurnState, rank: int, index: int, issued: int) -> None:
        compiled, sized = state.template.ops[index], state.sized
        sent = self.pricer.once("sent", compiled, sized, lambda: sent_by(self.pricer, compiled, sized).counts.tolist())
        epoch = state.number // self.compiled.slots + self.epoch_shift
        ticks = issued + self.tick_shift, int(self.env.now) + self.tick_shift
        self.recorder.add((rank, epoch, sized.step, compiled.op_id, *ticks, *sent[rank]))

    def _finish(self, state: TurnState, rank: int, index: int) -> None:
        """A node has ended: let its followers go, and open turns when it was the last of its turn on the rank."""
        state.waiting[rank][index] = DONE
        state.left[rank] -= 1
        for follower, other, position in state.followers.pop((rank, index), ()):
            follower.waiting[other][position] -= 1
            if follower.waiting[other][position] == 0:
                self._release(follower, other, position)
        if not state.left[rank]:
            self._active[rank].remove(state.number)
            self._unfinished -= 1
            if not any(state.left) and all(next_ > state.number for next_ in self._next):
                self._close(state)
            self._open_turns(rank)
            if not self._unfinished:
                self._over.succeed()

    def _release(self, state: TurnState, rank: int, index: int) -> None:
        """A node waits for nothing any more."""
        lane = self.lanes[state.template.ops[index].op.stream, rank]
        if lane.stream.group is None:
            lane.ready.append((state.number, index, rank, state))
        elif lane.queue[0] != (state, rank, index):
            return
        if lane.asleep:
            lane.asleep.popleft().succeed()

    def _open_turns(self, rank: int) -> None:
        """Open a rank's next turns, as long as no older turn than the window is in flight; evaluations stand alone, and
        none is opened over a stop."""
        slots, steps = self.compiled.slots, self.program.calendar.steps
        active = self._active[rank]
        while self._next[rank] < self.epochs * slots:
            number = self._next[rank]
            evaluation = number % slots == steps
            if evaluation and not self.evaluates(number // slots):
                self._next[rank] += 1
                continue
            lag = 0 if not active else number // slots * steps + number % slots - self._position(active[0])
            alone = evaluation or (active and active[-1] % slots == steps)
            stopped = number % slots == 0 and self.stops_after(number // slots - 1)
            if active and (alone or stopped or lag >= self._windows[rank]):
                return
            self._next[rank] += 1
            self._open(number, rank)

    def _position(self, number: int) -> int:
        """How many training turns lie before a turn."""
        return number // self.compiled.slots * self.program.calendar.steps + number % self.compiled.slots

    def evaluates(self, epoch: int) -> bool:
        """Whether an evaluation follows an epoch: every so many, and the last."""
        done = epoch + 1 + self.epoch_shift
        return self._evaluate_every > 0 and (done % self._evaluate_every == 0 or epoch + 1 == self.epochs)

    def stops_after(self, epoch: int) -> bool:
        """Whether a rank ends all its ops after an epoch before it begins the next."""
        return self._stops is not None and self._stops.after(epoch + 1 + self.epoch_shift)

    def _open(self, number: int, rank: int) -> None:
        state = self.turns.get(number)
        if state is None:
            turn = turn_of_number(self.program, number, self.epoch_shift)
            template = self.compiled.templates[turn.template]
            sized = Turn(turn.epoch + self.epoch_shift, turn.step, turn.template)
            waiting = [[ABSENT] * len(template.ops) for _ in range(self.program.ranks)]
            state = self.turns[number] = TurnState(number, sized, template, waiting, list(template.nodes))
        if not state.left[rank]:
            if not any(state.left) and all(next_ > number for next_ in self._next):
                self._close(state)
            return
        self._active[rank].append(number)
        self._unfinished += 1
        turn = Turn(number // self.compiled.slots, state.sized.step, state.template.name)
        for compiled in state.template.ops:
            if not compiled.runs[rank]:
                continue
            state.waiting[rank][compiled.index] = 0
            for name, back in compiled.parents:
                self._wait_for(state, rank, compiled.index, name, self.compiled.earlier(turn, back))
            lane = self.lanes[compiled.op.stream, rank]
            if lane.stream.group is not None:
                lane.queue.append((state, rank, compiled.index))
            if state.waiting[rank][compiled.index] == 0:
                self._release(state, rank, compiled.index)

    def _wait_for(self, state: TurnState, rank: int, index: int, name: str, number: int | None) -> None:
        """Make a node wait for an op of a turn, where that turn is in flight, has the op, and the op has not ended."""
        other = None if number is None else self.turns.get(number)
        if other is None or name not in other.template.index:
            return
        parent = other.template.ops[other.template.index[name]]
        for owner in self.compiled.parent_ranks(state.template.ops[index], rank, parent):
            if other.waiting[owner][parent.index] != DONE:
                state.waiting[rank][index] += 1
                other.followers.setdefault((owner, parent.index), []).append((state, rank, index))

    def _close(self, state: TurnState) -> None:
        """All nodes of a turn have ended."""
        del self.turns[state.number]
        self.pricer.forget(state.sized)
        for key in [key for key in self.context.meetings if key[0] == state.number]:
            del self.context.meetings[key]

    def _reach(self, number: int) -> None:
        """Tell the boundary of an epoch, once its first op has been issued and all else of the instant has happened."""
        epoch = number // self.compiled.slots
        if epoch > self.reached:
            self.reached = epoch
            if self.on_epoch is not None:
                boundary = self.env.event()
                boundary._ok, boundary._value = True, epoch
                boundary.callbacks.append(self.on_epoch)
                self.env.schedule(boundary, BOUNDARY)
