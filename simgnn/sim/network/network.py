"""The network: one SimPy process that owns all links, on which flows share bandwidth max-min fairly.

A message first waits for its latency and then becomes a fluid flow over the links of its path, never faster than its
cap. Flows with equal path, cap and size that begin together form one class. Rates are solved again only for the part of
the network that a change affects (:mod:`simgnn.sim.network.max_min`).

Events that happen close together are batched, so that rates are solved once for all of them. Ends: each flow of a batch
ends at exactly its own predicted instant, and the rates of all of them are released at their mean end; a batch spans at
most ``window`` times the mean age of the flows. Beginnings: each flow moves bytes from exactly its own instant on, at
the rate that it gets with the batch, which waits for at most ``window`` of the time that its fastest flow takes. A
batch holds at most the share ``PART`` of the flowing classes, or one class, so that a network with few flows is exact.
The error against exact events (``window = 0``) does not depend on the units of time or size.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import simpy

from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.sim.clock import FOREVER_PS, PICOSECONDS, too_long
from simgnn.sim.network.flow_table import Floats, FlowTable, Ints, Paths
from simgnn.sim.network.link_limits import Buckets, Loads
from simgnn.sim.network.max_min import patience, solve
from simgnn.sim.shared_processors import HostCores

WINDOW = 0.03
"""Default span of a batch of ends, relative to the mean age of the flows, and of a batch of beginnings, relative to the
time that they take; the error is bounded by a test (< 1 %)."""
FASTEST_BYTES_PER_S = 1e24
"""Rate that stands for "no cap": a terabyte takes one tick of the clock."""
PART = 0.02
"""Largest share of the flowing classes in a batch (or one class), so that the last flows of an exchange are exact."""
LATE = simpy.events.EventPriority(2)
"""Priority of events that must come after everything else at their instant, except flows."""
CALL = 3
"""Number of leading entries of a tag that identify a call: its turn, op and team."""
BOUNDARY = simpy.events.EventPriority(3)
"""Priority of events that must come after everything else at their instant, including flows."""
Tag = tuple[int, ...]
"""Name of a batch of messages: its turn number first, then what identifies the batch within that turn."""
OnEnd = Callable[[list[int], int], None]
"""Callback for flows that end together: gets their labels, and their end in ticks (now or a little later)."""


class Batch(NamedTuple):
    """Messages with the same latency, in classes of equal ones; ``labels[low[c]:low[c + 1]]`` are those of class c.

    ``unit`` float64 [classes]: bytes that each message sends at once; None: messages do not queue on loaded links.
    ``asked``: the receivers first announce themselves.
    """

    path: Ints
    weight: Floats
    cap: Floats
    size: Floats
    low: Ints
    labels: list[int]
    on_end: OnEnd
    tag: Tag
    unit: Floats | None = None
    asked: bool = False

    def part(self, classes: Ints) -> "Batch":
        """Return a batch of some of its classes, which have queued: without ``unit``, so they do not queue again."""
        labels = [label for c in classes.tolist() for label in self.labels[self.low[c] : self.low[c + 1]]]
        low = np.append(0, np.cumsum(np.diff(self.low)[classes]))
        weight, cap, size = (column[classes] for column in (self.weight, self.cap, self.size))
        return Batch(self.path[classes], weight, cap, size, low, labels, self.on_end, self.tag)


class Network:
    """All links and everything that flows on them.

    ``capacity`` float64 [links] in bytes/s and ``names`` describe the links; ``burst`` float64 [links]: bytes that each
    link lets through at once after a pause (:class:`Buckets`; 0: none). Submit flows with :meth:`send`.
    """

    def __init__(
        self, env: simpy.Environment, capacity: Floats, names: Sequence[str], burst: Floats, window: float = WINDOW
    ) -> None:
        self._env = env
        # The last link is a dummy for messages that cross no link: it never fills.
        self._capacity = np.append(np.asarray(capacity, dtype=np.float64), np.inf)
        self._names = (*names,)
        self._window = window
        self._flows = FlowTable(len(self._capacity))
        self._loads: Loads | None = None
        self._buckets: Buckets | None = None
        if burst.any():
            self._buckets = Buckets(np.append(burst, 0.0), self._capacity, self._flows.paths.crossed)
        self._waiting: list[tuple[int, int, Batch]] = []
        self._joining: list[tuple[int, Batch]] = []
        self._reach = self._capacity.copy()
        self._owners: dict[int, Batch] = {}
        self._order, self._owner_ids = count(), count()
        self._open: dict[int, int] = {}
        self._first_end = self._release = self._admission = FOREVER_PS
        self._batch: tuple[Ints, Ints, int] = np.zeros(0, dtype=np.int64), np.zeros((0, 4), dtype=np.int64), FOREVER_PS
        self._crowd = self._armed = self.solves = 0
        self._running = False
        self._rouse = env.event()
        env.process(self._run())

    def bear(self, machine: Machine, cores: Mapping[int, HostCores]) -> None:
        """Simulate loaded links: messages that fill them delay others and take processor time (:class:`Loads`)."""
        self._loads = Loads(machine, cores, self._capacity, self._flows)

    def answer(self, there: int, back: int) -> None:
        """Set the path ``back`` on which the receiver of a message over path ``there`` announces itself."""
        if self._loads is not None:
            self._loads.back[there] = back

    def path(self, shares: Mapping[int, float]) -> int:
        """Return the number of a path (link -> how much of it one unit of rate takes), for :meth:`send`."""
        self._check_capacity(shares)
        return self._flows.paths.intern(shares or {len(self._names): 1.0})

    def add_paths(self, paths: Paths) -> int:
        """Add very many paths without a search for equal ones; return the number of the first."""
        self._check_capacity(np.unique(paths.link).tolist())
        return self._flows.paths.extend(paths)

    def _check_capacity(self, links: Iterable[int]) -> None:
        for link in links:
            if not self._capacity[link] > 0.0:
                raise HardwareError(
                    f"a message would cross link '{self._names[link]}', whose bandwidth is {self._capacity[link]} "
                    f"bytes/s, expected more than zero. Change the hardware profile, or add a route around it."
                )

    def send(
        self, paths: Ints, sizes: Floats, caps: Floats, latencies: Ints, labels: Ints, on_end: OnEnd, tag: Tag,
        parts: int = 1, asked: bool = False,
    ) -> None:  # fmt: skip
        """Submit one message for each row: path number, bytes, largest rate when alone in bytes/s, latency in ticks.

        ``on_end`` is called with the ``labels`` of each group of messages that end together. ``parts``: number of parts
        in which each is sent. ``asked``: the receiver first announces itself, which may queue too.
        """
        now = int(self._env.now)
        caps = np.minimum(caps, FASTEST_BYTES_PER_S)
        order = np.lexsort((sizes, caps, paths, latencies))
        keys = (latencies[order], paths[order], caps[order], sizes[order])
        fresh = np.ones(len(order), dtype=np.bool_)
        fresh[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
        heads = np.flatnonzero(fresh)
        low = np.append(heads, len(order))
        delays = keys[0][heads]
        for delay in np.unique(delays):
            a, b = np.searchsorted(delays, (delay, delay + 1))
            path, cap, size = keys[1][heads[a:b]], keys[2][heads[a:b]], keys[3][heads[a:b]]
            ends = low[a : b + 1]
            weight, chosen = np.diff(ends).astype(np.float64), labels[order[ends[0] : ends[-1]]].tolist()
            unit = None if self._loads is None else size / parts
            batch = Batch(path, weight, cap, size, ends - ends[0], chosen, on_end, tag, unit, asked)
            heappush(self._waiting, (now + int(delay), next(self._order), batch))
        self._arm()

    def state(self, number: int) -> tuple[Any, ...]:
        """Everything that determines the future, with times relative to now and turns relative to turn ``number``."""
        now = int(self._env.now)
        flows = self._flows.columns
        alive = self._flows.order[~flows.ended[self._flows.order]]
        owners = zip(*(column[alive].tolist() for column in (flows.owner, flows.low, flows.high)), strict=True)
        whose = tuple(
            (*_relative(self._owners[owner].tag, number), *self._owners[owner].labels[low:high])
            for owner, low, high in owners
        )
        ahead = sorted(self._waiting, key=lambda entry: entry[:2])
        waiting = []
        for at, batch in (*self._joining, *((entry[0], entry[2]) for entry in ahead)):
            arrays = (column.tobytes() for column in batch[:5])
            waiting.append((at - now, batch.unit is None, *arrays, *batch.labels, _relative(batch.tag, number)))
        return (
            *(column[alive].tobytes() for column in flows[:5]),
            *((column[alive] - now).tobytes() for column in flows[5:8]),
            *(at - now if at < FOREVER_PS else None for at in (self._release, self._admission)),
            *(self._reach.tobytes(), len(self._flows.order), len(self._joining), whose, tuple(waiting)),
            () if self._buckets is None else self._buckets.state(now),
        )

    def _arm(self) -> None:
        """Schedule the process to wake at the next instant at which something changes."""
        if self._running:
            return
        at = self._next()
        self._armed += 1
        if at >= FOREVER_PS and self._waiting:
            raise too_long()
        if at < FOREVER_PS:
            alarm = simpy.Event(self._env)
            alarm._ok, alarm._value = True, self._armed
            alarm.callbacks.append(self._alarm)
            self._env.schedule(alarm, LATE, at - int(self._env.now))

    def _next(self) -> int:
        arrival = self._waiting[0][0] if self._waiting else FOREVER_PS
        return min(self._first_end, self._release, self._admission, arrival)

    def _alarm(self, alarm: simpy.Event) -> None:
        if alarm.value == self._armed:
            self._rouse.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            yield self._rouse
            self._rouse = self._env.event()
            now = int(self._env.now)
            self._running = True
            # Continue up to the next event outside the network, which nothing else can observe.
            while True:
                if now >= self._first_end:
                    self._commit()
                self._arrive(now)
                if now >= min(self._admission, self._release):
                    self._solve(now)
                now = self._next()
                if now >= min(self._env.peek(), FOREVER_PS):
                    break
            self._running = False
            self._arm()

    def _commit(self) -> None:
        """End the flows that :meth:`_solve` found to end next; others can use their bandwidth from ``_release`` on."""
        flows = self._flows
        gone, rows, self._release = self._batch
        flows.leave(gone)
        if self._buckets is not None:
            self._buckets.leave(flows.columns.path[gone], flows.columns.end[gone])
        self._first_end = FOREVER_PS
        for owner, low, high, end in rows.tolist():
            batch = self._owners[owner]
            self._open[owner] -= 1
            if self._open[owner] == 0:
                del self._open[owner], self._owners[owner]
            batch.on_end(batch.labels[low:high], end)

    def _arrive(self, now: int) -> None:
        """Let messages whose latency is over join the network, and set the latest time to solve rates for them."""
        flows = self._flows
        while self._waiting and self._waiting[0][0] <= now:
            at, _, batch = heappop(self._waiting)
            if self._loads is not None and batch.unit is not None:
                own = [owner for owner, other in self._owners.items() if other.tag[:CALL] == batch.tag[:CALL]]
                waits = self._loads.waits_ps(at, batch.path, batch.unit, own, batch.asked)
                for wait in np.unique(waits).tolist():
                    held = batch.part(np.flatnonzero(waits == wait))
                    heappush(self._waiting, (at + wait, next(self._order), held))
                continue
            if self._buckets is not None:
                lessened = self._buckets.admit(at, batch.path, batch.weight, batch.cap, batch.size)
                batch = batch._replace(size=lessened)
            self._joining.append((at, batch))
            self._crowd += len(batch.path)
            wait = 0
            if self._crowd <= PART * len(flows.order):
                wait = patience(batch.path, batch.cap, batch.size, flows.paths.build(), self._reach, self._window)
            self._admission = min(self._admission, at + wait)

    def _solve(self, now: int) -> None:
        """Remove ended flows, admit waiting ones, and compute rates again."""
        flows = self._flows
        for at, batch in self._joining:
            owner = next(self._owner_ids)
            self._owners[owner], self._open[owner] = batch, len(batch.path)
            flows.join(at, batch.path, batch.weight, batch.cap, batch.size, owner, batch.low)
        self._joining, self._crowd, self._admission = [], 0, FOREVER_PS
        dirty = flows.settle()
        self.solves += 1
        starved, self._first_end, gone, rows, release = solve(
            now, flows.order, flows.columns, self._capacity, dirty, self._reach, flows.crossings, self._window, PART
        )
        self._release, self._batch = FOREVER_PS, (gone, rows, release)
        if self._loads is not None:
            self._loads.share(now)
        if starved >= 0:
            left, rate = flows.columns.remaining[starved], flows.columns.rate[starved]
            left_s = left / max(rate, np.finfo(np.float64).tiny)
            if left_s < FOREVER_PS / PICOSECONDS:
                raise too_long()
            crossed = (i for i, _ in flows.paths.crossed(int(flows.columns.path[starved])) if i < len(self._names))
            raise HardwareError(
                f"a message of {left:.0f} bytes over {', '.join(self._names[i] for i in crossed)} would get "
                f"{rate:.3g} bytes/s and not end within {FOREVER_PS / PICOSECONDS:.0f} s of simulated time. Check the "
                f"bandwidths in the hardware profile."
            )


def _relative(tag: Tag, number: int) -> Tag:
    return (tag[0] - number, *tag[1:])
