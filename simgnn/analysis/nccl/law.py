"""What NCCL all-reduces of all rank counts share: the choice of algorithm by size, and how times grow with ranks.

NCCL chooses the algorithm that it expects to be fastest. What it expects of a tree depends on the power of two below
the size (``treeCorrectionFactor`` in src/graph/tuning.cc, protocol Simple, the same from 2.8 to 2.18), so it changes
between ring and tree only at such sizes, where times jump. Latencies, which decide below some hundred KiB, are ignored.

Inside a host, one table is enough. A ring sends large buffers in rounds, and each round adds a step to the times; time
per byte beyond that of a single message is spent filling the pipeline. Across hosts, only several rank counts together
show how many ranks share a rail (network card), and the rate that all rails of a host share.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.nccl.measured_tables import Floats, Table, read, smooth_curve, straight_line
from simgnn.hardware.price.collectives import FIRST_ROUND, flow_bytes, steps
from simgnn.hardware.profile.communication import Algorithm, Choice

ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree")
LARGE_BYTES = float(1 << 18)
"""Below it the measured times are mostly noise of the calls, and latencies decide: no law is learnt there."""
TREE_SHARES = ((18, 0.5), (21, 0.6), (22, 0.7), (23, 0.8), (24, 0.7), (26, 0.8), (27, 0.9))
"""From 2^n bytes on, the share of its bandwidth that NCCL expects a tree to reach."""
CANDIDATES = np.arange(0.5, 1.5, 0.01)
"""Candidates for the ratio that NCCL expects between the rates of a tree and of a ring."""
ALIKE = 1.05
"""Choices whose errors are within this factor explain the times equally well."""
ROUND_BYTES = float(1 << 22)
"""Inside a host, rounds and fill are learnt and paid from here on: below, other protocols have shorter hops."""
STREAM_BYTES = float(1 << 24)
"""From here on times inside a host grow linearly with the bytes, so that rates can be read from them."""
CHUNKS = tuple(2.0**20 * np.array([1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 6.0]))
HOPS_S = tuple(1e-6 * np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]))
RANKS_PER_RAIL = (2, 1, 4)
"""The first unless others do clearly better: a DGX has two GPUs and their network cards behind one PCIe switch."""
SHARED = tuple(1e9 * np.array([120.0, 80.0, 60.0, 50.0, 40.0, 30.0, 20.0]))
"""Bytes per second of what all rails of a host share, tried besides the rate of its own links."""
BETTER = 0.95
"""A form with more in it must leave less than this share of the error."""
THIN = 3
"""Every n-th row is enough to find the ranks per rail: these change times by a half, not by a hundredth."""


def choice_of(tree_over_ring: float, scope: str) -> Choice:
    """Return NCCL's choice of ring or tree if it expects a tree to be ``tree_over_ring`` times as fast as a ring."""
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
    """Return which rows of a table NCCL ran with this algorithm, bool [n]. Without a ``choice`` it ran all as rings."""
    if choice is None:
        return np.full(len(table.nbytes), algorithm == "ring")
    # from one step to the next all sizes go one way
    sizes = [step.size for step in choice.shares]
    ways = np.array([choice.algorithm(table.ranks, size) == algorithm for size in (0.0, *sizes)], dtype=np.bool_)
    return ways[np.searchsorted(sizes, table.nbytes, side="right")]


def fit_choice(tables: Sequence[Table], scope: str) -> Choice | None:
    """Fit NCCL's choice between ring and tree: with it, times of each in a table lie closest to a straight line.

    If several choices fit equally well, the middle one. None: inside a host, or without enough large messages.
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
    """For each of ``CANDIDATES``, the mean relative error of lines through a table's rings and through its trees."""

    @cache
    def bend(tree_rows: bytes) -> float:
        tree = np.frombuffer(tree_rows, dtype=np.bool_)
        missed = np.zeros(len(table.nbytes))
        for rows in (tree, ~tree):
            if rows.sum() > 2:
                x, seconds = table.nbytes[rows], table.seconds[rows]
                start, slope = straight_line(x, seconds, seconds)
                missed[rows] = np.abs((start + slope * x) / seconds - 1.0)
        return float(missed.mean())

    return np.array([bend(taken(table, choice_of(ratio, scope), "tree").tobytes()) for ratio in CANDIDATES])


