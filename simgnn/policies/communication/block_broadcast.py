"""Block broadcast: each rank in turn broadcasts its block of rows, and every rank adds the block's contribution."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.communication import Communication, Sums, Transfers
from simgnn.emit.segments import Segments
from simgnn.emit.sums.blocks import SCALINGS, BlockSums
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import Choices, Cut, Effect, Idle, Moves, Refusal, chosen
from simgnn.program.sizes import IntArray


class BlockBroadcast(Communication):
    """Blocks of rows, one per rank, are broadcast to all ranks in rank order, forward and backward; edge-cuts only.

    A rank holds its in-edges as one block per source rank, and adds the products of these blocks and the rows as they
    arrive: no lists of rows, no sizes that depend on edges. Features count as dense. Attention (gat) is a running
    softmax over the blocks of transformed rows, see block_attention.py.

    ``weight_gradient``: the gradient of a layer's weights is own rows times gradients summed over the edges
    (``summed-gradient``), so that every layer broadcasts its gradients, the first too; or the stored sum of rows times
    own gradients (``saved-sum``), so that the first layer broadcasts none. The choice matters for layers that aggregate
    first, but not for GIN's perceptron or a sum that is kept for the whole run. Source: CAGNET's 1D algorithm
    (docs/systems/cagnet.md). Deviation: with ``saved-sum`` gradients are as wide as a layer's input, as GIN's are."""

    cut: ClassVar[Cut] = "edge-cut"
    moves: ClassVar[Moves] = "blocks"
    dense_inputs: ClassVar[bool] = True
    transforms_copies: ClassVar[bool] = False
    effects: ClassVar[Mapping[str, Effect]] = {"blocks_ahead": "nothing"}

    kind: Literal["block-broadcast"] = "block-broadcast"
    resend_inputs: bool = Field(default=False, description="broadcast input features again in every epoch")
    weight_gradient: Literal["summed-gradient", "saved-sum"] = Field(
        default="summed-gradient", description="factor of the weight gradient that is summed over edges"
    )
    blocks_ahead: int = Field(default=0, ge=0, le=1, description="blocks that may arrive while one is multiplied")

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if choices.model.attends and not choices.codec.relative:
            why = "gradients share a row with their scores, and one range for both rounds small gradients to nothing"
            yield self.needs_relative_codes(choices, why)

    def idle(self, choices: Choices) -> Iterator[Idle]:
        model = choices.model
        if self.resend_inputs and model.transforms_first:
            why = "layer 1 broadcasts transformed rows in place of input features; remove it"
            yield Idle("resend_inputs", model.transforms_first, why)
        if chosen(self, ["weight_gradient"]):
            if model.nonlinear:
                why = "weight gradients always use stored sums; remove it"
                yield Idle("weight_gradient", f"model.kind = '{model.kind}'", why)
            elif model.transforms_first:
                yield Idle("weight_gradient", model.transforms_first, "no sum of input rows is made; remove it")

    def sizes(self, stats: PartitionStats, item_bytes: int) -> "BlockSizes":
        edges = stats.table("block_edges", "communication.kind = 'block-broadcast'")
        return BlockSizes(stats, np.asarray(edges, dtype=np.int64), self)

    def input_rows(self) -> str:
        return "auto"  # what layer 1's order asks for

    def resends_inputs(self) -> bool:
        return self.resend_inputs

    def arranged(self, layer: LayerSpec) -> LayerSpec:
        """Return the layer with gradients summed over the edges before they are multiplied by the weights."""
        if not _sums_apart(layer) or self.weight_gradient == "saved-sum":
            return layer
        return replace(layer, order="transform-first", prepared_width=layer.width_out, sums_inputs=True)

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        unknown = sorted({layer.kind for layer in layers if not layer.attends} - set(SCALINGS))
        if not unknown and chosen(self, ["weight_gradient"]) and not any(_sums_apart(layer) for layer in layers):
            return [
                f"communication.weight_gradient: got '{self.weight_gradient}', expected 'summed-gradient': no layer "
                "but the first, whose sum is kept, sums rows before it transforms them; remove it, or set "
                "model.order = 'aggregate-first'"
            ]
        return [
            f"model.kind: got '{kind}' with communication.kind = 'block-broadcast', expected one of "
            f"{', '.join(BUILT_IN_LAYERS)}: sums of a layer of your own cannot be cut into blocks; use "
            "communication.kind = 'halo'"
            for kind in unknown
        ]


def _sums_apart(layer: LayerSpec) -> bool:
    """Whether a layer's weight gradient can be computed from gradients before or after their sum over the edges."""
    return layer.order == "aggregate-first" and layer.kind != "gin" and not layer.hoisted


@dataclass(frozen=True)
class BlockSizes:
    """The sizes of a partition into blocks. ``edges`` int64 [P, P]: edges of each block."""

    stats: PartitionStats
    edges: IntArray
    policy: BlockBroadcast
    input_bytes: int = 0  # input rows are never transformed where they arrive

    @property
    def fetches_inputs(self) -> bool:
        return self.stats.ranks > 1

    @property
    def copied_rows(self) -> int:
        return (self.stats.ranks - 1) * int(self.stats.rows.sum())

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        stats = self.stats
        total = np.full(stats.ranks, int(stats.rows.sum()), dtype=np.int64)
        return {
            "rows": builder.column("rows", stats.rows),
            "sources": builder.column("sources", total),
            "edges": builder.column("edges", stats.edges),
            "train_rows": builder.column("train_rows", stats.table("train_rows", "the loss")),
            "feature_nonzeros": None,
            "aggregated_nonzeros": None,
        }

    def sums(self, segments: Segments, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]) -> Sums:
        return BlockSums(segments, self.stats, self.edges, transfers.blocks(), fetched_in, self.policy.blocks_ahead)
