"""Input rows of batches: where each row comes from (lists made ahead of time, or worked out when a batch is drawn), and
the staging ops that put the rows together.

A staged batch lies in one of ``window`` buffers of ``largest`` rows, allocated once; the cache of hot rows in one of
two, or in one for the whole run. While it trains, a rank's device holds no other input rows (RapidGNN's bound,
docs/systems/rapidgnn.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from executor.kernels.rows import gather_rows, move_rows
from executor.state.context import NoteRows, unrecorded
from simgnn.emit.batches.on_rank import Functions, carried_out
from simgnn.emit.batches.staging import LocateRows, ServeRows, StageInputs
from simgnn.graph.csr import IndexArray
from simgnn.policies.placement.store import (
    FillFirstHotRows,
    FillHotRows,
    KeepHotRows,
    ServeFirstHotRows,
    ServeHotRows,
    TakeHotRows,
)
from simgnn.policy import PolicyContext
from simgnn.record.batches import CACHED, HIT, LOCAL, NOBODY, PULLED
from simgnn.sampling.fetches.fetch_lists import Gather, gather
from simgnn.sampling.fetches.fetch_plan import FetchPlan, Refill, refill_of
from simgnn.sampling.fetches.remote_rows import Sources

Rows = torch.Tensor


class FoundOrigins:
    """Worked out from the owners of rows when a batch is drawn; nothing is cached. ``rows`` [V]: row of each vertex on
    its host."""

    def __init__(self, sources: Sources, rows: IndexArray) -> None:
        self._sources, self._rows = sources, rows
        self._found: tuple[tuple[int, int], Gather] | None = None

    def of(self, epoch: int, step: int, vertices: Rows) -> Gather:
        """The origins of one batch with the input rows ``vertices`` int64 [m]."""
        turn, found = (epoch, step), self._found
        if found is None or found[0] != turn:  # two ops of a turn ask, one after the other
            found = self._found = turn, gather(vertices.numpy(), self._sources, None, 0, self._rows)
        return found[1]


class PlannedOrigins:
    """Read from the plan of a run's fetches, which is checked here, before training begins."""

    def __init__(self, fetches: FetchPlan, rank: int) -> None:
        self._parts = [fetches.gather(epoch, rank) for epoch in range(fetches.epochs)]

    def of(self, epoch: int, step: int, vertices: Rows) -> Gather:
        """The origins of one batch; m = 0 in a step without a batch."""
        part = self._parts[epoch]
        if step < len(part):
            return part.gather(step)
        none = np.zeros(0, np.int32)
        return Gather(none, none, none, none, none, none, np.zeros(part.counts.shape[1], np.int64))


@dataclass(frozen=True)
class Staging:
    """Sizes of a rank's staging: ``steps`` of an epoch, ``window`` buffers of ``largest`` rows, ``caches`` of
    ``hot_rows`` rows: two that alternate by epoch, one for a run, or none. ``width``, ``dtype``: of rows; ``device``:
    where they are staged. ``leaving``: host memory for the rows that others need for a batch, where they always lie in
    the same place (``lasting`` of :class:`simgnn.program.ops.Buffer`)."""

    steps: int
    window: int
    largest: int
    hot_rows: int
    width: int
    dtype: torch.dtype
    device: torch.device
    caches: int = 2
    leaving: Rows | None = None


class StagedRows:
    """Carries out staging ops: gathers rows that others need, and puts together a batch's input rows. ``note_rows``
    records how many rows it moved, and their source. ``caches``: the copies of the cache of hot rows, by epoch modulo
    their number."""

    def __init__(self, origins: FoundOrigins | PlannedOrigins, staging: Staging) -> None:
        self._origins, self.staging = origins, staging
        self.note_rows: NoteRows = unrecorded
        self._buffers = [self._rows(staging.largest) for _ in range(staging.window)]
        self.caches: Sequence[Rows] = ()

    def functions(self) -> Functions:
        return {**carried_out(LocateRows, self.remote), **carried_out(StageInputs, self.inputs)}

    def inputs(self, context: PolicyContext, vertices: Rows, features: Rows, pulled: Rows | None = None) -> tuple[Rows]:
        """Input rows of a batch [m, F]: those of this host and those that were ``pulled``; rows of the cache are left
        to :meth:`ScheduledRows.hits`."""
        origin = self._origins.of(context.epoch, context.step, vertices)
        count = context.epoch * self.staging.steps + context.step
        staged = self._buffers[count % self.staging.window][: len(vertices)]
        self._note(context, LOCAL, move_rows(features, origin.local_rows, staged, origin.local))
        if pulled is not None:
            self._note(context, PULLED, move_rows(pulled, None, staged, origin.pulls))
        return (staged,)

    def remote(self, context: PolicyContext, vertices: Rows) -> tuple[Rows, Rows]:
        """(rank, row there) int64 [k] of the rows that other hosts hold, rank after rank."""
        origin = self._origins.of(context.epoch, context.step, vertices)
        ranks = np.repeat(np.arange(len(origin.counts)), origin.counts)
        return torch.from_numpy(ranks), torch.from_numpy(np.array(origin.pulled_rows, dtype=np.int64))

    def _note(self, context: PolicyContext, place: str, rows: int) -> None:
        self.note_rows(context.epoch, context.step, place, NOBODY, rows)

    def _rows(self, count: int) -> Rows:
        staging = self.staging
        return torch.zeros((count, staging.width), dtype=staging.dtype, device=staging.device)


