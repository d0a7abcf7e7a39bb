"""Base classes of slot ``communication``: which copies of rows ranks hold, and the transfers around a layer's sum."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from simgnn.emit.batches.staging import Staging
from simgnn.emit.blocks import ExpandBlocks
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.segments import Segments
from simgnn.emit.sync import Expand
from simgnn.model.costs import RowSet
from simgnn.model.spec import LayerSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import Choices, CodecTraits, CommunicationTraits, Moves, Refusal
from simgnn.program.sizes import Size


class Communication(CommunicationTraits, ABC):
    """A choice of slot ``communication`` that moves rows of the full graph.

    The planner gets :class:`Sizes` from it, and from these :class:`Sums`, which emits the ops.
    """

    def needs_relative_codes(self, choices: Choices, why: str) -> Refusal:
        """The :class:`Refusal` of codecs without relative errors if layers attend. ``why``: the reason to print."""
        return Refusal(
            "codec", "kind",
            f"got '{choices.codec.label}' with model.kind = '{choices.model.kind}' and communication.kind = "
            f"'{self.label}', expected {choices.fitting(CodecTraits, lambda codec: codec.relative)}: {why}",
        )  # fmt: skip

    @abstractmethod
    def sizes(self, stats: PartitionStats, item_bytes: int) -> "Sizes":
        """The sizes of this communication in a partition. ``item_bytes``: bytes of an element of ``train.dtype``."""

    def resolved(self, rows: str) -> dict[str, Any]:
        """Return the values that replace ``auto``, by key path, if layer 1 exchanges ``rows``."""
        return {}

    def arranged(self, layer: LayerSpec) -> LayerSpec:
        """Return the layer with its products where they suit this communication best; results stay the same."""
        return layer

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Return messages that explain why this communication cannot serve these layers; empty if it can."""
        return []


class BatchCommunication(CommunicationTraits, ABC):
    """A choice of slot ``communication`` that moves input rows of mini-batches, and nothing of the full graph."""

    moves: ClassVar[Moves] = "batches"

    @abstractmethod
    def pull(self, staging: Staging) -> str:
        """Emit the transfer of a batch's rows from other hosts; returns their buffer, ordered by the sending rank."""


class Transfers(Protocol):
    """How freshness and codec carry out the transfers of a communication: of rows, or of blocks."""

    def rows(self) -> Expand:
        """The emitter of syncs of listed rows."""

    def blocks(self) -> ExpandBlocks:
        """The emitter of syncs of whole blocks."""


class Sizes(Protocol):
    """Numbers of one partition, as the communication needs them.

    ``fetches_inputs``: input rows may have to travel before layer 1; ``input_bytes``: their payload, over all ranks,
    ``copied_rows``: the number of these rows.
    """

    @property
    def fetches_inputs(self) -> bool: ...

    @property
    def input_bytes(self) -> int: ...

    @property
    def copied_rows(self) -> int: ...

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        """Add columns and routes to a builder; returns the fields of :class:`~simgnn.emit.names.Names` that are sizes.

        ``aggregated``: whether layer 1's sparse inputs are summed once.
        """

    def sums(self, segments: Segments, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]) -> "Sums":
        """The emitter of transfers and sums. ``rows``: what layer 1 exchanges; input rows arrive in ``fetched_in``."""


@dataclass(frozen=True)
class CopiedRows:
    """Copies of other ranks' rows that a rank transforms itself: read from ``source``, written to ``prepared``."""

    source: str
    prepared: str
    rows: RowSet[Size]


class Sums(Protocol):
    """Emits, for each layer, the sum over in-neighbours of prepared rows and whatever must travel for it."""

    def fetch_inputs(self) -> None:
        """Emit the arrival of the input rows of which ranks need copies."""

    def hoist(self, layer: LayerSpec) -> None:
        """Emit the constant sum of layer 1's inputs, into ``aggregated/1``."""

    def copies(self, layer: LayerSpec) -> CopiedRows | None:
        """The copies of other ranks' rows that ``prepare`` transforms beside own rows; None if there are none."""

    def forward(self, layer: LayerSpec, source: str) -> None:
        """Emit the complete sum of the rows in ``source``, into ``aggregated/LAYER`` (nothing if it is hoisted)."""

    def backward(self, layer: LayerSpec, source: str, target: str) -> None:
        """Emit the gradient of the prepared rows in ``source``, from ``d/aggregated/LAYER``, into ``target``."""

    @property
    def whole(self) -> "WholeLayers | None":
        """The emitter of layers that are one function of all rows; None if the communication does not support them."""


class WholeLayers(Protocol):
    """Emits layers of one segment, which read all in-neighbours of their rows."""

    def forward_whole(self, layer: LayerSpec) -> None:
        """Emit a layer, from its own rows to ``hidden/LAYER``."""

    def backward_whole(self, layer: LayerSpec) -> None:
        """Emit the layer's backward pass."""
