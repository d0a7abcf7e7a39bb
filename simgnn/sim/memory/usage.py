"""How much of each memory (of devices, or of hosts) the buffers in it take at their peak, and what they are."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.program.sizes import IntArray
from simgnn.record.memory import KEPT_FREE, MemoryPeak, Place
from simgnn.sim.memory.spans import SCRATCH, Spans
from simgnn.sim.network.flow_table import Ints

LASTING, PASSING, WHILE_RUNNING = "buffers held all the time", "buffers of single turns", "scratch memory of ops"


@dataclass(frozen=True, eq=False)
class Usage:
    """Buffers in memories of one kind. ``always`` [P]: bytes that each rank holds there all the time; ``spans``: all
    others; ``place`` [P]: number of the memory of each rank; ``limits``, ``names``: of each memory."""

    spans: Spans
    always: IntArray
    place: Ints
    limits: NDArray[np.float64]
    kind: Place
    names: tuple[str, ...]

    def always_in(self) -> Ints:
        """Bytes that are held all the time in each memory, int64 [memories]."""
        total = np.zeros(len(self.limits), dtype=np.int64)
        np.add.at(total, self.place, self.always)
        return total

    def totals(self) -> IntArray:
        """Peak bytes of each memory, int64 [memories]."""
        return self.spans.peaks(self.always_in(), self.place)

    def peaks(self, reserved: IntArray | None) -> Iterator[MemoryPeak]:
        """Yield the peak of each memory that ranks use. ``reserved`` [P]: memory that an allocator takes for a rank
        alone on its device, where that is more than its buffers (0: there is none)."""
        here, span, _, change = self.spans.changes(self.place)
        level = np.cumsum(change)
        running = self.spans.named({SCRATCH})
        scratch = np.cumsum(np.where(running[span], change, 0))
        bounds, always = np.searchsorted(here, np.arange(len(self.limits) + 1)), self.always_in()
        for number in np.unique(self.place).tolist():
            ranks = np.flatnonzero(self.place == number)
            mine, held = self.always[ranks].copy(), {LASTING: int(always[number]), PASSING: 0, WHILE_RUNNING: 0}
            low, high = int(bounds[number]), int(bounds[number + 1])
            if high > low and level[low:high].max() > 0:
                at = low + int(np.argmax(level[low:high]))
                held[WHILE_RUNNING] = int(scratch[at])
                held[PASSING] = int(level[at]) - held[WHILE_RUNNING]
                owner = self.spans.rank[span[low : at + 1]]
                mine = mine + np.bincount(owner, change[low : at + 1], len(self.place)).astype(np.int64)[ranks]
            taken = 0 if reserved is None else int(reserved[ranks].sum())
            held[KEPT_FREE] = max(taken - sum(held.values()), 0)
            limit = self.limits[number]
            yield MemoryPeak(
                place=self.kind,
                name=self.names[number],
                ranks=ranks.tolist(),
                fullest=int(ranks[np.argmax(mine)]),
                peak_bytes=sum(held.values()),
                capacity_bytes=int(limit) if np.isfinite(limit) else None,
                parts={name: nbytes for name, nbytes in held.items() if nbytes},
            )
