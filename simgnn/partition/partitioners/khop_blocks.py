"""Blocks of vertices around labelled ones, assigned so that what samples touch is local and balanced: ByteGNN."""

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field, field_validator

from simgnn.errors import ConfigError
from simgnn.graph.graph import MASKS, Graph
from simgnn.policy import Assignment, Choices, Partitioner, Refusal
from simgnn.program.sizes import IntArray
from simgnn.registry import shipped

if TYPE_CHECKING:
    from simgnn.partition.algorithms.khop_blocks import Limits

LARGEST_WEIGHT = 1e9
Slack = Annotated[float, Field(ge=0, le=1e6)] | Literal["none"]


class KhopBlocks(Partitioner):
    """Blocks of the vertices within ``hops`` of each labelled one, along in-edges, assigned whole to parts. Source:
    ByteGNN (Zheng et al., PVLDB 2022), algorithm B.

    A vertex belongs to the nearest labelled vertex. Blocks are assigned in ``order``: each to the part that has most
    edges to it for its size, times how far the part's labelled vertices are below the mean, by ``weights``. No part has
    more than 1 + ``label_slack`` times the mean of training, validation or test vertices, rounded up. With ``across`` =
    "hosts" blocks are divided among hosts, and those of a host among its ranks. Vertices in no block, which samples
    never contain, fill the smallest parts. Our decisions: docs/khop_blocks.md."""

    around_labels: ClassVar[bool] = True

    kind: Literal["khop-blocks"] = "khop-blocks"
    hops: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = Field(
        default="auto", description="distance from a labelled vertex that its block reaches; auto: the model's layers"
    )
    weights: tuple[float, float, float] | Literal["proportional"] = Field(
        default=(1.0, 1.0, 1.0),
        description="weights of training, validation and test vertices in the balance, relative to each other; "
        "proportional: by their numbers",
    )
    order: Literal["shuffle", "size", "id"] = Field(
        default="shuffle", description="order of assigning blocks: by seed, largest first, or by labelled vertex"
    )
    label_slack: Slack = Field(
        default=0.05, description="share by which a part may exceed the mean in each kind of labelled vertices; or none"
    )
    vertex_slack: Slack = Field(
        default="none", description="share by which a part may exceed the mean in vertices of blocks; none: no bound"
    )
    across: Literal["hosts", "ranks"] = Field(default="hosts", description="what shares the graph: hosts before ranks")

    @field_validator("hops", mode="before")
    @classmethod
    def _number_or_auto(cls, value: Any) -> Any:
        if value != "auto" and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000):
            raise ValueError("expected a whole number from 1 to 1000, or 'auto'")
        return value

    @field_validator("weights", mode="before")
    @classmethod
    def _not_negative(cls, value: Any) -> Any:
        if value == "proportional":
            return value
        given = list(value) if isinstance(value, list | tuple) else []
        numbers = len(given) == len(MASKS) and all(type(one) in (int, float) for one in given)
        if not numbers or not all(0 <= one <= LARGEST_WEIGHT for one in given) or not sum(given):
            raise ValueError(
                f"expected 'proportional' or three numbers from 0 to {LARGEST_WEIGHT:g}, not all 0: the weights of "
                "training, validation and test vertices, such as [1, 1, 1]"
            )
        return value

    @field_validator("label_slack", "vertex_slack", mode="before")
    @classmethod
    def _share_or_none(cls, value: Any) -> Any:
        if value != "none" and (type(value) not in (int, float) or not 0 <= value <= 1e6):
            raise ValueError("expected a number from 0 to 1e6, such as 0.05, or 'none' for no bound")
        return value

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        layers = choices.model.layers
        if self.hops != "auto" and self.hops < layers:
            yield Refusal(
                "partition", "hops",
                f"got {self.hops} with model.layers = {layers}, expected at least {layers}, or 'auto': vertices in no "
                f"block are placed as if they were never sampled, but samples reach {layers} hops, so those that are "
                f"{self.hops + 1} or more from a labelled vertex would be sampled",
            )  # fmt: skip

    def for_layers(self, layers: int) -> Self:
        return self.model_copy(update={"hops": layers}) if self.hops == "auto" else self

    def alternatives(self) -> Iterator[tuple[str, Partitioner]]:
        yield self.label, self
        for balance in (["vertices"], list(MASKS)):
            options = {"balance": balance, "across": self.across}
            yield f"metis, [{', '.join(balance)}]", self._policy("metis", options)
        yield "random", self._policy("random", {})

    def _policy(self, kind: str, options: Mapping[str, Any]) -> Partitioner:
        found = shipped("partition")[kind].model_validate({"kind": kind, "reorder": self.reorder, **options})
        return cast(Partitioner, found)

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        # these load Numba, which checking an experiment does not need
        from simgnn.graph.hashing import index_bits, permuted, stream_key
        from simgnn.partition.algorithms.khop_blocks import OrderedBlocks, block_sizes, divide_blocks, khop_blocks
        from simgnn.partition.local.serving import Serving
        from simgnn.partition.statistics.partition_stats import vertex_types

        if self.hops == "auto":
            raise ConfigError(
                "partition.hops: got 'auto' without the layers that it follows from, expected a number, such as 2"
            )
        kinds = vertex_types(graph)
        labelled = kinds < len(MASKS)
        centres = np.flatnonzero(labelled)
        self._check_labels(graph, np.bincount(kinds[centres], minlength=len(MASKS)))
        block = khop_blocks(graph.csr, labelled, self.hops)
        if self.order == "shuffle":
            key, bits = stream_key(seed, "order of blocks"), index_bits(graph.vertices)
            centres = centres[np.argsort(permuted(centres, key, bits, np.uint64(graph.vertices)))]
        elif self.order == "size":
            centres = centres[np.argsort(-block_sizes(block, graph.vertices)[centres], kind="stable")]
        blocks = OrderedBlocks.of(block, centres, kinds)
        del block
        members = Serving(tuple(hosts.tolist())).members
        whole = [len(hosts)] if self.across == "ranks" else [len(members)]
        alike = np.zeros(graph.vertices, np.int32)
        found = divide_blocks(graph.csr, blocks, alike, np.array(whole, np.int64), self._limits, spill)
        owner, forced = found
        if self.across == "hosts":
            if any(len(ranks) > 1 for ranks in members):
                shares = np.array([len(ranks) for ranks in members], np.int64)
                owner, more = divide_blocks(graph.csr, blocks, owner, shares, self._limits, spill)
                forced += more
            owner = np.concatenate([np.array(ranks, np.int32) for ranks in members])[owner]
        counted = {
            "blocks": len(centres),
            "vertices_in_no_block": graph.vertices - int(blocks.sizes.sum()),
            "forced_blocks": forced,
        }
        empty = len(hosts) - len(np.unique(owner))
        return Assignment(owner, counted=counted, notes=(*_empty(empty, len(hosts)), *_forced(forced, len(centres))))

    @property
    def _limits(self) -> "Limits":
        # Numba: loaded when a graph is divided
        from simgnn.partition.algorithms.khop_blocks import Limits

        slacks = [inf if slack == "none" else slack for slack in (self.label_slack, self.vertex_slack)]
        return Limits(None if self.weights == "proportional" else np.array(self.weights), *slacks)

    def _check_labels(self, graph: Graph, counts: IntArray) -> None:
        """Raise :class:`ConfigError` where no vertex is labelled, or where none that is has a weight."""
        if not counts.any():
            raise ConfigError(
                f"partition.kind: got '{self.label}', but '{graph.name}' has no labelled vertices, expected some: "
                "blocks are made around them; state graph.labels and graph.splits, or graph.classes for random ones, "
                "or use partition.kind = 'metis'"
            )
        if self.weights != "proportional" and not (counts * np.array(self.weights)).any():
            found = ", ".join(f"{count:,} {name}" for name, count in zip(MASKS, counts.tolist(), strict=True))
            raise ConfigError(
                f"partition.weights: got {list(self.weights)}, but '{graph.name}' has {found} vertices, expected a "
                "weight above 0 for a kind that it has"
            )


def _empty(empty: int, parts: int) -> tuple[str, ...]:
    have = "has no vertex" if empty == 1 else "have no vertices"
    return (f"partition: {empty} of {parts} parts {have}: there are too few blocks to share",) if empty else ()


def _forced(forced: int, blocks: int) -> tuple[str, ...]:
    if not forced:
        return ()
    return (
        f"partition: {forced:,} of {blocks:,} blocks were forced: no part could take them within "
        "partition.label_slack and partition.vertex_slack, so each went to the smallest",
    )
