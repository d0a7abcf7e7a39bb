"""Counts what sampling over a graph in parts sends, without sending it: a batch tells who is asked for what."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import checked_part
from simgnn.sampling.draw.request_sizes import SampleRequests
from simgnn.sampling.draw.sampler import Batch
from simgnn.sampling.fetches.remote_rows import Sources

IntArray = NDArray[np.int64]


def requests_of(batch: Batch, sources: Sources) -> tuple[IntArray, IntArray]:
    """Vertices that a batch asks of each rank at each hop, and neighbours that these return: int64 [hops, P] each.

    The worker's own entry counts what its host holds: it draws that itself.
    """
    ranks = sources.ranks
    shape = len(batch.blocks), ranks
    asked, returned = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    servers = sources.of(batch.vertices[: batch.sizes[-2]])
    for hop, block in enumerate(batch.blocks):
        of_rows = servers[: batch.sizes[hop]]
        asked[hop] = np.bincount(of_rows, minlength=ranks)
        np.add.at(returned[hop], of_rows, np.diff(block.indptr))
    return asked, returned


def sample_requests(
    plan: SamplingPlan,
    folder: Path,
    rank_hosts: IntArray,
    epochs: int,
    done: Callable[[int], None] = lambda parts: None,
) -> SampleRequests:
    """Read the batches of epochs 0..epochs-1 in ``folder``, where all ranks' are; ``rank_hosts`` int64 [P].

    ``done`` is told how many parts were read. In memory are 2 * hops * P * P * epochs * steps numbers and one batch.
    Raises :class:`~simgnn.errors.ConfigError` for missing parts.
    """
    ranks = plan.ranks
    shape = len(plan.fanouts), ranks, ranks, epochs, plan.steps
    asked, returned = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for worker in range(ranks):
        sources = Sources.of_worker(plan.owner, rank_hosts, worker)
        for epoch in range(epochs):
            part = checked_part(folder, epoch, worker)
            for number in range(len(part)):
                at = slice(None), worker, slice(None), epoch, number
                asked[at], returned[at] = requests_of(part.batch(number), sources)
            done(worker * epochs + epoch + 1)
    return SampleRequests(asked, returned)
