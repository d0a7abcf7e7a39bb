"""The base of every freshness by which only chosen rows travel, from caches that both ends keep."""

from abc import ABC
from typing import Any, ClassVar

from simgnn.emit.caches.cached_stage import CachedStage, emit_state_step
from simgnn.emit.caches.replica_cache import REPLICA_ACTIONS
from simgnn.emit.caches.replica_sync import ReplicaSync, emit_settling, is_replica_sync
from simgnn.emit.caches.row_cache import ROW_ACTIONS, ChoosesRows
from simgnn.emit.encoded import training_part
from simgnn.emit.freshness import MovesRows
from simgnn.emit.sync import Reference, Sync
from simgnn.policy import Action, Codec
from simgnn.program.builder import ProgramBuilder


class CachedRows(ChoosesRows, MovesRows, ABC):
    """A policy says which rows travel (:meth:`ChoosesRows.moved`); everything else is done here.

    Between owners and copies, both ends keep the rows as last sent. Over masters and mirrors, sums are kept, to which
    the changes of parts are added. Evaluations are exact.
    """

    sends_differences: ClassVar[bool] = True
    hands_on: ClassVar[bool] = True
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (*ROW_ACTIONS, *REPLICA_ACTIONS)

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        """See :class:`MovesRows`."""
        training = training_part(builder, sync)
        if is_replica_sync(training):
            ReplicaSync(builder, training, codec, self).emit()
            return
        for stage in training.stages:
            CachedStage(builder, training, stage, codec, self).emit()

    def settle(self, builder: ProgramBuilder, templates: tuple[str, ...], reference: Reference) -> str | None:
        """See :class:`MovesRows`: parts of several epochs add up only relative to one reference."""
        return emit_settling(builder, templates, reference)

    def emit_epoch_end(self, builder: ProgramBuilder, templates: tuple[str, ...]) -> None:
        """See :class:`Freshness`: the state moves on."""
        emit_state_step(builder, self, templates)
