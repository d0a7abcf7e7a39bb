"""Ops of several ranks: when their messages start, and when each rank has finished."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from simgnn.sim.engine.op_prices import Messages, Stream
from simgnn.sim.network.message_bundles import even_out
from simgnn.sim.network.network import Network, Tag

ABSENT = -1


class Rounds:
    """Messages between pairs of ranks, in rounds. A rank enters a round when it has ended the previous one (the first:
    when it issues the op) and pays for the call. A message starts when both ends have entered its round. A rank ends a
    round with the last message that it sends or receives. Ranks that do not run the op are always present."""

    def __init__(
        self, env: simpy.Environment, network: Network, rounds: Sequence[Messages], runs: NDArray[np.bool_], tag: Tag
    ) -> None:
        self._env, self._network = env, network
        self._rounds, self._tag = rounds, tag
        self._runs: list[bool] = runs.tolist()
        self._done: dict[int, simpy.Event] = {}
        # When each rank has entered each round (ABSENT: not yet), how many messages are open, and when the last ended.
        self._ready = np.tile(np.where(runs, ABSENT, 0), (len(rounds), 1))
        self._open = [[0] * len(runs) for _ in rounds]
        self._latest = [[0] * len(runs) for _ in rounds]

    def join(self, rank: int) -> simpy.Event:
        """Let a rank issue the op; return an event that fires when this rank has ended the last round."""
        done = self._done[rank] = self._env.event()
        self._enter(0, rank, int(self._env.now))
        return done

    def state(self, now: int) -> tuple[Any, ...]:
        """Everything that determines the future, except the messages in flight, with times relative to ``now``."""
        entered = self._ready != ABSENT
        opened, latest = np.array(self._open), np.array(self._latest)
        # a rank that was there before now is as good as one that is there now
        ready = np.where(entered, np.maximum(self._ready - now, 0), ABSENT)
        times = (ready, np.where(latest > 0, latest - now, ABSENT))
        return (entered.tobytes(), opened.tobytes(), *(column.tobytes() for column in times))

    def _enter(self, number: int, rank: int, at: int) -> None:
        """Let a rank enter a round at ``at``: now, or soon, as ends that are close together are reported at once."""
        messages = self._rounds[number]
        ready = at + int(messages.call_ps[rank])
        self._ready[number, rank] = self._latest[number][rank] = ready
        places = messages.pairs.of_rank[rank]
        self._open[number][rank] = len(places)
        if not len(places):
            self._leave(number, rank, ready)
            return
        there = self._ready[number, messages.pairs.peers[rank]]
        present = np.flatnonzero(there != ABSENT)
        if len(present):
            there, places = there[present], places[present]
            starts = np.maximum(np.maximum(there, ready) - int(self._env.now), 0) + messages.latencies[places]
            paths, sizes, caps = messages.pairs.paths[rank][present], messages.sizes[places], messages.caps[places]
            if messages.pairs.bundled:
                sizes, caps = even_out(starts, paths, sizes), even_out(starts, paths, caps)
            self._network.send(
                paths, sizes, caps, starts, places,
                lambda ended, end: self._end(number, ended, end), (*self._tag, number), messages.parts, messages.asked,
            )  # fmt: skip

    def _end(self, number: int, ended: list[int], end: int) -> None:
        source, target = self._rounds[number].pairs[:2]
        opened, latest = self._open[number], self._latest[number]
        for place in ended:
            for rank in (source[place], target[place]):
                if not self._runs[rank]:
                    continue
                opened[rank] -= 1
                if end > latest[rank]:
                    latest[rank] = end
                if opened[rank] == 0:
                    self._leave(number, rank, latest[rank])

    def _leave(self, number: int, rank: int, at: int) -> None:
        if number + 1 < len(self._rounds):
            self._enter(number + 1, rank, at)
        else:
            _fire(self._env, self._done.pop(rank), at)


class Collective:
    """A call of a whole group that advances together: it starts with the last member and ends for all at once."""

    def __init__(self, env: simpy.Environment, network: Network, stream: Stream, members: int, tag: Tag) -> None:
        self._env, self._network = env, network
        self._stream, self._tag = stream, tag
        self._missing = members
        self._done = env.event()

    def join(self, rank: int) -> simpy.Event:
        """Let a rank issue the op; return an event that fires when the call ends."""
        self._missing -= 1
        if self._missing == 0:
            start_stream(self._env, self._network, self._stream, self._tag, self._done)
        return self._done

    def state(self, now: int) -> tuple[Any, ...]:
        """Everything that determines the future, except the stream in flight."""
        return (self._missing,)


def start_stream(
    env: simpy.Environment, network: Network, stream: Stream, tag: Tag, done: simpy.Event | None = None
) -> simpy.Event:
    """Start a flow; ``done`` (None: a new event) fires when it ends."""
    ended = env.event() if done is None else done
    if stream.nbytes == 0.0:
        _fire(env, ended, int(env.now) + max(stream.latency_ps, stream.alone_ps))
    else:
        paths, latencies = np.array([stream.path], dtype=np.int64), np.array([stream.latency_ps], dtype=np.int64)
        sizes, caps = np.array([stream.nbytes], dtype=np.float64), np.array([stream.cap], dtype=np.float64)
        labels = np.zeros(1, dtype=np.int64)
        network.send(paths, sizes, caps, latencies, labels, lambda _, end: _fire(env, ended, end), tag)
    return ended


def _fire(env: simpy.Environment, event: simpy.Event, at: int) -> None:
    """Schedule an event at an instant, or now if that instant has passed."""
    event._ok, event._value = True, None
    env.schedule(event, delay=max(at - int(env.now), 0))
