"""What every communication is: which copies of rows ranks hold, and the transfers around each layer's sum."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from simgnn.model.costs import RowSet
from simgnn.model.spec import LayerSpec
from simgnn.partition.partition import PartitionKind
from simgnn.partition.stats import PartitionStats
from simgnn.policies.segments import Segments
from simgnn.policies.sync import Expand
from simgnn.policy import Moves, Policy
from simgnn.program.builder import ProgramBuilder
from simgnn.program.sizes import Size


class Communication(Policy, ABC):
    """A choice of slot ``communication``. The planner asks it for :class:`Sizes`, and those for :class:`Sums`.

    ``cut``: the kind of partition that it serves. ``moves``: what travels. ``dense_inputs``: it takes sparse features
    as dense rows. ``transforms_copies``: ranks hold copies of input rows, which they can transform themselves.
    """

    slot: ClassVar[str] = "communication"
    cut: ClassVar[PartitionKind]
    moves: ClassVar[Moves] = "rows"
    dense_inputs: ClassVar[bool] = False
    transforms_copies: ClassVar[bool] = True

    @abstractmethod
    def sizes(self, stats: PartitionStats, item_bytes: int) -> "Sizes":
        """What travels in the partition that ``stats`` describes; ``item_bytes``: of an element of ``train.dtype``."""

    def input_rows(self) -> str:
        """What layer 1 exchanges: "input" rows, "transformed" ones, or "auto"."""
        return "input"

    def resends_inputs(self) -> bool:
        """Whether input rows travel in every epoch."""
        return False

    def resolved(self, rows: str) -> dict[str, Any]:
        """Key path -> value of what its ``auto`` became, where layer 1 exchanges ``rows``."""
        return {}

    def arranged(self, layer: LayerSpec) -> LayerSpec:
        """A layer as it is built and planned: the same result, its products where they suit what travels."""
        return layer

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Why it cannot serve these layers, in sentences."""
        return []


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
        """Put columns and routes into a builder; the fields of :class:`~simgnn.policies.names.Names` that are sizes.

        ``aggregated``: layer 1's sparse inputs are summed once.
        """
        ...

    def sums(self, segments: Segments, expand: Expand, rows: str, fetched_in: tuple[str, ...]) -> "Sums":
        """The part of a plan that emits transfers and sums. ``expand`` emits a sync (freshness and codec); layer 1
        exchanges ``rows``; input rows are fetched in the templates ``fetched_in``."""
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

    def forward_whole(self, layer: LayerSpec) -> None:
        """A layer of one segment, from its own rows to ``hidden/LAYER``."""
        ...

    def backward_whole(self, layer: LayerSpec) -> None:
        """Its reverse."""
        ...
