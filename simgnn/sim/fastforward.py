"""Epochs that repeat are not simulated again.

At the boundary of an epoch (its first op has been issued, all else of that instant has happened) the whole state is
taken down with times relative to now and turns relative to the epoch: turns in flight, ops under way, messages and
flows, shared cores. The simulator is deterministic and knows no absolute time. So when the state was the same at an
earlier boundary, and all epochs up to a later one have the templates and sizes of those in between, the rows of that
stretch are repeated, the clock of what follows is moved, and the state is left as it is: it is the later one's.
"""

from dataclasses import dataclass, field
from typing import Any

import simpy

from simgnn.sim.decided import epoch_signature
from simgnn.sim.engine import Engine

KEPT = 64
"""How many boundaries are remembered: the longest period that is found."""


@dataclass(frozen=True)
class _Boundary:
    epoch: int
    at: int
    rows: int


@dataclass
class FastForward:
    """Watches an engine's boundaries. ``copied``: (first epoch left out, how many) of each jump."""

    engine: Engine
    copied: list[tuple[int, int]] = field(default_factory=list)
    _known: dict[tuple[Any, ...], _Boundary] = field(default_factory=dict)
    _signatures: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine.on_epoch = self._boundary

    def _boundary(self, event: simpy.Event) -> None:
        engine = self.engine
        epoch = self.engine.reached
        state = engine_state(engine, epoch)
        if state is None:
            return
        here = _Boundary(epoch, int(engine.env.now), len(engine.recorder))
        earlier = self._known.get(state)
        if earlier is not None:
            self._jump(earlier, here)
            self._known.clear()
            return
        if len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        self._known[state] = here

    def _jump(self, earlier: _Boundary, here: _Boundary) -> None:
        """Leave out as many whole periods as are sure to repeat, and at least the last epoch to be simulated."""
        engine = self.engine
        shift = engine.epoch_shift
        period = here.epoch - earlier.epoch
        # Turns that are opened already must exist after the jump too, with the same sizes.
        ahead = max(engine.turns) // engine.compiled.slots - here.epoch
        until = here.epoch
        while until < engine.epochs and self._signature(until + shift) == self._signature(until - period + shift):
            until += 1
        times = (until - 1 - ahead - here.epoch) // period
        if times < 1:
            return
        ticks = here.at - earlier.at
        self.copied.append((here.epoch + shift, times * period))
        engine.recorder.repeat(earlier.rows, times, period, ticks)
        engine.epochs -= times * period
        engine.epoch_shift += times * period
        engine.tick_shift += times * ticks

    def _signature(self, epoch: int) -> tuple[Any, ...]:
        if epoch not in self._signatures:
            engine = self.engine
            sizes = engine.pricer.sizes
            signature = epoch_signature(engine.program, sizes.activity, epoch)
            self._signatures[epoch] = (*signature, engine.evaluates(epoch - engine.epoch_shift))
        return self._signatures[epoch]


def engine_state(engine: Engine, epoch: int) -> tuple[Any, ...] | None:
    """All that the future depends on at the boundary of an epoch; None where a schedule's state cannot be compared."""
    now = int(engine.env.now)
    origin = epoch * engine.compiled.slots
    lanes = tuple(lane.state for lane in engine.lanes.values())
    try:
        hash(lanes)
    except TypeError:
        return None
    turns = tuple(
        (number - origin, state.template.name, tuple(map(tuple, state.waiting)))
        for number, state in sorted(engine.turns.items())
    )
    running = tuple(
        (number - origin, rank, index, issued - now, ends - now if ends >= 0 else None)
        for (number, rank, index), (issued, ends) in sorted(engine.running.items())
    )
    meetings = tuple(
        (key[0] - origin, *key[1:], meeting.state(now)) for key, meeting in sorted(engine.context.meetings.items())
    )
    cores = tuple(shared.state() for shared in engine.cores.values())
    return turns, running, meetings, cores, lanes, engine.network.state(origin)
