"""Sums on a vertex-cut: each rank sums over its own edges, and a sync over masters and mirrors adds them up."""

from typing import Literal

from simgnn.model.spec import LayerSpec
from simgnn.policies.communication.base import CopiedRows
from simgnn.policies.segments import Segments
from simgnn.policies.sync import Expand, Stage, Sync, emit_plainly
from simgnn.program.sizes import Column

MIRROR_ROWS, MIRRORED_ROWS = Column("mirror_rows"), Column("mirrored_rows")
"""Mirrors that a rank holds, and mirrors that other ranks hold of its masters."""


class MirrorSums:
    """See :class:`~simgnn.policies.communication.base.Sums`. ``exchanges``: any vertex has a mirror.

    y = S x, where S adds the rows of a vertex up over its copies and gives all of them the sum, is its own adjoint, so
    the gradient of a sum is completed by the same sync. Source: section 5.3 of our spec of CDFGNN.
    """

    def __init__(self, segments: Segments, expand: Expand, exchanges: bool) -> None:
        self.segments = segments
        self.names = segments.names
        self.expand = expand
        self.exchanges = exchanges

    def fetch_inputs(self) -> None:
        """Nothing: mirrors hold features."""

    def hoist(self, layer: LayerSpec) -> None:
        """The constant sum of layer 1's inputs, completed once."""
        result = self.segments.hoisted(layer, ["features"])
        if self.exchanges:
            sync = Sync(self.names.setup, layer.index, "setup", layer.width_in, self._stages(layer, result))
            emit_plainly(self.segments.builder, sync)

    def copies(self, layer: LayerSpec) -> CopiedRows | None:
        """None beside the rows that a rank computes."""
        return None

    def forward(self, layer: LayerSpec, source: str) -> None:
        """Local sums, completed."""
        if layer.hoisted:
            return
        reads = [source]
        if layer.attends:
            reads.append(self._maximum(layer, source))
        result = self.segments.aggregate(layer, reads)
        if self.exchanges:
            stages = self._stages(layer, result)
            self.expand(Sync(self.names.forward, layer.index, "forward", layer.aggregated_width, stages))

    def backward(self, layer: LayerSpec, source: str, target: str) -> None:
        """The gradient of the sums, completed, then handed to the sources of the local edges.

        Of the last layer only masters have gradients, since the loss is theirs: nothing to gather.
        """
        gather, scatter = self._stages(layer, f"d/aggregated/{layer.index}")
        if self.exchanges:
            last = layer.index == len(self.segments.model.layers)
            stages = (scatter,) if last else (gather, scatter)
            self.expand(Sync(self.names.train, layer.index, "backward", layer.aggregated_width, stages))
        self.segments.aggregate_backward(layer, [target], {target: source})

    def forward_whole(self, layer: LayerSpec) -> None:
        """Refused before: such a layer needs all in-edges of its rows."""
        raise AssertionError(f"layer {layer.index} has no segments")

    def backward_whole(self, layer: LayerSpec) -> None:
        """See :meth:`forward_whole`."""
        raise AssertionError(f"layer {layer.index} has no segments")

    def _maximum(self, layer: LayerSpec, source: str) -> str:
        """Greatest scores over all edges of a vertex, the same on all its copies, exact whatever codec there is."""
        result = self.segments.maximum(layer, [source])
        if self.exchanges:
            stages = self._stages(layer, result, "max", "maximum/")
            sync = Sync(self.names.forward, layer.index, "forward", layer.heads, stages)
            emit_plainly(self.segments.builder, sync)
        return result

    def _stages(
        self, layer: LayerSpec, rows: str, landing: Literal["add", "max"] = "add", of: str = ""
    ) -> tuple[Stage, Stage]:
        """Gather and scatter of the buffer ``rows``, in place; names begin with ``of``."""
        index = layer.index
        gather = Stage(
            "fold", "mirrors/reverse", rows, rows, MIRROR_ROWS, MIRRORED_ROWS, f"{of}gather/send/{index}", landing,
            picked="mirrors/reverse", arrived=f"{of}gather/receive/{index}", landed="mirrors/reverse",
            name=f"{of}gather",
        )  # fmt: skip
        scatter = Stage(
            "publish", "mirrors", rows, rows, MIRRORED_ROWS, MIRROR_ROWS, f"{of}scatter/send/{index}", "put",
            picked="mirrors", arrived=f"{of}scatter/receive/{index}", landed="mirrors", name=f"{of}scatter",
        )  # fmt: skip
        return gather, scatter
