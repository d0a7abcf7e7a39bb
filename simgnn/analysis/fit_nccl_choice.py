"""Which algorithm NCCL took for each size, read off where its times jump.

NCCL takes the algorithm that it expects to be fastest. Its expectation of trees holds a table by powers of two of the
size (``treeCorrectionFactor`` in src/graph/tuning.cc, protocol Simple, the same from 2.8 to 2.18), so that it changes
between ring and tree just there. Latencies, which decide below some hundred KiB, are left out here.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.fit_nccl_curve import straight_line
from simgnn.analysis.fit_nccl_tables import Floats, Table
from simgnn.hardware.links import Algorithm, Choice

LARGE_BYTES = float(1 << 18)
"""Below it the measured times are mostly noise of the calls, and latencies decide: no law is learnt there."""
TREE_SHARES = ((18, 0.5), (21, 0.6), (22, 0.7), (23, 0.8), (24, 0.7), (26, 0.8), (27, 0.9))
"""From 2^n bytes on, the share of its bandwidth that NCCL expects a tree to reach."""
CANDIDATES = np.arange(0.5, 1.5, 0.01)
"""What NCCL may expect of a tree's rate over that of a ring."""
ALIKE = 1.05
"""Choices whose errors are within this factor explain the times equally well."""


def choice_of(tree_over_ring: float, scope: str) -> Choice:
    """NCCL's choice with one number put in: what it expects of a tree over a ring."""
    return Choice.model_validate(
        {
            "scope": scope,
            "source": "published",
            "tree_over_ring": f"{100 * tree_over_ring:.4g} %",
            "shares": [{"size": f"{2 ** (n - 10)} KiB", "share": f"{100 * share:.0f} %"} for n, share in TREE_SHARES],
            "note": "shares: NCCL, src/graph/tuning.cc; tree_over_ring: from where measured times jump",
        }
    )


def taken(table: Table, choice: Choice | None, algorithm: Algorithm) -> NDArray[np.bool_]:
    """Rows [n] of a table that were run with this algorithm; without a choice all went round a ring."""
    if choice is None:
        return np.full(len(table.nbytes), algorithm == "ring")
    # from one step to the next all sizes go one way
    steps = [step.size for step in choice.shares]
    ways = np.array([choice.algorithm(table.ranks, size) == algorithm for size in (0.0, *steps)], dtype=np.bool_)
    return ways[np.searchsorted(steps, table.nbytes, side="right")]


def fit_choice(tables: Sequence[Table], scope: str) -> Choice | None:
    """The choice that leaves each table in the straightest pieces; None where no group had more than one way to go.

    Of those that do so equally well, the middle one.
    """
    large = [table.where(table.nbytes >= LARGE_BYTES) for table in tables if table.scope == scope]
    large = [table for table in large if len(table.nbytes) > 2]
    if scope == "host" or not large:  # inside a host NCCL's rings are as wide as its trees, and win from 256 KiB on
        return None
    errors = np.sum([_bends(table, scope) for table in large], axis=0)
    good = CANDIDATES[errors <= errors.min() * ALIKE]
    first = good[0]
    run = [ratio for place, ratio in enumerate(good) if np.isclose(ratio, first + place * 0.01)]
    return choice_of(float(np.mean(run)), scope)


def _bends(table: Table, scope: str) -> Floats:
    """Mean relative error, for each candidate, of a line through the rows of each algorithm."""
    known: dict[bytes, float] = {}
    found = []
    for ratio in CANDIDATES:
        rows = taken(table, choice_of(ratio, scope), "tree")
        if rows.tobytes() not in known:
            known[rows.tobytes()] = _bend(table, rows)
        found.append(known[rows.tobytes()])
    return np.array(found)


def _bend(table: Table, tree: NDArray[np.bool_]) -> float:
    missed = np.zeros(len(table.nbytes))
    for rows in (tree, ~tree):
        if rows.sum() > 2:
            x, seconds = table.nbytes[rows], table.seconds[rows]
            start, slope = straight_line(x, seconds, seconds)
            missed[rows] = np.abs((start + slope * x) / seconds - 1.0)
    return float(missed.mean())
