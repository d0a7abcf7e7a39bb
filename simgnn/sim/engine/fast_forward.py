"""Fast-forwarding: epochs that repeat are copied instead of simulated again.

At the boundary of an epoch (its first op has been issued, and everything else at that instant has happened), the whole
state is recorded with times relative to now and turns relative to the epoch: turns in flight, running ops, messages and
flows, shared cores. The simulator is deterministic and does not use absolute time. So if an earlier boundary had the
same state, and the epochs that follow have the same templates and sizes as those in between, the trace rows between the
two boundaries are repeated, the clock is moved, and the state is unchanged. A schedule that picks among ready ops may
depend on the whole history, so all its epochs are simulated. So is the last epoch, which may differ as none follows it.
If every epoch ends before the next one issues an op, it does not differ: it is copied too, and the run ends.
"""

from collections import defaultdict, deque
from typing import Any, NamedTuple

import simpy

from simgnn.sim.engine.driver import Engine
from simgnn.sim.engine.turn_sizes import epoch_signature

KEPT = 64
"""Number of boundaries with equal state that are remembered."""


class _Boundary(NamedTuple):
    """A boundary: its epoch in the run (including skipped ones), its first instant, and the trace rows before it."""

    epoch: int
    at: int
    rows: int


class FastForward:
    """Watches the epoch boundaries of an engine. ``copied``: (first skipped epoch, number of epochs) of each jump."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.copied: list[tuple[int, int]] = []
        self._known: dict[tuple[Any, ...], deque[_Boundary]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._signatures: dict[int, tuple[Any, ...]] = {}
        engine.on_epoch = self._boundary

    def _boundary(self, event: simpy.Event) -> None:
        engine = self.engine
        here = self._here()
        alike = self._known[engine_state(engine, engine.reached)]
        if alike and alike[-1].epoch == here.epoch:
            return  # batches staged far ahead: two epochs were reached at one instant
        # Of several earlier boundaries in this state, the one whose period carries furthest; the latest of equals.
        best = max(reversed(alike), key=lambda earlier: self._repeats(earlier, here), default=None)
        alike.append(here)
        if best is not None and self._ends_alike(best, here):
            self._jump(best, here, engine.epochs + engine.epoch_shift - here.epoch)
            engine.end()
        elif best is not None and self._repeats(best, here) > 0:
            self._jump(best, here, self._repeats(best, here))
            alike.append(self._here())

    def _here(self) -> _Boundary:
        engine = self.engine
        now = int(engine.env.now) + engine.tick_shift
        return _Boundary(engine.reached + engine.epoch_shift, now, len(engine.recorder))

    def _repeats(self, earlier: _Boundary, here: _Boundary) -> int:
        """Number of epochs, in whole periods, that are certain to repeat; the last epoch is never among them."""
        engine = self.engine
        # Turns that are opened already must exist after the jump too, with the same sizes.
        ahead = max(engine.turns) // engine.compiled.slots - engine.reached
        period = here.epoch - earlier.epoch
        return max(self._alike_until(earlier, here) - 1 - ahead - here.epoch, 0) // period * period

    def _alike_until(self, earlier: _Boundary, here: _Boundary) -> int:
        """Return the first epoch, ``here`` or later, that differs in templates or sizes from the one a period before it
        (the number of epochs if none does). Return ``here`` also if an unfinished earlier epoch differs."""
        engine, until, period = self.engine, here.epoch, here.epoch - earlier.epoch
        last = engine.epochs + engine.epoch_shift
        for epoch in range(min(engine.turns) // engine.compiled.slots + engine.epoch_shift, here.epoch):
            if epoch < period or self._signature(epoch) != self._signature(epoch - period):
                return until
        while until < last and self._signature(until) == self._signature(until - period):
            until += 1
        return until

    def _ends_alike(self, earlier: _Boundary, here: _Boundary) -> bool:
        """Whether all remaining epochs repeat, including the last. For this, epochs must not overlap: then the last one
        runs like the others, although no epoch follows it."""
        engine = self.engine
        last = engine.epochs + engine.epoch_shift
        return (
            (last - here.epoch) % (here.epoch - earlier.epoch) == 0
            and min(engine.turns) >= engine.reached * engine.compiled.slots
            and engine.recorder.last_epoch < here.epoch
            and self._alike_until(earlier, here) == last
        )

    def _jump(self, earlier: _Boundary, here: _Boundary, epochs: int) -> None:
        """Skip ``epochs`` epochs that repeat the stretch between two boundaries."""
        engine, period = self.engine, here.epoch - earlier.epoch
        ticks, times = here.at - earlier.at, epochs // period
        self.copied.append((here.epoch, epochs))
        engine.recorder.repeat(earlier.rows, times, period, ticks)
        engine.epochs -= epochs
        engine.epoch_shift += epochs
        engine.tick_shift += times * ticks

    def _signature(self, epoch: int) -> tuple[Any, ...]:
        """Everything besides the state at its start that determines how an epoch runs."""
        engine = self.engine
        if epoch not in self._signatures:
            signature = epoch_signature(engine.program, engine.pricer.sizes.activity, epoch)
            here = epoch - engine.epoch_shift
            self._signatures[epoch] = (*signature, engine.evaluates(here), engine.stops_after(here))
        return self._signatures[epoch]


def engine_state(engine: Engine, epoch: int) -> tuple[Any, ...]:
    """Everything that determines how a run goes on after an epoch boundary, if no schedule picks among ready ops."""
    now = int(engine.env.now)
    origin = epoch * engine.compiled.slots
    turns = tuple(
        (number - origin, ranks[0].what.template.name, tuple((turn.opened, *turn.waiting) for turn in ranks))
        for number, ranks in sorted(engine.turns.items())
    )
    running = tuple(
        (number - origin, rank, index, issued - now, ends - now if ends >= 0 else None)
        for (number, rank, index), (issued, ends) in sorted(engine.running.items())
    )
    meetings = tuple(
        (key[0] - origin, *key[1:], meeting.state(now)) for key, meeting in sorted(engine.context.meetings.items())
    )
    cores = tuple(shared.state() for shared in dict.fromkeys(engine.cores.values()))
    in_turn = tuple(queue.state() for queue in engine.host_turns.values())
    return turns, running, meetings, in_turn, cores, engine.network.state(origin)
