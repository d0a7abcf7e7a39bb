"""How a cache of hot rows is filled anew while the epoch before runs: in as many pieces as it has steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """What each step brings of a cache, by slot. ``step`` int64 [n]: the step that fills it; ``kept`` bool [n]: its row
    lies in the cache before too, and is copied from there. Source: RapidGNN, VectorPull (docs/systems/rapidgnn.md)."""

    step: IntArray
    kept: NDArray[np.bool_]

    @classmethod
    def of(cls, hot: NDArray[Any], before: NDArray[Any], steps: int, only_new: bool) -> "Pieces":
        """Of the cache ``hot`` [n] (ids by slot) after ``before`` [m]. ``only_new``: rows of both are kept."""
        size = -(-len(hot) // steps)
        kept = np.isin(hot, before) if only_new else np.zeros(len(hot), np.bool_)
        return cls(np.arange(len(hot)) // max(size, 1), kept)

    def pulled(self, senders: IntArray, ranks: int, steps: int) -> IntArray:
        """Rows that each rank sends at each step, int64 [P, steps]; ``senders`` int64 [n], by slot."""
        fresh = ~self.kept
        counts = np.bincount(senders[fresh] * steps + self.step[fresh], minlength=ranks * steps)
        return counts.reshape(ranks, steps).astype(np.int64)

    def copied(self, steps: int) -> IntArray:
        """Rows that are kept at each step, int64 [steps]."""
        return np.bincount(self.step[self.kept], minlength=steps).astype(np.int64)
