"""Sizes of presampled batches, the rows that they pull from other hosts, and their requests for neighbours."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.build import transpose_csr
from simgnn.graph.csr import CSR
from simgnn.graph.locality import BINS, reuse_profile
from simgnn.program.sizes import IntArray, Route
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import checked_part
from simgnn.sampling.batches.sizes import BatchSizes, CacheSizes, SampleRequests
from simgnn.sampling.draw.sampler import Batch
from simgnn.sampling.fetches.fetch_plan import Pieces
from simgnn.sampling.fetches.remote_rows import HitCurve, Ranking, Sources, rankings

Done = Callable[[int], None]
"""Function that receives the number of parts read so far."""


def _parts(
    plan: SamplingPlan, folder: Path, rank_hosts: IntArray, epochs: int, done: Done
) -> Iterator[tuple[int, int, Part, Sources]]:
    """Yield (rank, epoch, batches, sources of rows) for each rank and epoch, rank by rank."""
    for worker in range(plan.ranks):
        sources = Sources.of_worker(plan.owner, rank_hosts, worker)
        for epoch in range(epochs):
            yield worker, epoch, checked_part(folder, epoch, worker), sources
            done(worker * epochs + epoch + 1)


def batch_sizes(
    plan: SamplingPlan,
    folder: Path,
    rank_hosts: IntArray,
    epochs: int,
    hot_rows: int = 0,
    only_new: bool = False,
    whole_run: bool = False,
    done: Done = lambda parts: None,
) -> BatchSizes:
    """Read the sizes of all ranks' batches of epochs 0..epochs-1 in ``folder``. ``rank_hosts`` int64 [P]; ``only_new``:
    a cache pulls only rows that the previous one lacks; ``whole_run``: each rank fills one cache, once. Memory: one
    ranking, and P * P * epochs * steps numbers. Raises :class:`ConfigError` for missing batches."""
    ranks, hops = plan.ranks, len(plan.fanouts)
    shape = (ranks, epochs, plan.steps)
    rows, edges = np.zeros((hops + 1, *shape), np.int64), np.zeros((hops, *shape), np.int64)
    local, hits, kept = np.zeros((3, *shape), np.int64)
    pulled, refilled = np.zeros((2, ranks, *shape), np.int64)
    first, largest = np.zeros((ranks, ranks), np.int64), np.zeros(ranks, np.int64)
    seeds = np.zeros(shape, np.int64) if plan.negatives else None
    profiles = []
    for worker, epoch, part, sources in _parts(plan, folder, rank_hosts, epochs, done):
        if epoch == 0:
            ranking_of = rankings(partial(checked_part, folder, worker=worker), epochs, sources, whole_run)
            before: NDArray[Any] = np.zeros(0, np.int64)
        ranking, at = ranking_of(part), (worker, epoch, slice(0, len(part)))
        if seeds is not None:
            seeds[at] = plan.seeds_in(worker)
        rows[(slice(None), *at)], edges[(slice(None), *at)] = part.rows.T, part.edges.T
        found = pulled_rows(part, ranking, sources, sorted({0, hot_rows}))
        pulled[(slice(None), *at)] = found[-1].T
        hits[at] = (found[0] - found[-1]).sum(axis=1)
        local[at] = part.rows[:, -1] - found[0].sum(axis=1)
        hot = ranking.hot(hot_rows)
        senders, largest[worker] = sources.of(hot), max(largest[worker], len(hot))
        if epoch == 0:
            first[:, worker] = np.bincount(senders, minlength=ranks)
            profiles.append(_profiles(part, hops))
        elif not whole_run:
            pieces = Pieces.of(hot, before, plan.steps, only_new)
            refilled[:, worker, epoch - 1] = pieces.pulled(senders, ranks, plan.steps)
            kept[worker, epoch - 1] = pieces.copied(plan.steps)
        before = hot
    cache = CacheSizes(largest, Route.from_matrix(first), Route.from_turns(refilled), kept) if hot_rows else None
    locality = {name: np.stack([one[name] for one in profiles]) for name in profiles[0]}
    training = np.array([len(mine) for mine in plan.workers], np.int64)
    sent = Route.from_turns(pulled)
    return BatchSizes(rows, edges, local, hits, sent, cache, training, locality, seeds=seeds, negatives=plan.negatives)


def distinct_remote_rows(plan: SamplingPlan, folder: Path, rank_hosts: IntArray, epochs: int) -> float:
    """Count the distinct rows of other hosts that a rank needs in an epoch: the mean over ranks and epochs."""
    parts = _parts(plan, folder, rank_hosts, epochs, lambda read: None)
    total = sum(len(Ranking.of_part(part, sources).vertices) for _, _, part, sources in parts)
    return total / (plan.ranks * epochs)


def _profiles(part: Part, hops: int) -> dict[str, NDArray[np.float64]]:
    """Compute :func:`reuse_profile` of each block, and its transpose, of the batch in the middle of the epoch."""
    names = [f"locality/blocks/{hop}" for hop in range(1, hops + 1)]
    if not len(part):
        return {f"{name}/{direction}": np.zeros(BINS) for name in names for direction in ("forward", "backward")}
    batch = part.batch(len(part) // 2)
    found: dict[str, NDArray[np.float64]] = {}
    for name, held, columns in zip(names, batch.blocks, batch.sizes[1:], strict=True):
        csr = CSR(held.indptr.astype(np.int64), np.array(held.sources), int(columns))
        found |= {f"{name}/forward": reuse_profile(csr), f"{name}/backward": reuse_profile(transpose_csr(csr))}
    return found


@dataclass(frozen=True)
class Forecast:
    """Rows that all batches of ``epochs`` epochs pull from other hosts, for each of S cache ``sizes``, ascending.

    ``pulled`` int64 [S, P, P]: rows that a rank (row) receives from another (column) for its batches; ``cached`` int64
    [S, P, P]: the same for filling its caches, a new one each epoch (``whole_run``: one for the run), with all rows or
    (``only_new``) those that the previous cache lacks; ``slots`` int64 [S, P]: rows of a rank's largest cache;
    ``largest`` int64 [P]: input rows of its largest batch; ``rounds`` int64 [S]: training steps, of ``steps`` in all,
    that exchange rows. ``curve``: sums over ranks for any size.
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
    """Rows that each rank sends for each batch, int64 [S, batches, P], for caches of ``sizes`` rows (ascending). A
    vertex that is several rows of a batch is sent once."""
    limits = np.array(sizes, np.int64)
    buckets = len(limits) + 1
    found = np.zeros((len(limits), len(part), sources.ranks), np.int64)
    for number in range(len(part)):
        vertices = part.distinct_inputs(number)
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
    done: Done = lambda parts: None,
) -> Forecast:
    """Count exactly the rows that the batches of epochs 0..epochs-1 in ``folder`` pull from other hosts.

    ``sizes``: strictly ascending numbers of cached rows; ``only_new``, ``whole_run``: as in :class:`Forecast`. Memory:
    rankings of a worker for two epochs, the curve (16 bytes for each row of the longest ranking) and S * (P * P + P *
    batches of an epoch + steps) numbers. Raises :class:`ConfigError` for missing batches.
    """
    ranks, kept = plan.ranks, tuple(sizes)
    curve = HitCurve(*np.zeros((2, 0), np.int64))
    pulled, cached = np.zeros((2, len(kept), ranks, ranks), np.int64)
    slots, largest = np.zeros((len(kept), ranks), np.int64), np.zeros(ranks, np.int64)
    needed = np.zeros((len(kept), epochs, plan.steps), np.bool_)
    for worker, epoch, part, sources in _parts(plan, folder, rank_hosts, epochs, done):
        if epoch == 0:
            ranking_of = rankings(partial(checked_part, folder, worker=worker), epochs, sources, whole_run)
            before: NDArray[Any] = np.zeros(0, np.int64)
        ranking, filled = ranking_of(part), not whole_run or epoch == 0
        rows = pulled_rows(part, ranking, sources, kept)
        pulled[:, worker] += rows.sum(axis=1)
        needed[:, epoch, : len(part)] |= rows.any(axis=2)
        hot = ranking.hot(max(kept, default=0))  # smaller caches hold the first of it
        for place, size in enumerate(kept):
            slots[place, worker] = max(slots[place, worker], len(hot[:size]))
            if filled:
                pieces = Pieces.of(hot[:size], before[:size], plan.steps, only_new)
                cached[place, worker] += pieces.pulled(sources.of(hot[:size]), ranks, plan.steps).sum(axis=1)
        before = hot
        largest[worker] = max(largest[worker], part.tally.largest[-1])
        if filled:
            curve += HitCurve.of_ranking(ranking)
    steps, rounds = epochs * plan.steps, needed.sum(axis=(1, 2))
    return Forecast(epochs, steps, only_new, whole_run, kept, curve, pulled, cached, slots, largest, rounds)


