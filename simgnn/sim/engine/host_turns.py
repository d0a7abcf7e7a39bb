"""A server that the ranks of a host share: it runs one op at a time, in the order in which ranks came."""

from collections import deque

import simpy


class HostTurns:
    """The turns of one stream on one host: the ranks that wait and the one that is served, the longest there first."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._there: deque[tuple[int, simpy.Event]] = deque()

    def arrive(self, rank: int) -> simpy.Event | None:
        """Let a rank come; return the event of its turn, or None if that is now."""
        event = self._env.event()
        self._there.append((rank, event))
        return event if len(self._there) > 1 else None

    def leave(self) -> None:
        """End the turn of the rank that is served; the next one goes on."""
        self._there.popleft()
        if self._there:
            self._there[0][1].succeed()

    def state(self) -> tuple[int, ...]:
        """The ranks that are there, the one that is served first."""
        return tuple(rank for rank, _ in self._there)
