"""Where the input rows of batches come from: lists made ahead of time, or worked out when a batch is there.

The functions of :class:`StagedRows` carry out the staging ops of a program. A staged batch lies in one of ``window``
buffers of ``largest`` rows, made once, the cache of hot rows in one of two, or in the only one of a run: while it
trains, a rank's device holds no other input rows (RapidGNN's bound, docs/systems/rapidgnn.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from executor.kernels.rows import gather_rows, move_rows
from executor.state.context import NoteRows, uncounted
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
from simgnn.sampling.fetches.fetch_plan import FetchPlan
from simgnn.sampling.fetches.refill import Refill, refill_of
from simgnn.sampling.fetches.remote_rows import Sources

Rows = torch.Tensor


class Origins(Protocol):
    """Where the input rows of a rank's batches come from."""

    def of(self, epoch: int, step: int, vertices: Rows) -> Gather:
        """Of one batch, ``vertices`` int64 [m] being its input rows; of a step without a batch m = 0."""
        ...


class FoundOrigins:
    """Worked out from the owners of rows when a batch is there; nothing is cached. ``rows`` [V]: row of each vertex on
    its host."""

    def __init__(self, sources: Sources, rows: IndexArray) -> None:
        self._sources, self._rows = sources, rows
        self._found: tuple[tuple[int, int], Gather] | None = None

    def of(self, epoch: int, step: int, vertices: Rows) -> Gather:
        """See :class:`Origins`. What is fetched and where it is put are asked for one after the other."""
        turn, found = (epoch, step), self._found
        if found is None or found[0] != turn:
            found = self._found = turn, gather(vertices.numpy(), self._sources, None, 0, self._rows)
        return found[1]


class PlannedOrigins:
    """Read from the plan of a run's fetches, which is checked here, before training begins."""

    def __init__(self, fetches: FetchPlan, rank: int) -> None:
        self._parts = [fetches.gather(epoch, rank) for epoch in range(fetches.epochs)]
        self._none = np.zeros(0, np.int32)

    def of(self, epoch: int, step: int, vertices: Rows) -> Gather:
        """See :class:`Origins`."""
        part = self._parts[epoch]
        if step < len(part):
            return part.gather(step)
        none = self._none
        return Gather(none, none, none, none, none, none, np.zeros(part.counts.shape[1], np.int64))