class ScheduledRows(StagedRows):
    """Rows are sent without requests: each rank knows what the others need in each step. ``delta``: rows that stay in
    the cache are copied from the cache before."""

    def __init__(self, fetches: FetchPlan, rank: int, staging: Staging, delta: bool) -> None:
        super().__init__(PlannedOrigins(fetches, rank), staging)
        self._served = [fetches.serve(epoch, rank) for epoch in range(fetches.epochs)]
        self._ranks = self._served[0].index.shape[1]
        self._rank = rank
        self.caches = [self._rows(staging.hot_rows) for _ in range(staging.caches)]
        # of two epochs, since the last steps of one may run beside the first ones of the next
        self._refills: Callable[[int, int, int], Refill] = lru_cache(maxsize=2 * self._ranks)(
            lambda epoch, of, steps: refill_of(fetches, epoch, of, steps, delta)
        )

    def functions(self) -> Functions:
        return {
            **super().functions(),
            **carried_out(ServeRows, self.serve),
            **carried_out(TakeHotRows, self.hits),
            **carried_out(ServeHotRows, self.serve_cache),
            **carried_out(FillHotRows, self.cache),
            **carried_out(KeepHotRows, self.kept),
            **carried_out(ServeFirstHotRows, lambda context, rows: self.serve_cache(context, rows, first=True)),
            **carried_out(FillFirstHotRows, lambda context, rows: self.cache(context, rows, first=True)),
        }

    def serve(self, context: PolicyContext, features: Rows) -> tuple[Rows]:
        """The rows that other ranks need for this step's batches, rank after rank."""
        return (_picked(features, self._served[context.epoch].rows(context.step), self.staging.leaving),)

    def hits(self, context: PolicyContext, hot: Rows, inputs: Rows) -> tuple[Rows]:
        """Copy rows of the cache to their places among the input rows."""
        origin = self._origins.of(context.epoch, context.step, inputs)
        self._note(context, HIT, move_rows(hot, origin.slots, inputs, origin.hits))
        return (inputs,)

    def serve_cache(self, context: PolicyContext, features: Rows, first: bool = False) -> tuple[Rows]:
        """This step's part of the rows for other ranks' caches of the next epoch; with ``first``, all rows for those of
        the first epoch."""
        epoch, step, steps = self._part(context, first)
        if epoch == len(self._served):  # nothing follows the last epoch
            return (features[:0],)
        others = [
            self._refills(epoch, of, steps).of_sender(step, self._rank) for of in range(self._ranks) if of != self._rank
        ]
        return (_picked(features, np.concatenate(others) if others else np.zeros(0, np.int64)),)

    def cache(self, context: PolicyContext, pulled: Rows, first: bool = False) -> tuple[Rows]:
        """The next epoch's cache with the rows that this step pulled; with ``first``, the first epoch's cache."""
        epoch, step, steps = self._part(context, first)
        # steps of epoch e - 1 write the cache of epoch e
        target = self.caches[(epoch - 1) % len(self.caches)]
        if epoch < len(self._served):
            refill = self._refills(epoch, self._rank, steps)
            self._note(context, CACHED, move_rows(pulled, None, target, refill.slots[refill.pulled(step)]))
        return (target,)

    def kept(self, context: PolicyContext, present: Rows, coming: Rows) -> tuple[Rows]:
        """The next epoch's cache with the rows of this step's part that the present cache has."""
        epoch, step, steps = self._part(context, first=False)
        if epoch < len(self._served):
            refill = self._refills(epoch, self._rank, steps)
            kept = refill.copied(step)
            move_rows(present, refill.kept_from[kept], coming, refill.kept[kept])
        return (coming,)

    def _part(self, context: PolicyContext, first: bool) -> tuple[int, int, int]:
        """Of which epoch's cache an op handles which part of how many."""
        return (0, 0, 1) if first else (context.epoch + 1, context.step, self.staging.steps)


def _picked(features: Rows, rows: Any, room: Rows | None = None) -> Rows:
    """Some rows, in the first rows of ``room`` where there is any."""
    out = None if room is None else room[: len(rows)]
    return gather_rows(features, torch.from_numpy(np.array(rows, dtype=np.int64)), out)
