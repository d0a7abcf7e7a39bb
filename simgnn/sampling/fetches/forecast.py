"""Rows that presampled batches will pull from other hosts: exact, by rank pair and step, for several sizes of cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import checked_part
from simgnn.sampling.fetches.cache_curve import HitCurve
from simgnn.sampling.fetches.ranked_batches import Rankings
from simgnn.sampling.fetches.refill_pieces import Pieces
from simgnn.sampling.fetches.remote_rows import Ranking, Sources

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Forecast:
    """What all batches of ``epochs`` epochs pull, for each of S numbers of hot rows ``sizes``, ascending.

    ``pulled`` int64 [S, P, P]: rows that a rank (row) is sent by another (column) for its batches; ``cached`` int64
    [S, P, P]: the same for its caches, a new one each epoch (``whole_run``: one, counted in all of its batches), whole
    or (``only_new``) what the one before it lacks, as
    :class:`~simgnn.sampling.fetches.refill_pieces.Pieces` says; ``slots`` int64 [S, P]: rows of a rank's largest cache;
    ``largest`` int64 [P]: input rows of its largest batch; ``rounds`` int64 [S]: training steps, of ``steps`` in all,
    in which any rank is sent a row: the others need no exchange. ``curve`` holds the sums for every other size.
    """

    epochs: int
    steps: int
    only_new: bool
    whole_run: bool
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
    only_new: bool = False,
    whole_run: bool = False,
    done: Callable[[int], None] = lambda parts: None,
) -> Forecast:
    """Read the batches of epochs 0..epochs-1 in ``folder``, where all ranks' are; ``sizes``: ascending, each once.

    ``only_new``, ``whole_run``: as in :class:`Forecast`. ``done`` is told how many parts were read. In memory are the
    rankings of one worker and two epochs, the curve (16 bytes for each row of the longest ranking) and S * (P * P + P *
    batches of an epoch + steps) numbers. Raises :class:`ConfigError` for missing parts.
    """
    ranks, kept = plan.ranks, tuple(sizes)
    curve = HitCurve.none()
    pulled = np.zeros((len(kept), ranks, ranks), np.int64)
    cached = np.zeros_like(pulled)
    slots, largest = np.zeros((len(kept), ranks), np.int64), np.zeros(ranks, np.int64)
    needed = np.zeros((len(kept), epochs, plan.steps), np.bool_)
    for worker in range(ranks):
        sources = Sources.of_worker(plan.owner, rank_hosts, worker)
        part_of = partial(checked_part, folder, worker=worker)
        rankings = Rankings(part_of, epochs, sources, whole_run)
        before: NDArray[Any] = np.zeros(0, np.int64)
        for epoch in range(epochs):
            part = part_of(epoch)
            ranking = rankings.of(part)
            rows = pulled_rows(part, ranking, sources, kept)
            pulled[:, worker] += rows.sum(axis=1)
            needed[:, epoch, : len(part)] |= rows.any(axis=2)
            hot = ranking.hot(max(kept, default=0))  # smaller caches hold the first of it
            filled = not whole_run or epoch == 0
            for place, size in enumerate(kept):
                slots[place, worker] = max(slots[place, worker], len(hot[:size]))
                if filled:
                    pieces = Pieces.of(hot[:size], before[:size], plan.steps, only_new)
                    cached[place, worker] += pieces.pulled(sources.of(hot[:size]), ranks, plan.steps).sum(axis=1)
            before = hot
            largest[worker] = max(largest[worker], part.tally.largest[-1])
            if filled:
                curve += HitCurve.of_ranking(ranking)
            done(worker * epochs + epoch + 1)
    rounds = needed.sum(axis=(1, 2))
    return Forecast(
        epochs, epochs * plan.steps, only_new, whole_run, kept, curve, pulled, cached, slots, largest, rounds
    )