@dataclass(frozen=True)
class Staging:
    """Sizes of a rank's staging: ``steps`` of an epoch, ``window`` buffers of ``largest`` rows, ``hot_rows`` of its
    largest cache, of which there are ``caches``: two, by epoch, one for a run, or none; ``width``, ``dtype`` of rows,
    the ``device`` that they are staged on. ``leaving``: memory of the host for the rows that others need for a batch,
    where one after the other lies there (``lasting`` of :class:`simgnn.program.ops.Buffer`)."""

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
    """Carries out staging ops: gathers rows that others need, and puts together a batch's input rows. ``note_rows``:
    where it records how many rows it moved, and their source."""

    def __init__(self, origins: Origins, staging: Staging) -> None:
        self._origins, self.staging = origins, staging
        self.note_rows: NoteRows = uncounted
        self._buffers = [self._rows(staging.largest) for _ in range(staging.window)]

    @property
    def device_rows(self) -> int:
        """Input rows that this rank's device has memory for."""
        return sum(map(len, self._buffers))

    @property
    def caches(self) -> Sequence[Rows]:
        """The copies of the cache of hot rows, by epoch modulo their number; none where nothing is cached."""
        return ()

    def functions(self) -> Functions:
        """What carries out the actions of staging ops."""
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
    """Rows travel unasked: each rank knows what the others need at each step. ``delta``: rows that stay in the cache
    are copied from the one before."""

    def __init__(self, fetches: FetchPlan, rank: int, staging: Staging, delta: bool) -> None:
        super().__init__(PlannedOrigins(fetches, rank), staging)
        self._served = [fetches.serve(epoch, rank) for epoch in range(fetches.epochs)]
        self._ranks = self._served[0].index.shape[1]
        self._rank = rank
        self._caches = [self._rows(staging.hot_rows) for _ in range(staging.caches)]
        # of two epochs, since the last steps of one may run beside the first ones of the next
        self._refills: Callable[[int, int, int], Refill] = lru_cache(maxsize=2 * self._ranks)(
            lambda epoch, of, steps: refill_of(fetches, epoch, of, steps, delta)
        )

    @property
    def device_rows(self) -> int:
        """See :class:`StagedRows`."""
        return super().device_rows + sum(map(len, self._caches))

    @property
    def caches(self) -> Sequence[Rows]:
        """See :class:`StagedRows`."""
        return self._caches if self.staging.hot_rows else ()

    def functions(self) -> Functions:
        """See :class:`StagedRows`."""
        return {
            **super().functions(),
            **carried_out(ServeRows, self.serve),
            **carried_out(TakeHotRows, self.hits),
            **carried_out(ServeHotRows, self.serve_cache),
            **carried_out(FillHotRows, self.cache),
            **carried_out(KeepHotRows, self.kept),
            **carried_out(ServeFirstHotRows, self.serve_first_cache),
            **carried_out(FillFirstHotRows, self.first_cache),
        }

    def serve(self, context: PolicyContext, features: Rows) -> tuple[Rows]:
        """The rows that other ranks need for this step's batches, rank after rank."""
        return (_picked(features, self._served[context.epoch].rows(context.step), self.staging.leaving),)

    def hits(self, context: PolicyContext, hot: Rows, inputs: Rows) -> tuple[Rows]:
        """Rows of the cache where they belong among the input rows."""
        origin = self._origins.of(context.epoch, context.step, inputs)
        self._note(context, HIT, move_rows(hot, origin.slots, inputs, origin.hits))
        return (inputs,)

    def serve_cache(self, context: PolicyContext, features: Rows) -> tuple[Rows]:
        """This step's piece of what fills the other ranks' caches of the next epoch."""
        return (self._cache_rows(context, features, context.epoch + 1, self.staging.steps),)

    def cache(self, context: PolicyContext, pulled: Rows) -> tuple[Rows]:
        """The next epoch's cache with what this step pulled of it."""
        return (self._filled(context, pulled, context.epoch + 1, self.staging.steps),)

    def kept(self, context: PolicyContext, present: Rows, coming: Rows) -> tuple[Rows]:
        """The next epoch's cache with what of this step's piece the present one has."""
        epoch = context.epoch + 1
        if epoch < len(self._served):
            refill = self._refills(epoch, self._rank, self.staging.steps)
            kept = refill.copied(context.step)
            move_rows(present, refill.kept_from[kept], coming, refill.kept[kept])
        return (coming,)

    def serve_first_cache(self, context: PolicyContext, features: Rows) -> tuple[Rows]:
        """What fills the other ranks' caches of the first epoch."""
        return (self._cache_rows(context, features, 0, 1),)

    def first_cache(self, context: PolicyContext, pulled: Rows) -> tuple[Rows]:
        """The first epoch's cache."""
        return (self._filled(context, pulled, 0, 1),)

    def _cache_rows(self, context: PolicyContext, features: Rows, epoch: int, steps: int) -> Rows:
        if epoch == len(self._served):  # nothing follows the last epoch
            return features[:0]
        step = context.step if steps > 1 else 0
        others = [
            self._refills(epoch, of, steps).of_sender(step, self._rank) for of in range(self._ranks) if of != self._rank
        ]
        return _picked(features, np.concatenate(others) if others else np.zeros(0, np.int64))

    def _filled(self, context: PolicyContext, pulled: Rows, epoch: int, steps: int) -> Rows:
        # the cache of epoch e is the one that steps of epoch e - 1 write
        target = self._caches[(epoch - 1) % len(self._caches)]
        if epoch == len(self._served):
            return target
        refill, step = self._refills(epoch, self._rank, steps), context.step if steps > 1 else 0
        self._note(context, CACHED, move_rows(pulled, None, target, refill.slots[refill.pulled(step)]))
        return target


def _picked(features: Rows, rows: Any, room: Rows | None = None) -> Rows:
    """Some rows, in the first ones of ``room`` where there is any."""
    out = None if room is None else room[: len(rows)]
    return gather_rows(features, torch.from_numpy(np.array(rows, dtype=np.int64)), out)
