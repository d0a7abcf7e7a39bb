"""Batches of a rank, for the ops that draw them: sampled on demand, read from files, or drawn with other hosts.

All three give the same batches bit by bit, since a batch is a pure function of the experiment's seed.
"""

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.state.buffers import Value
from simgnn.emit.batches.drawing import AskHosts, DrawForOthers, DrawHere, FinishBatch, LocateVertices, StitchFrontier
from simgnn.emit.batches.neighbours import DrawBatch
from simgnn.emit.batches.on_rank import Functions, carried_out
from simgnn.errors import BackendError, ConfigError
from simgnn.partition.local.serving import Serving
from simgnn.policy import PolicyContext
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan, WorkerEpoch
from simgnn.sampling.batches.presample import open_part, settings_of
from simgnn.sampling.draw.branches import BranchSampler
from simgnn.sampling.draw.parted import Asked, Drawn, HostStructure, Requester
from simgnn.sampling.draw.sampler import Batch, Sampler
from simgnn.sampling.draw.seeds import batch_seed

Parts = tuple[torch.Tensor, ...]


class SampledBatches:
    """Samples a batch on request. ``lanes``: number of threads that may request at the same time."""

    def __init__(self, plan: SamplingPlan, worker: int, lanes: int = 1) -> None:
        self._plan, self._worker = plan, worker
        self._samplers: SimpleQueue[Sampler | BranchSampler] = SimpleQueue()
        for _ in range(lanes):
            self._samplers.put(plan.sampler())
        self._turns = {0: plan.epoch(worker, 0)}

    def batch(self, epoch: int, number: int) -> Batch:
        turn = self._turns.get(epoch)
        if turn is None:
            # the order of an epoch is made once, and kept until the next epoch has ended
            turn = self._plan.epoch(self._worker, epoch)
            self._turns = {e: t for e, t in self._turns.items() if e == epoch - 1} | {epoch: turn}
        sampler = self._samplers.get()
        try:
            return turn.sample(number, sampler)
        finally:
            self._samplers.put(sampler)


class PresampledBatches:
    """Reads batches of all ``epochs`` from ``folder``; all are checked before training begins. ``source``: digest of
    the graph and partition that they were made with. Raises :class:`ConfigError` for missing batches or other settings,
    and :class:`~simgnn.partition.folder.CorruptArtifactError` for damaged files."""

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
        return self._parts[epoch].batch(number)


BatchSource = SampledBatches | PresampledBatches
"""Source of the batches of one worker. Any thread may request any batch."""


class DrawnBatches:
    """Runs the op that draws the batch of a step, as tensors on the host. ``seeds`` int64 [n], ascending: the
    worker's training vertices. ``planned`` int64 [hops + 1, epochs, steps]: rows of each batch after
    each hop, from the program. A worker without a batch in a step draws an empty one, since every rank takes part in
    every step (docs/systems/mini-batches.md)."""

    def __init__(self, source: BatchSource, seeds: NDArray[np.int64], planned: NDArray[np.int64]) -> None:
        self._source, self._seeds, self._planned = source, seeds, planned

    def functions(self) -> Functions:
        return carried_out(DrawBatch, self.draw)

    def draw(self, context: PolicyContext) -> tuple[Value, ...]:
        """Draw a batch: (vertices int64 [m], positions int64 [b] of the seeds among the worker's training vertices, or
        in unsupervised training :attr:`Batch.pairs`, flat; and
        for each hop the block: indptr int32 [n + 1], sources int32 [edges]). Raises :class:`BackendError` for a batch
        of other sizes than planned."""
        planned = self._planned[:, context.epoch, context.step]
        if not planned[0]:
            none = torch.empty(0, dtype=torch.int64)
            return (none, none, *[(torch.zeros(1, dtype=torch.int32), none.to(torch.int32))] * (len(planned) - 1))
        return batch_values(self._source.batch(context.epoch, context.step), self._seeds, planned, context)


def batch_values(
    batch: Batch, seeds: NDArray[np.int64], planned: NDArray[np.int64], context: PolicyContext
) -> tuple[Value, ...]:
    """Convert a batch to the values that an op writes (:meth:`DrawnBatches.draw`). ``planned`` int64 [hops + 1]."""
    if not np.array_equal(batch.sizes, planned):
        raise BackendError(
            f"batch {context.step + 1} of epoch {context.epoch + 1} has {batch.sizes.tolist()} rows after its hops, "
            f"the program was planned for {planned.tolist()}: prepare the run again"
        )
    places = np.searchsorted(seeds, batch.seeds) if batch.pairs is None else batch.pairs.reshape(-1).astype(np.int64)
    blocks = [(_tensor(block.indptr, np.int32), _tensor(block.sources, np.int32)) for block in batch.blocks]
    return (_tensor(batch.vertices, np.int64), torch.from_numpy(places), *blocks)


