"""Jitter of a probe from repeat to repeat: what each rank does by itself, and what hits all ranks at once.

Only the first makes ranks wait for one another; the second makes whole epochs longer or shorter. Both are told apart
from how well a curve fits (its residual), which says nothing about repeats.
"""

import statistics
from collections.abc import Sequence
from math import sqrt

FEWEST = 3
"""Repeats, at least: of fewer a deviation says nothing."""


def split_jitter(spans: Sequence[Sequence[float]], limit: float) -> tuple[float | None, float | None]:
    """Standard deviations in seconds, (of one rank by itself, of all together); None each: fewer than FEWEST repeats.

    ``spans`` [ranks][repeats]: times of ranks that ran the same op at once. Repeats whose mean over ranks lies above
    ``limit`` are outliers and left out. A two-way analysis of variance: rows (persistent differences of ranks) are
    taken out, columns (a repeat that was slow on all ranks) are the common part, less what ranks' own jitter adds to
    it. One rank alone tells no common part: all is its own.
    """
    count = len(spans)
    kept = [place for place in range(len(spans[0])) if statistics.fmean(rank[place] for rank in spans) <= limit]
    if len(kept) < FEWEST:
        return None, None
    rows = [statistics.fmean(rank[place] for place in kept) for rank in spans]
    columns = [statistics.fmean(rank[place] for rank in spans) for place in kept]
    common = statistics.variance(columns)
    if count == 1:
        return sqrt(common), 0.0
    grand = statistics.fmean(rows)
    left = sum(
        (rank[place] - row - column + grand) ** 2
        for rank, row in zip(spans, rows, strict=True)
        for place, column in zip(kept, columns, strict=True)
    )
    own = left / ((count - 1) * (len(kept) - 1))
    return sqrt(own), sqrt(max(common - own / count, 0.0))
