"""Messages that were handed to the network together and wait out one latency."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simgnn.sim.network.link_crossings import Floats, Ints

Tag = tuple[int, ...]
"""Names a batch of messages: the number of its turn first, then what tells it from others of that turn."""
OnEnd = Callable[[list[int], int], None]
"""Called with the labels of flows that end together, and their end in ticks (now or a little later)."""


class Batch(NamedTuple):
    """Messages that wait out one latency: classes sorted, ``labels[low[c]:low[c + 1]]`` those of class c.

    ``unit`` float64 [classes]: bytes that each message hands over at once; None: none of them waits behind others.
    ``asked``: the receivers first say that they are there.
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
        """Some of its classes, which have waited behind others and do so no more."""
        labels = [label for c in classes.tolist() for label in self.labels[self.low[c] : self.low[c + 1]]]
        low = np.append(0, np.cumsum(np.diff(self.low)[classes]))
        weight, cap, size = (column[classes] for column in (self.weight, self.cap, self.size))
        return Batch(self.path[classes], weight, cap, size, low, labels, self.on_end, self.tag)
