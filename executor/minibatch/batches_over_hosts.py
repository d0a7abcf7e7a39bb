"""Batches drawn over the hosts of a run, each of which holds a part of the structure, as the ops that draw call for it.

The functions of :class:`PartedBatches` are called in the order of one chain of ops, batch after batch; only
:meth:`PartedBatches.remote` by another thread, with what it needs.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from executor.minibatch.batches import batch_values
from executor.state.buffers import Value
from simgnn.emit.batches.drawing import AskHosts, DrawForOthers, DrawHere, FinishBatch, LocateVertices, StitchFrontier
from simgnn.emit.batches.on_rank import Functions, carried_out
from simgnn.partition.local.serving import Serving
from simgnn.policy import PolicyContext
from simgnn.sampling.batches.plan import SamplingPlan, WorkerEpoch
from simgnn.sampling.draw.parted import Asked, Drawn, HostStructure, Requester
from simgnn.sampling.draw.seeds import batch_seed

Parts = tuple[torch.Tensor, ...]


class PartedBatches:
    """Carries out the ops that draw batches of ``rank``. Of ``plan`` the graph is not read: rows come from the
    ``structure`` of the rank's host and from other hosts. ``planned`` int64 [hops + 1, epochs, steps]: rows of each
    batch after each hop, as the program has them.
    """

    def __init__(
        self, structure: HostStructure, serving: Serving, rank: int, plan: SamplingPlan, planned: NDArray[np.int64]
    ) -> None:
        self._structure, self._plan, self._rank, self._planned = structure, plan, rank, planned
        self._requester = Requester(structure, serving.servers[rank], serving.ranks, plan.fanouts)
        self._turn: WorkerEpoch | None = None

    def functions(self) -> Functions:
        """What carries out the actions of ops that draw."""
        return {
            **carried_out(AskHosts, self.ask),
            **carried_out(LocateVertices, self.remote),
            **carried_out(DrawHere, self.here),
            **carried_out(DrawForOthers, self.serve),
            **carried_out(StitchFrontier, self.stitch),
            **carried_out(FinishBatch, self.draw),
        }

    def ask(self, context: PolicyContext, *frontier: torch.Tensor) -> tuple[Parts]:
        """Who draws what of the frontier; that of the first hop, where none is read, is the seeds."""
        if not frontier:
            turn = self._turn
            if turn is None or turn.epoch != context.epoch:
                turn = self._turn = self._plan.epoch(self._rank, context.epoch)
            self._requester.begin(turn.seeds(context.step), self._seeds(context)[self._rank])
        asked = self._requester.ask()
        arrays = asked.here, asked.lids, asked.away, asked.wanted, asked.counts, asked.hosts
        return (tuple(torch.from_numpy(array) for array in arrays),)

    def remote(self, context: PolicyContext, asked: Parts) -> tuple[torch.Tensor, torch.Tensor]:
        """(rank, lid there) int64 [k] of the vertices that other hosts hold, rank after rank."""
        found = _asked(asked)
        return torch.from_numpy(np.repeat(np.arange(len(found.counts)), found.counts)), torch.from_numpy(found.wanted)

    def here(self, context: PolicyContext, asked: Parts) -> tuple[Parts]:
        """(bounds int64 [n + 1], lids) of the neighbours of the vertices that this host holds."""
        drawn = self._requester.draw(_asked(asked))
        return ((torch.from_numpy(drawn.bounds), torch.from_numpy(drawn.found)),)

    def serve(self, context: PolicyContext, wanted: Parts) -> tuple[torch.Tensor]:
        """Gids of the neighbours of the vertices that this rank is asked for, int64, rank after rank."""
        lids, counts = wanted
        hop = int(context.options["hop"])
        fanout = self._plan.fanouts[hop - 1]
        reply = self._structure.serve(lids.numpy(), counts.tolist(), self._seeds(context), hop, fanout)
        return (torch.from_numpy(reply.neighbours),)

    def stitch(
        self, context: PolicyContext, asked: Parts, here: Parts, degrees: torch.Tensor, returned: torch.Tensor
    ) -> tuple[torch.Tensor]:
        """The next hop's frontier, of own draws and answers. ``degrees`` int32 [k, 1]: in-neighbours of each vertex
        that was asked for; ``returned`` int64: gids of those that were kept."""
        requester = self._requester
        fanout, found = requester.fanouts[requester.hop - 1], degrees.view(-1).numpy()
        kept = found if fanout < 0 else np.minimum(found, np.int32(fanout))
        bounds, lids = here
        requester.stitch(_asked(asked), Drawn(bounds.numpy(), lids.numpy()), kept, returned.numpy())
        return (torch.from_numpy(requester.frontier.astype(np.int64)),)

    def draw(
        self, context: PolicyContext, asked: Parts, here: Parts, degrees: torch.Tensor, returned: torch.Tensor
    ) -> tuple[Value, ...]:
        """The batch, after its last hop; see :meth:`executor.minibatch.batches.DrawnBatches.draw`."""
        self.stitch(context, asked, here, degrees, returned)
        planned = self._planned[:, context.epoch, context.step]
        return batch_values(self._requester.batch(), self._plan.workers[self._rank], planned, context)

    def _seeds(self, context: PolicyContext) -> list[int]:
        """Of the batches of all ranks in this step: what a rank draws for another is under the other's seed."""
        plan = self._plan
        return [batch_seed(plan.seed, worker, context.epoch, context.step) for worker in range(plan.ranks)]


def _asked(parts: Parts) -> Asked:
    return Asked(*(part.numpy() for part in parts))
