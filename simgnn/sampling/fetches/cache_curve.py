"""How many rows a cache of any size would save: one curve for all sizes, without another look at the batches."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.sampling.fetches.remote_rows import Ranking

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class HitCurve:
    """Sums over rankings, one for each cache that is filled. Every number here is exact, for every number of hot rows.

    ``uses`` int64 [n]: batches that need the row at each place of its ranking; ``rankings`` int64 [n]: how many
    rankings reach that place. A batch needs a row once, so a cache of n rows hits the first n uses.
    """

    uses: IntArray
    rankings: IntArray

    @classmethod
    def none(cls) -> "HitCurve":
        """Of no ranking."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def of_ranking(cls, ranking: Ranking) -> "HitCurve":
        """Of one worker, and an epoch or a run."""
        return cls(ranking.counts[ranking.order].astype(np.int64), np.ones(len(ranking.counts), np.int64))

    def __add__(self, other: "HitCurve") -> "HitCurve":
        longer, shorter = (self, other) if len(self.uses) >= len(other.uses) else (other, self)
        uses, rankings = longer.uses.copy(), longer.rankings.copy()
        uses[: len(shorter.uses)] += shorter.uses
        rankings[: len(shorter.rankings)] += shorter.rankings
        return HitCurve(uses, rankings)

    @property
    def remote(self) -> int:
        """Rows of other hosts that batches need, each once a batch: what they pull without a cache."""
        return int(self.uses.sum())

    def hits(self, hot_rows: int) -> int:
        """Of them, those that a cache of ``hot_rows`` rows holds."""
        return int(self.uses[:hot_rows].sum())

    def pulled(self, hot_rows: int) -> int:
        """Of them, those that batches still pull."""
        return self.remote - self.hits(hot_rows)

    def cached(self, hot_rows: int) -> int:
        """Rows that are pulled to fill the caches, each of them whole."""
        return int(self.rankings[:hot_rows].sum())

    @property
    def enough(self) -> int:
        """The fewest hot rows with the fewest rows pulled in all, by batches and into caches: further ones are needed
        by one batch only, and save nothing."""
        return int(np.count_nonzero(self.uses > self.rankings))
