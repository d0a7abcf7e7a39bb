"""What every communication is: which copies of rows ranks hold, and the transfers around each layer's sum."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from simgnn.emit.batches.staging import Staging
from simgnn.emit.blocks import ExpandBlocks
from simgnn.emit.segments import Segments
from simgnn.emit.sync import Expand
from simgnn.model.costs import RowSet
from simgnn.model.spec import LayerSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import Choices, CodecTraits, CommunicationTraits, Moves, Refusal
from simgnn.program.builder import ProgramBuilder
from simgnn.program.sizes import Size


class Communication(CommunicationTraits, ABC):
    """A choice of slot ``communication`` that moves rows of the full graph.

    The planner asks it for :class:`Sizes`, and those for :class:`Sums`.
    """

    def needs_relative_codes(self, choices: Choices, why: str) -> Refusal:
        """The refusal of a codec whose error is not a share of each element, in a model with attention."""
        return Refusal(
            "codec", "kind",
            f"got '{choices.codec.label}' with model.kind = '{choices.model.kind}' and communication.kind = "
            f"'{self.label}', expected {choices.fitting(CodecTraits, lambda codec: codec.relative)}: {why}",
        )  # fmt: skip

    @abstractmethod
    def sizes(self, stats: PartitionStats, item_bytes: int) -> "Sizes":
        """What travels in the partition that ``stats`` describes; ``item_bytes``: of an element of ``train.dtype``."""

    def resolved(self, rows: str) -> dict[str, Any]:
        """Key path -> value of what its ``auto`` became, where layer 1 exchanges ``rows``."""
        return {}

    def arranged(self, layer: LayerSpec) -> LayerSpec:
        """A layer as it is built and planned: the same result, its products where they suit what travels."""
        return layer

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Why it cannot serve these layers, in sentences."""
        return []


class BatchCommunication(CommunicationTraits, ABC):
    """A choice of slot ``communication`` that moves input rows of mini-batches, and nothing of the full graph."""

    moves: ClassVar[Moves] = "batches"

    @abstractmethod
    def pull(self, staging: Staging) -> str:
        """Emit what brings a batch's rows of other hosts; returns their buffer, in order of the ranks that send."""


class Transfers(Protocol):
    """How freshness and codec carry out what the communication moves: rows or blocks."""

    def rows(self) -> Expand:
        """What emits a sync of listed rows."""
        ...

    def blocks(self) -> ExpandBlocks:
        """What emits a sync of whole blocks."""
        ...


class Sizes(Protocol):
    """Numbers of one partition, as the communication needs them.

    ``fetches_inputs``: input rows may have to travel before layer 1; ``input_bytes``: their payload, over all ranks,
    and ``copied_rows`` how many they are.
    """

    @property
    def fetches_inputs(self) -> bool: ...

    @property
    def input_bytes(self) -> int: ...

    @property
    def copied_rows(self) -> int: ...

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        """Put columns and routes into a builder; the fields of :class:`~simgnn.emit.names.Names` that are sizes.

        ``aggregated``: layer 1's sparse inputs are summed once.
        """
        ...

    def sums(self, segments: Segments, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]) -> "Sums":
        """The part of a plan that emits transfers and sums; layer 1 exchanges ``rows``;
        input rows are fetched in the templates ``fetched_in``."""
        ...


@dataclass(frozen=True)
class CopiedRows:
    """Copies of other ranks' rows that a rank transforms itself: read from ``source``, written to ``prepared``."""

    source: str
    prepared: str
    rows: RowSet[Size]


class Sums(Protocol):
    """Emits, for each layer, the sum over in-neighbours of prepared rows and whatever must travel for it."""

    def fetch_inputs(self) -> None:
        """Input rows that ranks need copies of."""
        ...

    def hoist(self, layer: LayerSpec) -> None:
        """The constant sum of layer 1's inputs, into ``aggregated/1``."""
        ...

    def copies(self, layer: LayerSpec) -> CopiedRows | None:
        """Copies that ``prepare`` transforms beside a rank's own rows."""
        ...

    def forward(self, layer: LayerSpec, source: str) -> None:
        """From the prepared rows in ``source`` to ``aggregated/LAYER``, complete (unless it is hoisted)."""
        ...

    def backward(self, layer: LayerSpec, source: str, target: str) -> None:
        """From ``d/aggregated/LAYER`` to ``target``, the gradient of the prepared rows in ``source``."""
        ...

    @property
    def whole(self) -> "WholeLayers | None":
        """What emits layers of one segment; None where these cannot be summed."""
        ...


class WholeLayers(Protocol):
    """Emits layers of one segment, which read all in-neighbours of their rows."""

    def forward_whole(self, layer: LayerSpec) -> None:
        """A layer, from its own rows to ``hidden/LAYER``."""
        ...

    def backward_whole(self, layer: LayerSpec) -> None:
        """The layer's reverse."""
        ...
