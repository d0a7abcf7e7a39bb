"""The base of freshness policies that draw halo rows anew in each epoch, and what their ops do at run time.

Which rows are drawn follows from seed, epoch and the pair of ranks, so that both ends know it and send no ids."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from simgnn.emit.arrays import pick_rows
from simgnn.emit.batches.on_rank import OfOne, RankAction
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.freshness import MovesRows
from simgnn.emit.sync import Stage, Sync, emit_encoded, emit_plainly
from simgnn.model.costs import pass_over
from simgnn.policy import Action, Array, Codec, PolicyContext, PolicyError
from simgnn.program.kinds import OpKind
from simgnn.program.sizes import IntArray

ROUTE = "halo/drawn"
"""The route of the drawn rows, from owners to the ranks that need them."""
LISTED, KEPT, FACTORS = "drawn/listed", "drawn/kept", "drawn/factors"
"""Buffers of an epoch: own rows that are sent, by receiver; places in the halo of the rows that arrive, ascending; and
what these are multiplied by."""
IDS, ARRIVED_IDS = "drawn/ids", "drawn/arrived_ids"
"""Buffers of ids that are sent and received: places of drawn rows among those of their pair of ranks."""


class Drawn(NamedTuple):
    """Rows that are drawn of several pairs of ranks. ``places``: ascending places among the rows of all pairs, one pair
    after the other; ``counts``: how many of each pair."""

    places: IntArray
    counts: IntArray


class DrawRows(Action["DrawsRows"]):
    """Draw the rows of the epoch that this rank sends and those that it receives."""

    calls = "drawn"

    def __init__(self, owner: "DrawsRows", codec: Codec) -> None:
        super().__init__(owner, codec)
        none = np.zeros(0, np.int64)
        owner.drawn(0, 0, none, none, none)  # compiled before the run

    def run(self, context: PolicyContext, *_: Array) -> tuple[Array, ...]:
        """Return what ``LISTED``, ``KEPT`` and, where the op writes them, ``FACTORS`` and ``IDS`` hold: int64 [l] and
        [m], floats [m, 1], int64 [l]."""
        leaving, options, ranks = context.leaving, context.options, np.arange(context.ranks)
        xp, here, place = array_namespace(leaving), np.full_like(ranks, context.rank), device(leaving)
        sent, received = np.array(context.send, np.int64), np.array(context.receive, np.int64)
        out = self.owner.drawn(context.seed, context.epoch, here, ranks, sent)
        arriving = self.owner.arriving(context.seed, context.epoch, context.rank, received)
        found = [pick_rows(leaving, xp.asarray(out.places, device=place)), xp.asarray(arriving.places, device=place)]
        if "dtype" in options:
            factors = np.repeat(self.owner.factors(received, arriving.counts), arriving.counts)
            found.append(xp.asarray(factors[:, None], dtype=getattr(xp, str(options["dtype"])), device=place))
        if "ids" in options:
            begins = np.repeat(np.cumsum(sent) - sent, out.counts)
            found.append(xp.asarray((out.places - begins)[:, None], device=place))
        return tuple(found)


class CheckIds(Action["DrawsRows"]):
    """Compare the ids that owners sent with the rows that this rank has drawn."""

    def run(self, context: PolicyContext, ids: Array, kept: Array) -> tuple[Array, ...]:
        """Return ``kept``, if the ``ids`` [m, 1] that arrived name the same rows; raise :class:`PolicyError` if not."""
        xp, received = array_namespace(kept), np.array(context.receive, np.int64)
        ends = xp.asarray(np.cumsum(received), device=device(kept))
        begins = ends - xp.asarray(received, device=device(kept))
        own = kept - pick_rows(begins, xp.searchsorted(ends, kept, side="right"))
        if bool(xp.any(xp.reshape(ids, (-1,)) != own)):
            raise PolicyError(
                f"rank {context.rank} draws other halo rows in epoch {context.epoch + 1} than their owners sent: this "
                "is a fault of simgnn, not of the experiment"
            )
        return (kept,)


class KeepEdges(RankAction[OfOne]):
    """Select the edges from the halo rows ``KEPT``, over which the layers of the epoch sum."""


class TakeRows(Action["DrawsRows"]):
    """Copy the drawn rows out of the whole halo, which the rank holds."""

    def run(self, context: PolicyContext, halo: Array, kept: Array) -> tuple[Array, ...]:
        """Return rows [m, F] of ``halo`` [h, F]."""
        return (pick_rows(halo, kept),)


class ScaleRows(Action["DrawsRows"]):
    """Multiply drawn rows, or their gradients, by the inverse share of drawn rows, so that sums are unbiased."""

    def run(self, context: PolicyContext, rows: Array, factors: Array) -> tuple[Array, ...]:
        """Return ``rows`` [m, F] times ``factors`` [m, 1], in place."""
        rows *= factors
        return (rows,)


class DrawsRows(MovesRows, ABC):
    """The base of policies by which a rank sends, receives and sums only drawn halo rows, others in each epoch.

    Rows whose sums are linear are multiplied by :meth:`factors`, and so are their gradients. Evaluations read all halo
    rows. ``sends_ids``: owners also send which rows they have drawn, and receivers compare."""

    draws_rows: ClassVar[bool] = True
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (DrawRows, CheckIds, KeepEdges, TakeRows, ScaleRows)

    @abstractmethod
    def drawn(self, seed: int, epoch: int, senders: IntArray, receivers: IntArray, rows: IntArray) -> Drawn:
        """Draw among ``rows`` [k] rows of each of k pairs of ranks: a pure function of the arguments, and of each pair
        by itself, whichever other pairs are drawn in the same call."""

    def arriving(self, seed: int, epoch: int, rank: int, rows: IntArray) -> Drawn:
        """Draw among the ``rows`` [P] halo rows that ``rank`` needs of each rank: places in its halo."""
        owners = np.arange(len(rows))
        return self.drawn(seed, epoch, owners, np.full_like(owners, rank), rows)

    @abstractmethod
    def fixed_counts(self, rows: IntArray) -> IntArray | None:
        """How many of each pair's ``rows`` [k] are drawn in every epoch; None: the number differs by epoch."""

    @abstractmethod
    def factors(self, rows: IntArray, drawn: IntArray) -> NDArray[np.float64]:
        """What the drawn rows of pairs are multiplied by, float64 [k]; anything where none are drawn."""

    @property
    def scales(self) -> bool:
        """Whether a factor may differ from 1."""
        return True

    @property
    def sends_ids(self) -> bool:
        return False

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        scaled = self.scales and sync.linear
        (stage,) = sync.stages
        if scaled and sync.phase == "backward":
            self._scale(builder, sync, stage, stage.source)
        if sync.held is not None:
            builder.buffer(stage.target, stage.arriving, sync.width)
            builder.compute(
                sync.templates, sync.op(stage, "take"), OpKind.COPY, [sync.held, KEPT], [stage.target],
                (builder.row_work("gather", stage.arriving, sync.width),), TakeRows, module=self.slot, **sync.overhead,
            )  # fmt: skip
        elif codec.encodes:
            emit_encoded(builder, sync, codec)
        else:
            emit_plainly(builder, sync)
        if scaled and sync.phase == "forward":
            self._scale(builder, sync, stage, stage.target)

    def _scale(self, builder: ProgramBuilder, sync: Sync, stage: Stage, rows: str) -> None:
        count = builder.buffers[rows].rows
        builder.compute(
            sync.templates, sync.op(stage, "scale"), OpKind.ELEMENTWISE, [rows, FACTORS], [rows],
            builder.work([pass_over(count, sync.width, 2)]), ScaleRows, module=self.slot, **sync.overhead,
        )  # fmt: skip
