"""The base classes of slot ``freshness``: which rows or blocks of a sync are sent, and how."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from simgnn.emit.blocks import BlockSync, BlockTransfer
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.sync import Reference, Sync
from simgnn.model.spec import LayerSpec
from simgnn.policy import Codec, FreshnessTraits, Moves
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray


class Thresholds(Protocol):
    """The controller of a threshold: pure functions that update its state from the training accuracy."""

    def start(self) -> Any:
        """Return the state before the first epoch, with the field ``epsilon``."""

    def adjusted(self, state: Any, accuracy: float | None) -> Any:
        """Return the state after an epoch with this training accuracy (None: there are no training vertices)."""


class Freshness(FreshnessTraits, ABC):
    """The base of freshness policies: for listed rows (:class:`MovesRows`), blocks (:class:`MovesBlocks`), or both."""

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Return messages about options that have no effect with these layers."""
        return []

    @property
    def thresholds(self) -> Thresholds | None:
        """The controller of the threshold that a row must exceed to be sent, with which a simulation extrapolates
        recorded fractions of sent rows to later epochs. None: there is no threshold."""
        return None

    def scheduled(self, program: Program, epochs: int) -> Mapping[str, IntArray]:
        """Return the decisions of a run that the policy alone determines, int64 [P, epochs, 1] by name; a simulation
        needs no record of them."""
        return {}

    def emit_epoch_end(self, builder: ProgramBuilder, templates: tuple[str, ...]) -> None:
        """Emit the ops after the update of each epoch: the step of a controller, for example."""


class MovesRows(Freshness, ABC):
    """The base of freshness policies for listed rows."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    @abstractmethod
    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        """Emit the ops of a sync: which rows are sent, how ``codec`` encodes them, what replaces rows not sent."""

    def settle(self, builder: ProgramBuilder, templates: tuple[str, ...], reference: Reference) -> str | None:
        """Emit ops that keep an old :class:`Reference`; return the buffer that marks rows with a new one, or None."""
        return None


class MovesBlocks(Freshness, ABC):
    """The base of freshness policies for whole blocks."""

    serves: ClassVar[tuple[Moves, ...]] = ("blocks",)

    @abstractmethod
    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        """The emitter of a sync's transfers: which blocks are sent, and what others use in place of the rest."""
