"""Epochs that repeat are not simulated again.

At the boundary of an epoch (its first op has been issued, all else of that instant has happened) the whole state is
recorded with times relative to now and turns relative to the epoch: turns in flight, ops under way, messages and flows,
shared cores. The simulator is deterministic and knows no absolute time. So when the state was the same at an earlier
boundary, and all epochs up to a later one have the templates and sizes of those in between, the rows of that stretch
are repeated, the clock is moved, and the state stays as it is. A schedule that picks may look at all that was before,
so its epochs are simulated one by one. The last epoch is simulated, as nothing follows it; where each epoch has ended
before the next one issues anything, what follows changes nothing, so the last epoch is a copy too, and the run is over.
"""

from collections import defaultdict, deque
from typing import Any, NamedTuple

import simpy

from simgnn.sim.engine.driver import Engine
from simgnn.sim.engine.turn_sizes import epoch_signature

KEPT = 64
"""How many boundaries in one state are remembered."""


class _Boundary(NamedTuple):
    """An epoch of the run (epochs that were left out count), its first instant, and the rows of the trace before it."""

    epoch: int
    at: int
    rows: int


class FastForward:
    """Watches an engine's boundaries. ``copied``: (first epoch left out, how many) of each jump."""

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
        """How many epochs, in whole periods, are sure to repeat; the last epoch is never among them."""
        engine = self.engine
        # Turns that are opened already must exist after the jump too, with the same sizes.
        ahead = max(engine.turns) // engine.compiled.slots - engine.reached
        period = here.epoch - earlier.epoch
        return max(self._alike_until(earlier, here) - 1 - ahead - here.epoch, 0) // period * period

    def _alike_until(self, earlier: _Boundary, here: _Boundary) -> int:
        """The first epoch from here on whose templates or sizes differ from a period before; here itself where those of
        an earlier epoch that has not ended do."""
        engine, until, period = self.engine, here.epoch, here.epoch - earlier.epoch
        last = engine.epochs + engine.epoch_shift
        for epoch in range(min(engine.turns) // engine.compiled.slots + engine.epoch_shift, here.epoch):
            if epoch < period or self._signature(epoch) != self._signature(epoch - period):
                return until
        while until < last and self._signature(until) == self._signature(until - period):
            until += 1
        return until

    def _ends_alike(self, earlier: _Boundary, here: _Boundary) -> bool:
        """Whether the whole rest of the run repeats: all earlier epochs have ended, and nothing of later ones was
        issued, so that an epoch is the same with nothing after it."""
        engine = self.engine
        last = engine.epochs + engine.epoch_shift
        return (
            (last - here.epoch) % (here.epoch - earlier.epoch) == 0
            and min(engine.turns) >= engine.reached * engine.compiled.slots
            and engine.recorder.last_epoch < here.epoch
            and self._alike_until(earlier, here) == last
        )

    def _jump(self, earlier: _Boundary, here: _Boundary, epochs: int) -> None:
        """Leave out so many epochs, that repeat."""
        engine, period = self.engine, here.epoch - earlier.epoch
        ticks, times = here.at - earlier.at, epochs // period
        self.copied.append((here.epoch, epochs))
        engine.recorder.repeat(earlier.rows, times, period, ticks)
        engine.epochs -= epochs
        engine.epoch_shift += epochs
        engine.tick_shift += times * ticks

    def _signature(self, epoch: int) -> tuple[Any, ...]:
        """What decides an epoch of the run, besides the state that it starts in."""
        engine = self.engine
        if epoch not in self._signatures:
            signature = epoch_signature(engine.program, engine.pricer.sizes.activity, epoch)
            here = epoch - engine.epoch_shift
            self._signatures[epoch] = (*signature, engine.evaluates(here), engine.stops_after(here))
        return self._signatures[epoch]


def engine_state(engine: Engine, epoch: int) -> tuple[Any, ...]:
    """All that the future depends on at the boundary of an epoch, where ready ops run in program order."""
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
    return turns, running, meetings, cores, engine.network.state(origin)
