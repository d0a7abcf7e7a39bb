"""Host offload: rows of all layers lie in the memory of hosts, a device holds one layer of one chunk at a time."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from simgnn.emit.chunks.policies import ChunkPlacement, Intermediates, Topology
from simgnn.policy import Choices, Refusal
from simgnn.program.ops import Space


class HostOffload(ChunkPlacement):
    """Input rows and outputs of every layer are in the memory of the host, and so are gradients of rows.

    ``intermediates``: what backward starts from. ``hybrid``: forward keeps the sums over in-neighbours on the host, and
    only the update is computed again; ``recompute``: rows are loaded again and the whole layer is computed again;
    ``auto``: hybrid where sums do not depend on parameters. ``topology``: edges of chunks lie on the device
    (``resident``), or on the host, from where each step copies those of its chunk (``streamed``). Source: HongTu
    (SIGMOD), partition-based training with recomputation-caching-hybrid intermediate data."""

    kind: Literal["host-offload"] = "host-offload"
    intermediates: Literal["auto", "hybrid", "recompute"] = Field(
        default="auto", description="what backward starts from: kept sums (hybrid), or rows that are loaded again"
    )
    topology: Literal["auto", "resident", "streamed"] = Field(
        default="auto", description="where edges lie: on the device, or copied from the host chunk by chunk"
    )

    @property
    def host_space(self) -> Space:
        return "host-mapped"

    def kept(self, attends: bool, built_in: bool) -> Intermediates:
        if self.intermediates == "auto":
            return "recompute" if attends or not built_in else "hybrid"
        return self.intermediates

    def edges_lie(self) -> Topology:
        return "resident"

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        model = choices.model
        if not choices.trains:
            return
        if self.intermediates == "hybrid" and (model.attends or not model.built_in):
            why = "its sums depend on parameters, or are the user's own, so that whole layers are computed again"
            message = f"got 'hybrid' with model.kind = '{model.kind}', expected 'auto' or 'recompute': {why}"
            yield Refusal("placement", "intermediates", message)
        if self.topology == "streamed":
            message = "got 'streamed', expected 'auto' or 'resident': copies of edges by chunk are not built yet"
            yield Refusal("placement", "topology", message)
