"""The bases of slot ``freshness``: which rows or blocks of a sync are sent, and how."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from simgnn.emit.blocks import BlockSync, BlockTransfer
from simgnn.emit.sync import Reference, Sync
from simgnn.model.spec import LayerSpec
from simgnn.policy import Codec, FreshnessTraits, Moves
from simgnn.program.builder import ProgramBuilder
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray


class Thresholds(Protocol):
    """A controller of a threshold: a pure function of its state and an accuracy."""

    def start(self) -> Any:
        """State before the first epoch, with the field ``epsilon``."""

    def adjusted(self, state: Any, accuracy: float | None) -> Any:
        """State after an epoch of this training accuracy (None: there are no training vertices)."""


class Freshness(FreshnessTraits, ABC):
    """A choice of slot ``freshness``: of listed rows (:class:`MovesRows`), of whole blocks (:class:`MovesBlocks`), or
    of both."""

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Messages about options that have no effect with these layers."""
        return []

    @property
    def thresholds(self) -> Thresholds | None:
        """The controller of the threshold that a row must pass to be sent: past the end of a record, the fractions of
        rows that are sent follow it. None: there is no threshold."""
        return None

    def scheduled(self, program: Program, epochs: int) -> Mapping[str, IntArray]:
        """Decisions of a run that follow from the policy alone, int64 [P, epochs, 1] by name, so that a simulation
        needs no record of them."""
        return {}

    def emit_epoch_end(self, builder: ProgramBuilder, templates: tuple[str, ...]) -> None:
        """Emit what follows the update in each epoch: the step of a controller, for example."""


class MovesRows(Freshness, ABC):
    """A freshness of listed rows."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    @abstractmethod
    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        """Emit the ops of a sync: which rows are sent, how ``codec`` encodes them, what becomes of those that are
        not sent."""

    def settle(self, builder: ProgramBuilder, templates: tuple[str, ...], reference: Reference) -> str | None:
        """As in :class:`~simgnn.emit.sync.Expand`. None: sums of one turn are never added to those of another."""
        return None


class MovesBlocks(Freshness, ABC):
    """A freshness of whole blocks."""

    serves: ClassVar[tuple[Moves, ...]] = ("blocks",)

    @abstractmethod
    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        """What emits the transfers of a sync: which blocks are sent, and what others use of those that are not."""
