"""What every freshness is: how a sync of a communication is carried out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from simgnn.emit.blocks import BlockSync, BlockTransfer
from simgnn.emit.sync import Reference, Sync
from simgnn.model.spec import LayerSpec
from simgnn.policy import Codec, FreshnessTraits, Moves
from simgnn.program.builder import ProgramBuilder
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray


class Freshness(FreshnessTraits, ABC):
    """A choice of slot ``freshness``. ``serves``: what it moves, listed rows (:class:`MovesRows`), whole blocks
    (:class:`MovesBlocks`) or both."""

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Which of its options decide nothing with these layers, in sentences."""
        return []

    def scheduled(self, program: Program, epochs: int) -> Mapping[str, IntArray]:
        """Decisions of a run that follow from the policy alone, int64 [P, epochs, 1] by name: no activity is needed
        to simulate them."""
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
        """See :class:`~simgnn.emit.sync.Expand`: here sums of one turn are never added to those of another."""
        return None


class MovesBlocks(Freshness, ABC):
    """A freshness of whole blocks."""

    serves: ClassVar[tuple[Moves, ...]] = ("blocks",)

    @abstractmethod
    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        """What emits the transfers of a sync: which blocks are sent, and what others use of those that are not."""
