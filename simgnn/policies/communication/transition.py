"""Transitions between batches of chunks: a row that several chunks need crosses the link of its host once."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from simgnn.emit.chunks.policies import ChunkCommunication
from simgnn.policy import Choices, Cut, Refusal

BUILT = ("p2p", "p2p+reuse")


class Transition(ChunkCommunication):
    """Each step moves the rows that a batch (one chunk of every rank) needs and does not hold.

    ``dedup``: ``p2p``: a row is loaded by the rank that owns it, others read it from there; ``p2p+reuse``: besides,
    rows that the batch before left on a device stay in their places. Gradients go the same ways back. Source: HongTu
    (SIGMOD), deduplicated communication; rows are those of docs/chunks.md."""

    cut: ClassVar[Cut] = "edge-cut"

    kind: Literal["transition"] = "transition"
    dedup: Literal["none", "reuse", "p2p", "p2p+reuse", "auto"] = Field(
        default="p2p+reuse", description="how rows that several chunks need are moved: who loads them, what stays"
    )

    @property
    def reuses(self) -> bool:
        return self.dedup in ("reuse", "p2p+reuse")

    @property
    def peers(self) -> bool:
        return self.dedup in ("p2p", "p2p+reuse")

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        partition, model = choices.partition, choices.model
        if choices.trains and not partition.chunked:
            known = choices.kinds("partition").items()
            fits = " or ".join(f"'{kind}'" for kind, found in known if getattr(found, "chunked", False))
            got = f"got '{partition.label}' with communication.kind = '{self.label}'"
            yield Refusal("partition", "kind", f"{got}, expected {fits}: rows move chunk by chunk")
        elif choices.trains and not partition.holds_own_rows:
            why = "layers read the rows of their own vertices, too; such volumes are for comparison only"
            yield Refusal("partition", "include_self", f"got false with '{self.label}', expected true: {why}")
        if self.dedup not in BUILT:
            message = f"got '{self.dedup}', expected {' or '.join(map(repr, BUILT))}: the others are not built yet"
            yield Refusal("communication", "dedup", message)
        if model.transforms_first and not model.attends:
            why = "the sums of a chunk are kept on the host, so that its rows are summed before they are transformed"
            yield Refusal(
                "model", "order", f"got {model.transforms_first}, expected 'auto' or 'aggregate-first': {why}"
            )
