"""What every freshness is: how a sync of a communication is carried out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from simgnn.model.spec import LayerSpec
from simgnn.policies.blocks import BlockSync, BlockTransfer, PlainBlocks
from simgnn.policies.sync import Reference, Sync
from simgnn.policy import Codec, Moves, Policy
from simgnn.program.builder import ProgramBuilder
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray


class Freshness(Policy, ABC):
    """A choice of slot ``freshness``. ``serves``: what it can say of a transfer, listed rows or whole blocks."""

    slot: ClassVar[str] = "freshness"
    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Which of its options decide nothing with these layers, in sentences."""
        return []

    @abstractmethod
    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        """Emit the ops of a sync: which rows are sent, how ``codec`` encodes them, what becomes of those that are
        not sent."""

    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        """How whole blocks travel: every block, every time, unless a policy says otherwise."""
        return PlainBlocks(builder, sync, codec)

    def settle(self, builder: ProgramBuilder, templates: tuple[str, ...], reference: Reference) -> str | None:
        """See :class:`~simgnn.policies.sync.Expand`: here sums of one turn are never added to those of another."""
        return None

    def scheduled(self, program: Program, epochs: int) -> Mapping[str, IntArray]:
        """Decisions of a run that follow from the policy alone, int64 [P, epochs, 1] by name: no activity is needed
        to simulate them."""
        return {}

    def end_epoch(self, builder: ProgramBuilder, templates: tuple[str, ...]) -> None:
        """Emit what follows the update in each epoch: the step of a controller, for example."""
