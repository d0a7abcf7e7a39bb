"""Reads the sizes of all batches of a run from where they were presampled."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.build import transpose_csr
from simgnn.graph.csr import CSR
from simgnn.graph.locality import BINS, reuse_profile
from simgnn.program.sizes import Route
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import checked_part
from simgnn.sampling.batches.sizes import BatchSizes, CacheSizes
from simgnn.sampling.fetches.forecast import pulled_rows
from simgnn.sampling.fetches.ranked_batches import Rankings
from simgnn.sampling.fetches.refill_pieces import Pieces
from simgnn.sampling.fetches.remote_rows import Ranking, Sources

IntArray = NDArray[np.int64]


def batch_sizes(
    plan: SamplingPlan,
    folder: Path,
    rank_hosts: IntArray,
    epochs: int,
    hot_rows: int = 0,
    only_new: bool = False,
    whole_run: bool = False,
    done: Callable[[int], None] = lambda parts: None,
) -> BatchSizes:
    """Read the batches of epochs 0..epochs-1 in ``folder``, where all ranks' are.

    ``rank_hosts`` int64 [P]; ``only_new``: caches pull what the one before lacks; ``whole_run``: each rank has one
    cache, filled once. ``done`` is told how many parts were read. In memory are one ranking and P * P * epochs * steps
    numbers. Raises :class:`ConfigError` for missing parts.
    """
    ranks, hops = plan.ranks, len(plan.fanouts)
    shape = (ranks, epochs, plan.steps)
    rows, edges = np.zeros((hops + 1, *shape), np.int64), np.zeros((hops, *shape), np.int64)
    local, hits, kept = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    pulled, refilled = np.zeros((ranks, *shape), np.int64), np.zeros((ranks, *shape), np.int64)
    first, largest = np.zeros((ranks, ranks), np.int64), np.zeros(ranks, np.int64)
    profiles = []
    for worker in range(ranks):
        sources = Sources.of_worker(plan.owner, rank_hosts, worker)
        part_of = partial(checked_part, folder, worker=worker)
        rankings = Rankings(part_of, epochs, sources, whole_run)
        before: NDArray[Any] = np.zeros(0, np.int64)
        for epoch in range(epochs):
            part = part_of(epoch)
            ranking, count = rankings.of(part), len(part)
            at = worker, epoch, slice(0, count)
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
            done(worker * epochs + epoch + 1)
    cache = CacheSizes(largest, Route.from_matrix(first), Route.from_turns(refilled), kept) if hot_rows else None
    locality = {name: np.stack([one[name] for one in profiles]) for name in profiles[0]}
    training = np.array([len(mine) for mine in plan.workers], np.int64)
    return BatchSizes(rows, edges, local, hits, Route.from_turns(pulled), cache, training, locality)


def distinct_remote_rows(plan: SamplingPlan, folder: Path, rank_hosts: IntArray, epochs: int) -> float:
    """Rows of other hosts that a rank needs in an epoch, each counted once: the mean over ranks and epochs."""
    total = 0
    for worker in range(plan.ranks):
        sources = Sources.of_worker(plan.owner, rank_hosts, worker)
        for epoch in range(epochs):
            total += len(Ranking.of_part(checked_part(folder, epoch, worker), sources).vertices)
    return total / (plan.ranks * epochs)


def _profiles(part: Part, hops: int) -> dict[str, NDArray[np.float64]]:
    """How local the sums over the blocks of one batch are, by hop and direction: that in the middle of the epoch."""
    found: dict[str, NDArray[np.float64]] = {}
    for hop in range(1, hops + 1):
        name = f"locality/blocks/{hop}"
        if not len(part):
            found |= {f"{name}/{direction}": np.zeros(BINS) for direction in ("forward", "backward")}
            continue
        batch = part.batch(len(part) // 2)
        held = batch.blocks[hop - 1]
        csr = CSR(held.indptr.astype(np.int64), np.array(held.sources), int(batch.sizes[hop]))
        found |= {f"{name}/forward": reuse_profile(csr), f"{name}/backward": reuse_profile(transpose_csr(csr))}
    return found
