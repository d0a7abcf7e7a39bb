"""The batches of a rank as the op that draws them calls for them: sampled now, or read from where they were presampled.

Both give the same batches bit by bit, since a batch is a pure function of the experiment's seed.
"""

from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from executor.state.buffers import Value
from simgnn.emit.batches.neighbours import DrawBatch
from simgnn.emit.batches.on_rank import Functions, carried_out
from simgnn.errors import BackendError, ConfigError
from simgnn.policy import PolicyContext
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import open_part, settings_of
from simgnn.sampling.draw.sampler import Batch, Sampler


class BatchSource(Protocol):
    """Where the batches of one worker come from; any thread may ask for any of them."""

    def batch(self, epoch: int, number: int) -> Batch:
        """Batch ``number`` of an epoch, one that the worker has."""
        ...


class SampledBatches:
    """Samples a batch when it is asked for. ``lanes``: threads that may ask at once."""

    def __init__(self, plan: SamplingPlan, worker: int, lanes: int = 1) -> None:
        self._plan, self._worker = plan, worker
        self._samplers: SimpleQueue[Sampler] = SimpleQueue()
        for _ in range(lanes):
            self._samplers.put(Sampler(plan.csr, plan.fanouts))
        self._turns = {0: plan.epoch(worker, 0)}

    def batch(self, epoch: int, number: int) -> Batch:
        """See :class:`BatchSource`."""
        turn = self._turns.get(epoch)
        if turn is None:
            # the order of an epoch is made once; of earlier epochs batches may still be asked for, of older ones not
            turn = self._plan.epoch(self._worker, epoch)
            self._turns = {e: t for e, t in self._turns.items() if e == epoch - 1} | {epoch: turn}
        sampler = self._samplers.get()
        try:
            return turn.sample(number, sampler)
        finally:
            self._samplers.put(sampler)


class PresampledBatches:
    """Reads batches of all ``epochs`` from ``folder``, which are checked here, before training begins.

    ``source``: digest of graph and partition that they were made with. Raises :class:`ConfigError` for missing or other
    batches, :class:`~simgnn.partition.folder.CorruptArtifactError` for damaged ones.
    """

    def __init__(self, folder: Path, plan: SamplingPlan, source: str, worker: int, epochs: int) -> None:
        self._parts: list[Part] = []
        for epoch in range(epochs):
            part = open_part(folder, epoch, worker)
            if part.folder.details["made_from"] != {**settings_of(plan, source), "epoch": epoch, "worker": worker}:
                raise ConfigError(
                    f"{part.folder.path} holds batches of other settings than this run's: prepare the run again"
                )
            self._parts.append(part)

    def batch(self, epoch: int, number: int) -> Batch:
        """See :class:`BatchSource`."""
        return self._parts[epoch].batch(number)


class DrawnBatches:
    """Carries out the op that draws: batch ``step`` of the turn as tensors on the host.

    ``seeds`` int64 [n], ascending: the worker's training vertices. ``planned`` int64 [hops + 1, epochs, steps]: rows
    of each batch after each hop, as the program has them. Where it has none for the worker all is empty: every rank
    takes part in every step (docs/systems/mini-batches.md).
    """

    def __init__(self, source: BatchSource, seeds: NDArray[np.int64], planned: NDArray[np.int64]) -> None:
        self._source, self._seeds, self._planned = source, seeds, planned

    def functions(self) -> Functions:
        """What carries out the actions of ops that draw."""
        return carried_out(DrawBatch, self.draw)

    def draw(self, context: PolicyContext) -> tuple[Value, ...]:
        """(vertices int64 [m], places int64 [b] of the seeds among the worker's training vertices, and of each hop the
        block: indptr int32 [n + 1], sources int32 [edges]). Raises :class:`BackendError` for a batch of other sizes."""
        planned = self._planned[:, context.epoch, context.step]
        if not planned[0]:
            none = torch.empty(0, dtype=torch.int64)
            return (none, none, *[(torch.zeros(1, dtype=torch.int32), none.to(torch.int32))] * (len(planned) - 1))
        return batch_values(self._source.batch(context.epoch, context.step), self._seeds, planned, context)


def batch_values(
    batch: Batch, seeds: NDArray[np.int64], planned: NDArray[np.int64], context: PolicyContext
) -> tuple[Value, ...]:
    """What the op that draws a batch writes: see :meth:`DrawnBatches.draw`. ``planned`` int64 [hops + 1]."""
    if not np.array_equal(batch.sizes, planned):
        raise BackendError(
            f"batch {context.step + 1} of epoch {context.epoch + 1} has {batch.sizes.tolist()} rows after its hops, "
            f"the program was planned for {planned.tolist()}: prepare the run again"
        )
    places = np.searchsorted(seeds, batch.seeds)
    blocks = [(_tensor(block.indptr, np.int32), _tensor(block.sources, np.int32)) for block in batch.blocks]
    return (_tensor(batch.vertices, np.int64), torch.from_numpy(places), *blocks)


def _tensor(values: NDArray[Any], dtype: type) -> torch.Tensor:
    """A tensor of its own: what is read from disk is mapped, read-only."""
    return torch.from_numpy(np.array(values, dtype=dtype))
