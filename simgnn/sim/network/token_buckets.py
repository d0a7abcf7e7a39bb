"""Token buckets: bytes that a link lets through at once after a pause, before its rate holds (as Linux's tc tbf does).

A bucket fills with the link's rate while nothing flows, up to its burst. A message that begins takes out what it finds,
and crosses the link as if it were smaller by that much: alone it then takes exactly max(bytes / other limits, (bytes -
tokens) / rate), the closed form for a bucket that is emptied at full speed. Messages that begin together share the
tokens by size. What is not modelled: a bucket that fills slowly while flows use less than the link's rate.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.network.link_crossings import Floats, Ints

Crossed = tuple[tuple[int, float], ...]
"""Links of a path, each with its share: what a unit of a flow's rate takes of it."""


class Buckets:
    """Buckets of all links that have a burst. ``burst`` float64 [links] in bytes (0: none), ``capacity`` in bytes/s.

    ``crossed`` tells the links of a path by its number. Instants are ticks.
    """

    def __init__(self, burst: Floats, capacity: Floats, crossed: Callable[[int], Crossed]) -> None:
        self._burst = burst
        self._rate = np.where(burst > 0.0, capacity, 0.0)
        self._crossed = crossed
        self._known: dict[int, Crossed] = {}
        self._tokens = burst.copy()
        self._open = np.zeros(len(burst), dtype=np.int64)
        self._idle_since = np.zeros(len(burst), dtype=np.int64)

    def admit(self, now: int, path: Ints, weight: Floats, cap: Floats, size: Floats) -> Floats:
        """Sizes of classes of flows that begin now, less what passes at once; ``cap``: the most that each flow reaches,
        after a pause too."""
        useful = [
            [(link, share, self._useful(link, share, cap[k], size[k])) for link, share in self._limited(number)]
            for k, number in enumerate(path.tolist())
        ]
        wanted: dict[int, float] = {}
        for k, links in enumerate(useful):
            for link, share, most in links:
                self._fill(link, now)
                self._open[link] += 1
                wanted[link] = wanted.get(link, 0.0) + weight[k] * share * most
        part = {link: min(1.0, self._tokens[link] / need) for link, need in wanted.items() if need > 0.0}
        lessened = size.copy()
        for k, links in enumerate(useful):
            # a link that is faster than the flow anyhow holds nothing back
            passes = min((part[link] * most for link, _, most in links if most > 0.0), default=0.0)
            lessened[k] -= passes
            for link, share, most in links:
                if most > 0.0:
                    self._tokens[link] = max(self._tokens[link] - weight[k] * share * passes, 0.0)
        return lessened

    def leave(self, path: Ints, end: Ints) -> None:
        """Classes of flows have ended, each at its instant; a link that nothing crosses any more begins to fill."""
        for number, at in zip(path.tolist(), end.tolist(), strict=True):
            for link, _ in self._limited(number):
                self._open[link] -= 1
                self._idle_since[link] = max(self._idle_since[link], at)

    def state(self, now: int) -> tuple[Any, ...]:
        """All that the future depends on: the tokens as they are now, and how many classes cross each link."""
        idle = np.where(self._open == 0, np.maximum(now - self._idle_since, 0), 0)
        return np.minimum(self._tokens + self._rate * (idle / PICOSECONDS), self._burst).tobytes(), self._open.tobytes()

    def _limited(self, number: int) -> Crossed:
        """Links of a path that have a bucket."""
        if number not in self._known:
            self._known[number] = tuple(entry for entry in self._crossed(number) if self._burst[entry[0]] > 0.0)
        return self._known[number]

    def _useful(self, link: int, share: float, cap: float, size: float) -> float:
        """Bytes of a flow that may pass at once: even so it is no faster than its cap."""
        return float(size * max(1.0 - self._rate[link] / (share * cap), 0.0))

    def _fill(self, link: int, now: int) -> None:
        if self._open[link] == 0:
            idle_s = max(now - int(self._idle_since[link]), 0) / PICOSECONDS
            self._tokens[link] = min(self._tokens[link] + self._rate[link] * idle_s, self._burst[link])
            self._idle_since[link] = now
