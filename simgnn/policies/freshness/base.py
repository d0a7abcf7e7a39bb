"""What every freshness is: how a sync of a communication is carried out."""

from collections.abc import Mapping, Sequence

from simgnn.model.spec import LayerSpec
from simgnn.policies.blocks import BlockSync, BlockTransfer, PlainBlocks
from simgnn.policies.encoded import emit_encoded
from simgnn.policies.sync import Reference, Sync, emit_plainly
from simgnn.policy import Codec, FreshnessTraits
from simgnn.program.builder import ProgramBuilder
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray


class Freshness(FreshnessTraits):
    """A choice of slot ``freshness``: how the transfers of a communication are carried out."""

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Which of its options decide nothing with these layers, in sentences."""
        return []

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        """Emit the ops of a sync: which rows are sent, how ``codec`` encodes them, what becomes of those that are
        not sent. Every row is sent, every time, unless a policy says otherwise."""
        if codec.encodes:
            emit_encoded(builder, sync, codec)
        else:
            emit_plainly(builder, sync)

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
