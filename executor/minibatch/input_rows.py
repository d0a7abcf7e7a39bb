"""Input rows of batches: the source of each row (planned lists, or computed when a batch is drawn), and the staging ops
that collect the rows.

A staged batch uses one of ``window`` buffers of ``largest`` rows, allocated once. The cache of hot rows uses one of two
buffers, or one for the whole run. A rank's device holds no other input rows during training (RapidGNN's bound,
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
    """Computes the source of each row from its owner, without a cache. ``rows`` [V]: row of each vertex on its host.
    ``distinct``: no vertex is several rows of a batch."""

    def __init__(self, sources: Sources, rows: IndexArray, distinct: bool = True) -> None:
        self._sources, self._rows, self._distinct = sources, rows, distinct
        self._found: tuple[tuple[int, int], Gather] | None = None

    def of(self, epoch: int, step: int, vertices: Rows) -> Gather:
        """Return the source of each input row of one batch, for ``vertices`` int64 [m]."""
        turn, found = (epoch, step), self._found
        if found is None or found[0] != turn:  # two ops of a turn ask, one after the other
            found = self._found = turn, gather(vertices.numpy(), self._sources, None, 0, self._rows, self._distinct)
        return found[1]


class PlannedOrigins:
    """Reads the source of each row from the planned fetches of the run, which are checked before training begins."""

    def __init__(self, fetches: FetchPlan, rank: int) -> None:
        self._parts = [fetches.gather(epoch, rank) for epoch in range(fetches.epochs)]

    def of(self, epoch: int, step: int, vertices: Rows) -> Gather:
        """Return the source of each input row of one batch; m = 0 in a step without a batch."""
        part = self._parts[epoch]
        if step < len(part):
            return part.gather(step)
        none = np.zeros(0, np.int32)
        return Gather(none, none, none, none, none, none, np.zeros(part.counts.shape[1], np.int64))


@dataclass(frozen=True)
class Staging:
    """Sizes of a rank's staging memory: ``steps`` per epoch, ``window`` buffers of ``largest`` rows, ``caches`` of
    ``hot_rows`` rows (two that alternate by epoch, one for a run, or none). ``width``, ``dtype``: of rows; ``device``:
    where rows are staged. ``leaving``: host memory of the rows that other ranks need for a batch, if their buffer is
    fixed (``lasting`` of :class:`simgnn.program.ops.Buffer`)."""

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
    """Runs staging ops: gathers rows that other ranks need, and collects a batch's input rows. ``note_rows`` records
    the number of moved rows by source. ``caches``: the caches of hot rows, indexed by epoch modulo their number."""

    def __init__(self, origins: FoundOrigins | PlannedOrigins, staging: Staging) -> None:
        self._origins, self.staging = origins, staging
        self.note_rows: NoteRows = unrecorded
        self._buffers = [self._rows(staging.largest) for _ in range(staging.window)]
        self.caches: Sequence[Rows] = ()

    def functions(self) -> Functions:
        return {**carried_out(LocateRows, self.remote), **carried_out(StageInputs, self.inputs)}

    def inputs(self, context: PolicyContext, vertices: Rows, features: Rows, pulled: Rows | None = None) -> tuple[Rows]:
        """Collect the input rows of a batch [m, F] from this host and the ``pulled`` rows; rows from the cache are
        filled in by :meth:`ScheduledRows.hits`."""
        origin = self._origins.of(context.epoch, context.step, vertices)
        count = context.epoch * self.staging.steps + context.step
        staged = self._buffers[count % self.staging.window][: len(vertices)]
        self._note(context, LOCAL, move_rows(features, origin.local_rows, staged, origin.local))
        if pulled is not None:
            self._note(context, PULLED, move_rows(pulled, None, staged, origin.pulls))
            if origin.repeats is not None and origin.repeated is not None:
                # of rows that are in the host's memory by now
                self._note(context, LOCAL, move_rows(pulled, origin.repeated, staged, origin.repeats))
        return (staged,)

    def remote(self, context: PolicyContext, vertices: Rows) -> tuple[Rows, Rows]:
        """Return (rank, row on that rank) int64 [k] of the rows that other hosts hold, rank after rank."""
        origin = self._origins.of(context.epoch, context.step, vertices)
        ranks = np.repeat(np.arange(len(origin.counts)), origin.counts)
        return torch.from_numpy(ranks), torch.from_numpy(np.array(origin.pulled_rows, dtype=np.int64))

    def _note(self, context: PolicyContext, place: str, rows: int) -> None:
        self.note_rows(context.epoch, context.step, place, NOBODY, rows)

    def _rows(self, count: int) -> Rows:
        staging = self.staging
        return torch.zeros((count, staging.width), dtype=staging.dtype, device=staging.device)


class ScheduledRows(StagedRows):
    """Runs staging ops of runs in which each rank knows the rows that others need in each step, so that rows are sent
    without requests. ``delta``: rows that stay in the cache are copied from the previous cache."""

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
        """Gather the rows that other ranks need for this step's batches, rank after rank."""
        return (_picked(features, self._served[context.epoch].rows(context.step), self.staging.leaving),)

    def hits(self, context: PolicyContext, hot: Rows, inputs: Rows) -> tuple[Rows]:
        """Copy rows from the cache to their positions among the input rows."""
        origin = self._origins.of(context.epoch, context.step, inputs)
        self._note(context, HIT, move_rows(hot, origin.slots, inputs, origin.hits))
        return (inputs,)

    def serve_cache(self, context: PolicyContext, features: Rows, first: bool = False) -> tuple[Rows]:
        """Gather this step's part of the rows for other ranks' caches of the next epoch; with ``first``, all rows of
        the first epoch's caches."""
        epoch, step, steps = self._part(context, first)
        if epoch == len(self._served):  # nothing follows the last epoch
            return (features[:0],)
        others = [
            self._refills(epoch, of, steps).of_sender(step, self._rank) for of in range(self._ranks) if of != self._rank
        ]
        return (_picked(features, np.concatenate(others) if others else np.zeros(0, np.int64)),)

    def cache(self, context: PolicyContext, pulled: Rows, first: bool = False) -> tuple[Rows]:
        """Return the next epoch's cache with rows that this step pulled; with ``first``, the first epoch's cache."""
        epoch, step, steps = self._part(context, first)
        # steps of epoch e - 1 write the cache of epoch e
        target = self.caches[(epoch - 1) % len(self.caches)]
        if epoch < len(self._served):
            refill = self._refills(epoch, self._rank, steps)
            self._note(context, CACHED, move_rows(pulled, None, target, refill.slots[refill.pulled(step)]))
        return (target,)

    def kept(self, context: PolicyContext, present: Rows, coming: Rows) -> tuple[Rows]:
        """Return the next epoch's cache with the rows of this step's part that the present cache already has."""
        epoch, step, steps = self._part(context, first=False)
        if epoch < len(self._served):
            refill = self._refills(epoch, self._rank, steps)
            kept = refill.copied(step)
            move_rows(present, refill.kept_from[kept], coming, refill.kept[kept])
        return (coming,)

    def _part(self, context: PolicyContext, first: bool) -> tuple[int, int, int]:
        """Return the epoch whose cache an op fills, the part of its rows to fill (from 0), and the number of parts."""
        return (0, 0, 1) if first else (context.epoch + 1, context.step, self.staging.steps)


def _picked(features: Rows, rows: Any, room: Rows | None = None) -> Rows:
    out = None if room is None else room[: len(rows)]
    return gather_rows(features, torch.from_numpy(np.array(rows, dtype=np.int64)), out)
