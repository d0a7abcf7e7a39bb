"""Rows that presampled batches will pull from other hosts: exact, by rank pair and step, for several sizes of cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simgnn.sampling.curve import HitCurve
from simgnn.sampling.part import Part
from simgnn.sampling.plan import SamplingPlan
from simgnn.sampling.presample import checked_part
from simgnn.sampling.remote import Ranking, Sources

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Forecast:
    """What all batches of ``epochs`` epochs pull, for each of S numbers of hot rows ``sizes``, ascending.

    ``pulled`` int64 [S, P, P]: rows that a rank (row) is sent by another (column) for its batches; ``cached`` int64
    [S, P, P]: the same for its caches, a new one each epoch; ``slots`` int64 [S, P]: rows of a rank's largest cache;
    ``largest`` int64 [P]: input rows of its largest batch; ``rounds`` int64 [S]: training steps, of ``steps`` in all,
    in which any rank is sent a row: the others need no exchange. ``curve`` holds the sums for every other size.
    """

    epochs: int
    steps: int
    sizes: tuple[int, ...]
    curve: HitCurve
    pulled: IntArray
    cached: IntArray
    slots: IntArray
    largest: IntArray
    rounds: IntArray


def pulled_rows(part: Part, ranking: Ranking, sources: Sources, sizes: Sequence[int]) -> IntArray:
    """Rows that each rank sends for each batch, int64 [S, batches, P], for caches of ``sizes`` hot rows (ascending).

    One pass over the part for all sizes.
    """
    limits = np.array(sizes, np.int64)
    buckets = len(limits) + 1
    found = np.zeros((len(limits), len(part), sources.ranks), np.int64)
    for number in range(len(part)):
        vertices = part.inputs(number)
        senders = sources.of(vertices)
        far = senders != sources.worker
        too_small = np.searchsorted(limits, ranking.places(vertices[far]), side="right")  # caches that lack the row
        counts = np.bincount(senders[far] * buckets + too_small, minlength=sources.ranks * buckets)
        lacking = counts.reshape(sources.ranks, buckets)[:, ::-1].cumsum(axis=1)[:, ::-1]
        found[:, number] = lacking[:, 1:].T
    return found


def forecast(
    plan: SamplingPlan,
    folder: Path,
    rank_hosts: IntArray,
    epochs: int,
    sizes: Sequence[int],
    done: Callable[[int], None] = lambda parts: None,
) -> Forecast:
    """Read the batches of epochs 0..epochs-1 in ``folder``, where all ranks' are; ``sizes``: ascending, each once.

    ``done`` is told how many parts were read. In memory are the ranking of one worker and epoch, the curve (16 bytes
    for each row of the longest ranking) and S * P * batches numbers. Raises :class:`ConfigError` for missing parts.
    """
    ranks, kept = plan.ranks, tuple(sizes)
    curve = HitCurve.none()
    pulled = np.zeros((len(kept), ranks, ranks), np.int64)
    cached = np.zeros_like(pulled)
    slots, largest = np.zeros((len(kept), ranks), np.int64), np.zeros(ranks, np.int64)
    rounds = np.zeros(len(kept), np.int64)
    for epoch in range(epochs):
        needed = np.zeros((len(kept), plan.steps), np.bool_)
        for worker in range(ranks):
            part = checked_part(folder, epoch, worker)
            sources = Sources.of_worker(plan.owner, rank_hosts, worker)
            ranking = Ranking.of_part(part, sources)
            rows = pulled_rows(part, ranking, sources, kept)
            pulled[:, worker] += rows.sum(axis=1)
            needed[:, : len(part)] |= rows.any(axis=2)
            for place, size in enumerate(kept):
                hot = ranking.hot(size)
                cached[place, worker] += np.bincount(sources.of(hot), minlength=ranks)
                slots[place, worker] = max(slots[place, worker], len(hot))
            largest[worker] = max(largest[worker], part.tally.largest[-1])
            curve += HitCurve.of_ranking(ranking)
            done(epoch * ranks + worker + 1)
        rounds += needed.sum(axis=1)
    return Forecast(epochs, epochs * plan.steps, kept, curve, pulled, cached, slots, largest, rounds)