def requests_of(batch: Batch, sources: Sources) -> tuple[IntArray, IntArray]:
    """Count the vertices that a batch requests from each rank at each hop, and the neighbours returned: int64 [hops, P]
    each. The entry of the worker itself counts draws from its own host."""
    asked, returned = np.zeros((2, len(batch.blocks), sources.ranks), np.int64)
    servers = sources.of(batch.vertices[: batch.sizes[-2]])
    for hop, block in enumerate(batch.blocks):
        of_rows = servers[: batch.sizes[hop]]
        asked[hop] = np.bincount(of_rows, minlength=sources.ranks)
        np.add.at(returned[hop], of_rows, np.diff(block.indptr))
    return asked, returned


def sample_requests(
    plan: SamplingPlan, folder: Path, rank_hosts: IntArray, epochs: int, done: Done = lambda parts: None
) -> SampleRequests:
    """Count requests to draw neighbours that ranks send one another for batches of epochs 0..epochs-1 in ``folder``.
    Memory: 2 * hops * P * P * epochs * steps numbers and one batch. Raises :class:`ConfigError` for missing batches."""
    asked, returned = np.zeros((2, len(plan.fanouts), plan.ranks, plan.ranks, epochs, plan.steps), np.int64)
    for worker, epoch, part, sources in _parts(plan, folder, rank_hosts, epochs, done):
        for number in range(len(part)):
            at = slice(None), worker, slice(None), epoch, number
            asked[at], returned[at] = requests_of(part.batch(number), sources)
    return SampleRequests(asked, returned)