@dataclass(frozen=True)
class Law:
    """Constants of all-reduces that hold for all rank counts, inside a host or across hosts (``scope``). ``hop_s``,
    ``tree_hop_s``: seconds of one step of a ring, of a tree; ``chunk``: bytes of a rank's share in one round of a ring;
    ``fill``: time to fill the pipeline, in steps; ``ranks_per_rail``, ``inside``: as in
    :class:`simgnn.hardware.profile.communication.Collective`; ``choice``: between ring and tree."""

    scope: str
    hop_s: float = 0.0
    tree_hop_s: float = 0.0
    chunk: float | None = None
    fill: float = 0.0
    ranks_per_rail: int | None = None
    inside: float | None = None
    choice: Choice | None = None

    def rows(self, table: Table, algorithm: Algorithm) -> Table:
        return table.where(taken(table, self.choice, algorithm))

    def moved(self, table: Table, algorithm: Algorithm) -> Floats:
        """Bytes [n] that one rail (inside a host: one rank) moves, plus those that stand for filling the pipeline."""
        rails = 1 if self.ranks_per_rail is None else -(-table.ranks_per_host // self.ranks_per_rail)
        longer = 1.0 + self.fill / steps("allreduce", algorithm, table.ranks)
        return flow_bytes("allreduce", algorithm, table.ranks, 1.0) * longer / rails * table.nbytes

    def hops(self, nbytes: Floats, ranks: int, algorithm: Algorithm) -> Floats:
        """Number of successive hops [n] in calls with buffers of ``nbytes`` [n]."""
        count = steps("allreduce", algorithm, ranks)
        if self.chunk is None or algorithm != "ring":
            return np.full(len(nbytes), float(count))
        return (count + 1) * (np.ceil(nbytes / ranks / self.chunk) + FIRST_ROUND)

    def hops_s(self, table: Table, algorithm: Algorithm) -> Floats:
        hop_s = self.tree_hop_s if algorithm == "tree" else self.hop_s
        return self.hops(table.nbytes, table.ranks, algorithm) * hop_s

    def inside_s(self, table: Table, algorithm: Algorithm) -> Floats:
        if self.inside is None:
            return np.zeros(len(table.nbytes))
        return flow_bytes("allreduce", algorithm, table.ranks, 1.0) / self.inside * table.nbytes

    def error(self, tables: Sequence[Table]) -> float:
        """Mean relative error when all tables together have one smooth curve of time over bytes for each algorithm."""
        missed = []
        for algorithm in ALGORITHMS[: 1 if self.choice is None else 2]:
            parts = [self.rows(table, algorithm) for table in tables]
            parts = [part for part in parts if len(part.nbytes)]
            if not parts:
                continue
            x = np.concatenate([self.moved(part, algorithm) for part in parts])
            latency = np.concatenate([self.hops_s(part, algorithm) + self.inside_s(part, algorithm) for part in parts])
            seconds = np.concatenate([part.seconds for part in parts])
            order = np.argsort(x, kind="stable")
            x, flowing, seconds = x[order], (seconds - latency)[order], seconds[order]
            if flowing.min() <= 0.0:
                return float("inf")
            knots, shares = smooth_curve(x, flowing, seconds)
            missed.append((read(knots, shares, x) * x - flowing) / seconds)
        return float(np.mean(np.abs(np.concatenate(missed))))


def fit_law(tables: Sequence[Table], scope: str) -> Law:
    """Fit the law of one scope of a machine to the machine's all-reduces in both scopes and its single messages."""
    reduces = [table for table in tables if table.collective == "all_reduce"]
    mine = [table for table in reduces if table.scope == scope]
    if scope == "host":
        return _inside_a_host(mine, _link_rate(tables))
    return _across_hosts(mine, [table for table in reduces if table.scope == "host"])


def _inside_a_host(tables: Sequence[Table], link: float | None) -> Law:
    """Fit seconds of a hop and bytes of a round (chunk) to steps in each table's times; neither without clear steps."""
    large = [table.where(table.nbytes >= ROUND_BYTES) for table in tables]
    large = [table for table in large if len(table.nbytes) > 2]

    def error(law: Law) -> float:
        return float(np.mean([law.error([table]) for table in large]))

    if not large:
        return Law("host")
    stepped = (Law("host", hop_s=float(hop), chunk=float(chunk)) for chunk, hop in product(CHUNKS, HOPS_S[1:]))
    law = _least(error, Law("host"), stepped)
    if link is None:
        return law
    fills = []
    for table in (table.where(table.nbytes >= STREAM_BYTES) for table in large):
        if len(table.nbytes) <= 2:
            continue
        _, slope = straight_line(table.nbytes, table.seconds - law.hops_s(table, "ring"), table.seconds)
        fills.append(table.ranks * slope * link - steps("allreduce", "ring", table.ranks))
    return replace(law, fill=float(np.clip(np.mean(fills), 0.0, 1.0))) if fills else law


def _across_hosts(tables: Sequence[Table], inside: Sequence[Table]) -> Law:
    """Fit how many ranks share a rail and the rate that rails share, so that one curve per algorithm fits all tables.

    A ring crosses the network equally often for any number of ranks per host, so its further hops are inside hosts.
    """
    rates = [float(np.median((Law("host").moved(table, "ring") / table.seconds)[-9:])) for table in inside]
    own = max(rates) if rates else None
    choice = fit_choice(tables, "cluster")
    large = [table.where(table.nbytes >= LARGE_BYTES) for table in tables]
    large = [table.where(np.arange(len(table.nbytes)) % THIN == 0) for table in large]
    hop = _inside_a_host(inside, None).hop_s
    law = Law("cluster", hop_s=hop, ranks_per_rail=RANKS_PER_RAIL[0], inside=own, choice=choice)
    law = replace(law, tree_hop_s=_tree_hop_s(large, law))
    if len({table.ranks for table in large}) < 2:
        return law
    law = _least(lambda law: law.error(large), law, (replace(law, ranks_per_rail=n) for n in RANKS_PER_RAIL[1:]))
    return _least(lambda law: law.error(large), law, (replace(law, inside=float(rate)) for rate in SHARED))


def _tree_hop_s(tables: Sequence[Table], law: Law) -> float:
    """Seconds of one step of a tree without bytes: a fitted line's start / number of steps, averaged over tables."""
    found = []
    for table in tables:
        part = law.rows(table, "tree")
        if len(part.nbytes) > 2:
            start, _ = straight_line(part.nbytes, part.seconds, part.seconds)
            found.append(max(start, 0.0) / steps("allreduce", "tree", table.ranks))
    return float(np.mean(found)) if found else 0.0


def _least(error: Callable[[Law], float], plain: Law, others: Iterable[Law]) -> Law:
    """Return the law of ``others`` with the least error if it is clearly better than ``plain``, else ``plain``."""
    best = min(others, key=error)
    return best if error(best) < BETTER * error(plain) else plain


def _link_rate(tables: Sequence[Table]) -> float | None:
    """Bytes per second of a link inside a host: how the times of large single messages grow with their size."""
    for table in tables:
        if (table.collective, table.scope) == ("send_recv", "host"):
            large = table.where(table.nbytes >= STREAM_BYTES)
            if len(large.nbytes) > 2:
                return 1.0 / straight_line(large.nbytes, large.seconds, large.seconds)[1]
    return None
