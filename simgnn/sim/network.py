"""The network: one SimPy process that owns all links, which flows share max-min fairly.

A message pays its latency first and then becomes a fluid flow over the links of its path, never faster than its cap.
Flows of one path, cap and size that begin together are one class. Rates are solved again only for the part of the
network that a change reaches (:mod:`simgnn.sim.maxmin`).

Ends that lie close together are batched: each flow of a batch ends at exactly its own predicted instant, and the rates
of all of them are given away once, at their mean end. A batch spans at most ``window`` times the mean age of the
flows and ``PART`` of them, so the error against exact events (``window = 0``) depends on no unit of time or size.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import simpy

from simgnn.errors import BackendError
from simgnn.sim.buckets import Buckets
from simgnn.sim.clock import FOREVER_PS, PICOSECONDS, too_long
from simgnn.sim.crossings import Floats, Ints
from simgnn.sim.flowtable import FlowTable
from simgnn.sim.maxmin import next_batch, share_out

WINDOW = 0.01
"""Default span of a batch, relative to the mean age of the flows; its error is bounded by a test (< 1 %)."""
FASTEST_BYTES_PER_S = 1e24
"""Stands in for "no cap": a byte takes one tick of the clock."""
PART = 0.02
"""A batch holds at most this share of the flows under way, or one class: the last flows of an exchange are exact."""
LATE = simpy.events.EventPriority(2)
"""Priority of events that must see everything else that happens at their instant, flows apart."""
BOUNDARY = simpy.events.EventPriority(3)
"""Priority of events that must see the flows too."""

Tag = tuple[int, ...]
"""Names a batch of messages: the number of its turn first, then what tells it from others of that turn."""
OnEnd = Callable[[Ints, int], None]
"""Called with the labels of flows that end together, and their end in ticks (now or a little later)."""


class _Batch(NamedTuple):
    """Messages that wait out one latency: classes sorted, ``labels[low[c]:low[c + 1]]`` those of class c."""

    path: Ints
    weight: Floats
    cap: Floats
    size: Floats
    low: Ints
    labels: Ints
    on_end: OnEnd
    tag: Tag


class Network:
    """All links and everything that flows on them.

    ``capacity`` float64 [links] in bytes/s and ``names`` describe the links; ``burst`` float64 [links]: bytes that each
    lets through at once after a pause (:mod:`simgnn.sim.buckets`; None: none). Flows are submitted with :meth:`send`.
    """

    def __init__(
        self,
        env: simpy.Environment,
        capacity: Floats,
        names: Sequence[str],
        *,
        burst: Floats | None = None,
        window: float = WINDOW,
    ) -> None:
        self._env = env
        # The last link is no link: it never fills, and carries messages that cross none.
        self._capacity = np.append(np.asarray(capacity, dtype=np.float64), np.inf)
        self._names = (*names,)
        self._window = window
        self._flows = FlowTable(len(self._capacity))
        self._buckets: Buckets | None = None
        if burst is not None and burst.any():
            self._buckets = Buckets(np.append(burst, 0.0), self._capacity, self._flows.paths.crossed)
        self._waiting: list[tuple[int, int, _Batch]] = []
        self._order = count()
        self._owners: dict[int, _Batch] = {}
        self._owner_ids = count()
        self._open: dict[int, int] = {}
        self._first_end = self._release = FOREVER_PS
        self._batch: tuple[Ints, int] = np.zeros(0, dtype=np.int64), FOREVER_PS
        self._armed = 0
        self._running = False
        self._rouse = env.event()
        self.solves = 0
        env.process(self._run())

    def path(self, shares: Mapping[int, float]) -> int:
        """Number of a path (link -> how much of it one unit of rate takes), for :meth:`send`."""
        for link in shares:
            if not self._capacity[link] > 0.0:
                raise BackendError(
                    f"a message would cross link '{self._names[link]}', whose bandwidth is {self._capacity[link]} "
                    f"bytes/s; expected more than zero: give the link a bandwidth in the hardware profile, or a route "
                    f"around it"
                )
        return self._flows.paths.intern(shares or {len(self._names): 1.0})

    def send(
        self, paths: Ints, sizes: Floats, caps: Floats, latencies: Ints, labels: Ints, on_end: OnEnd, tag: Tag
    ) -> None:
        """Submit one message a row: path number, bytes, the most it reaches alone in bytes/s, its latency in ticks.

        ``on_end`` is called once for each group of messages that end together, with their ``labels``.
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
            ends = low[a : b + 1]
            batch = _Batch(
                keys[1][heads[a:b]],
                np.diff(ends).astype(np.float64),
                keys[2][heads[a:b]],
                keys[3][heads[a:b]],
                ends - ends[0],
                labels[order[ends[0] : ends[-1]]],
                on_end,
                tag,
            )
            heappush(self._waiting, (now + int(delay), next(self._order), batch))
        self._arm()

    def state(self, number: int) -> tuple[Any, ...]:
        """All that the future depends on, with times relative to now and turns to ``number``: equal states evolve
        equally."""
        now = int(self._env.now)
        flows = self._flows
        alive = flows.order[~flows.ended[flows.order]]
        columns = (flows.path, flows.weight, flows.cap, flows.remaining, flows.rate)
        times = (flows.since, flows.born, flows.end)
        owners = zip(*(column[alive].tolist() for column in (flows.owner, flows.low, flows.high)), strict=True)
        whose = tuple(
            (*_relative(self._owners[owner].tag, number), self._owners[owner].labels[low:high].tobytes())
            for owner, low, high in owners
        )
        waiting = tuple(
            (at - now, *(column.tobytes() for column in batch[:6]), _relative(batch.tag, number))
            for at, _, batch in sorted(self._waiting, key=lambda entry: entry[:2])
        )
        return (
            *(column[alive].tobytes() for column in columns),
            *((column[alive] - now).tobytes() for column in times),
            self._release - now if self._release < FOREVER_PS else None,
            whose,
            waiting,
            () if self._buckets is None else self._buckets.state(now),
        )

    def _arm(self) -> None:
        """Wake the process at the next instant at which something changes."""
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
        return min(self._first_end, self._release, self._waiting[0][0] if self._waiting else FOREVER_PS)

    def _alarm(self, alarm: simpy.Event) -> None:
        if alarm.value == self._armed:
            self._rouse.succeed()

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            yield self._rouse
            self._rouse = self._env.event()
            now = int(self._env.now)
            self._running = True
            # Up to the next event of anybody else the network goes on by itself: nobody could tell.
            while True:
                if now >= self._first_end:
                    self._commit()
                arrived = bool(self._waiting) and self._waiting[0][0] <= now
                if arrived or now >= self._release:
                    self._solve(now)
                now = self._next()
                if now >= min(self._env.peek(), FOREVER_PS):
                    break
            self._running = False
            self._arm()

    def _commit(self) -> None:
        """End the batch of flows that was found last: their instants are final, their rates go at the release."""
        flows = self._flows
        gone, self._release = self._batch
        flows.leave(gone)
        if self._buckets is not None:
            self._buckets.leave(flows.path[gone], flows.end[gone])
        self._first_end = FOREVER_PS
        order = gone[np.argsort(flows.end[gone], kind="stable")]
        rows = zip(*(c[order].tolist() for c in (flows.owner, flows.low, flows.high, flows.end)), strict=True)
        for owner, low, high, end in rows:
            batch = self._owners[owner]
            self._open[owner] -= 1
            if self._open[owner] == 0:
                del self._open[owner], self._owners[owner]
            batch.on_end(batch.labels[low:high], end)

    def _solve(self, now: int) -> None:
        """Take out what has ended, let in what has waited out its latency, and share again."""
        flows = self._flows
        while self._waiting and self._waiting[0][0] <= now:
            batch = heappop(self._waiting)[2]
            owner = next(self._owner_ids)
            self._owners[owner], self._open[owner] = batch, len(batch.path)
            size = batch.size
            if self._buckets is not None:
                size = self._buckets.admit(now, batch.path, batch.weight, batch.cap, size)
            flows.join(now, batch.path, batch.weight, batch.cap, size, owner, batch.low)
        dirty = flows.settle()
        self.solves += 1
        starved = share_out(
            now, flows.order, dirty, flows.ended, flows.cap, flows.rate, flows.remaining, flows.since, flows.end,
            self._capacity, flows.crossings,
        )  # fmt: skip
        if starved >= 0:
            left_s = flows.remaining[starved] / max(flows.rate[starved], np.finfo(np.float64).tiny)
            if left_s < FOREVER_PS / PICOSECONDS:
                raise too_long()
            crossed = (i for i in flows.paths.links(int(flows.path[starved])) if i < len(self._names))
            raise BackendError(
                f"a message of {flows.remaining[starved]:.0f} bytes over {', '.join(self._names[i] for i in crossed)} "
                f"would get {flows.rate[starved]:.3g} bytes/s and not end within {FOREVER_PS / PICOSECONDS:.0f} s of "
                f"simulated time; expected bandwidth to spare: check the bandwidths in the hardware profile"
            )
        self._release = FOREVER_PS
        first_end, gone, release = next_batch(
            flows.order, flows.end, flows.born, flows.weight, flows.rate, self._window, PART
        )
        self._first_end, self._batch = int(first_end), (gone, int(release))


def _relative(tag: Tag, number: int) -> Tag:
    return (tag[0] - number, *tag[1:])