def _tensor(values: NDArray[Any], dtype: type) -> torch.Tensor:
    """Copy into a tensor, since arrays from disk are mapped read-only."""
    return torch.from_numpy(np.array(values, dtype=dtype))


class PartedBatches:
    """Runs the ops that draw batches of ``rank`` when each host holds only a part of the graph. ``structure``: the part
    of the rank's host; the graph of ``plan`` is not read. ``planned``: as in :class:`DrawnBatches`. One chain of ops
    calls the methods in order, batch after batch; only another thread's :meth:`remote` may run beside it."""

    def __init__(
        self, structure: HostStructure, serving: Serving, rank: int, plan: SamplingPlan, planned: NDArray[np.int64]
    ) -> None:
        self._structure, self._plan, self._rank, self._planned = structure, plan, rank, planned
        self._requester = Requester(structure, serving.servers[rank], serving.ranks, plan.fanouts)
        self._turn: WorkerEpoch | None = None

    def functions(self) -> Functions:
        return {
            **carried_out(AskHosts, self.ask),
            **carried_out(LocateVertices, self.remote),
            **carried_out(DrawHere, self.here),
            **carried_out(DrawForOthers, self.serve),
            **carried_out(StitchFrontier, self.stitch),
            **carried_out(FinishBatch, self.draw),
        }

    def ask(self, context: PolicyContext, *frontier: torch.Tensor) -> tuple[Parts]:
        """Group the vertices of the frontier (in the first hop, the seeds) by the host that draws their neighbours."""
        if not frontier:
            turn = self._turn
            if turn is None or turn.epoch != context.epoch:
                turn = self._turn = self._plan.epoch(self._rank, context.epoch)
            self._requester.begin(turn.seeds(context.step), self._seeds(context)[self._rank])
        asked = self._requester.ask()
        arrays = asked.here, asked.lids, asked.away, asked.wanted, asked.counts, asked.hosts
        return (tuple(torch.from_numpy(array) for array in arrays),)

    def remote(self, context: PolicyContext, asked: Parts) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rank, lid on that rank) int64 [k] of the vertices that other hosts hold, rank after rank."""
        found = _asked(asked)
        return torch.from_numpy(np.repeat(np.arange(len(found.counts)), found.counts)), torch.from_numpy(found.wanted)

    def here(self, context: PolicyContext, asked: Parts) -> tuple[Parts]:
        """Return (bounds int64 [n + 1], lids) of the neighbours of the vertices that this host holds."""
        drawn = self._requester.draw(_asked(asked))
        return ((torch.from_numpy(drawn.bounds), torch.from_numpy(drawn.found)),)

    def serve(self, context: PolicyContext, wanted: Parts) -> tuple[torch.Tensor]:
        """Return gids (int64) of the neighbours of the vertices that other ranks request, rank after rank."""
        lids, counts = wanted
        hop = int(context.options["hop"])
        fanout = self._plan.fanouts[hop - 1]
        reply = self._structure.serve(lids.numpy(), counts.tolist(), self._seeds(context), hop, fanout)
        return (torch.from_numpy(reply.neighbours),)

    def stitch(
        self, context: PolicyContext, asked: Parts, here: Parts, degrees: torch.Tensor, returned: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """Build the next hop's frontier from own draws and answers. ``degrees`` int32 [k, 1]: in-neighbours of each
        requested vertex; ``returned`` int64: gids of the neighbours that were drawn."""
        requester = self._requester
        fanout, found = requester.fanouts[requester.hop - 1], degrees.view(-1).numpy()
        kept = found if fanout < 0 else np.minimum(found, np.int32(fanout))
        bounds, lids = here
        requester.stitch(_asked(asked), Drawn(bounds.numpy(), lids.numpy()), kept, returned.numpy())
        return (torch.from_numpy(requester.frontier.astype(np.int64)),)

    def draw(
        self, context: PolicyContext, asked: Parts, here: Parts, degrees: torch.Tensor, returned: torch.Tensor
    ) -> tuple[Value, ...]:
        """Build the batch once its last hop is drawn, like :meth:`DrawnBatches.draw`."""
        self.stitch(context, asked, here, degrees, returned)
        planned = self._planned[:, context.epoch, context.step]
        return batch_values(self._requester.batch(), self._plan.workers[self._rank], planned, context)

    def _seeds(self, context: PolicyContext) -> list[int]:
        """The random seeds of all ranks' batches in this step, since a rank draws for others with their seeds."""
        plan = self._plan
        return [batch_seed(plan.seed, worker, context.epoch, context.step) for worker in range(plan.ranks)]


def _asked(parts: Parts) -> Asked:
    return Asked(*(part.numpy() for part in parts))
