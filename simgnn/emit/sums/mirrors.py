"""Sums on a vertex-cut: each rank sums over its own edges, and a sync over masters and mirrors adds them up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simgnn.emit.communication import CopiedRows
from simgnn.emit.segments import Segments
from simgnn.emit.sync import Expand, Reference, Stage, Sync, emit_plainly
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.vertex_cut import SHARED
from simgnn.program.sizes import Column, Route, reverse_of

MIRRORS = "mirrors"
"""Route from masters to all their mirrors."""
SHARED_MASTERS = Column(SHARED)
"""Masters of a rank that have mirrors."""


@dataclass(frozen=True)
class Level:
    """One hop of the way from masters to their mirrors. ``route``: name of its route, in this direction; ``rows``: the
    route itself; ``name``: part of the names of ops ("" where there is one hop)."""

    name: str
    route: str
    rows: Route

    @property
    def mirrors(self) -> Column:
        """The column of the size table with the number of rows that each rank receives along the route."""
        return Column(f"mirror_rows/{self.name}" if self.name else "mirror_rows")

    @property
    def mirrored(self) -> Column:
        """The column of the size table with the number of rows that each rank sends along the route."""
        return Column(f"mirrored_rows/{self.name}" if self.name else "mirrored_rows")


class MirrorSums:
    """Emits sums on a vertex-cut, see :class:`~simgnn.emit.communication.Sums`. ``levels``: hops from masters outward;
    none where no vertex has a mirror. ``by_replicas``: rows that masters send by the first hop, see :class:`Stage`.

    y = S x, where S adds the rows of a vertex up over its copies and gives all of them the sum, is its own adjoint, so
    the gradient of a sum is completed by the same sync. See docs/systems/cdfgnn.md.
    """

    def __init__(
        self, segments: Segments, expand: Expand, levels: tuple[Level, ...], by_replicas: Mapping[int, Route]
    ) -> None:
        self.segments = segments
        self.names = segments.names
        self.expand = expand
        self.levels = levels
        self.by_replicas = by_replicas
        self._renewed: dict[int, str | None] = {}

    def fetch_inputs(self) -> None:
        """Emit nothing, since mirrors hold features."""

    def hoist(self, layer: LayerSpec) -> None:
        """Sum the inputs of layer 1 once, before the first epoch, and complete the sums over all copies."""
        result = self.segments.hoisted(layer, ["features"])
        if self.levels:
            sync = Sync(self.names.setup, layer.index, "setup", layer.width_in, self._stages(layer, result))
            emit_plainly(self.segments.builder, sync)

    def copies(self, layer: LayerSpec) -> CopiedRows | None:
        """Return None: mirrors count among the rows that a rank computes."""
        return None

    def forward(self, layer: LayerSpec, source: str) -> None:
        """Emit the sums over local edges, and their completion over all copies of a vertex."""
        if layer.hoisted:
            return
        reads = [source]
        if layer.attends:
            reads.append(self._maximum(layer, source))
        result = self.segments.aggregate(layer, reads)
        if self.levels:
            stages = self._stages(layer, result)
            renewed = self._renewed.get(layer.index)
            width, divisors = layer.aggregated_width, layer.heads if layer.attends else 0
            self.expand(Sync(self.names.forward, layer.index, "forward", width, stages, renewed, divisors))

    def backward(self, layer: LayerSpec, source: str, target: str) -> None:
        """Complete the gradient of the sums over all copies, then sum it along the reversed local edges.

        In the last layer only masters have gradients, since only they have a loss, so that nothing is gathered.
        """
        if self.levels:
            rows, last = f"d/aggregated/{layer.index}", layer.index == len(self.segments.model.layers)
            stages = tuple(stage for stage in self._stages(layer, rows) if not last or stage.role == "publish")
            renewed = self._renewed.get(layer.index)
            self.expand(Sync(self.names.train, layer.index, "backward", layer.aggregated_width, stages, renewed))
        self.segments.aggregate_backward(layer, [target], {target: source})

    @property
    def whole(self) -> None:
        """Return None: a layer that is one function needs all in-edges of its rows."""
        return None

    def _maximum(self, layer: LayerSpec, source: str) -> str:
        """Emit the greatest score over all edges of a vertex, equal on all its copies and never encoded. In training,
        freshness may keep an earlier one: attention, a quotient of two sums, does not depend on it."""
        result = self.segments.maximum(layer, [source])
        if self.levels:
            stages = self._stages(layer, result, "max", "maximum/")
            sync = Sync(self.names.forward, layer.index, "forward", layer.heads, stages)
            emit_plainly(self.segments.builder, sync)
            reference = Reference(layer.index, result, self.names.rows, layer.heads)
            self._renewed[layer.index] = self.expand.settle(self.names.train, reference)
        return result

    def _stages(
        self, layer: LayerSpec, rows: str, landing: Literal["add", "max"] = "add", of: str = ""
    ) -> tuple[Stage, ...]:
        """Return stages that gather ``rows`` to masters, then scatter them, in place; their names begin with ``of``."""
        inward = [self._stage(layer, rows, level, landing, f"{of}gather") for level in reversed(self.levels)]
        outward = [self._stage(layer, rows, level, "put", f"{of}scatter") for level in self.levels]
        return (*inward, *outward)

    def _stage(
        self, layer: LayerSpec, rows: str, level: Level, landing: Literal["add", "max", "put"], name: str
    ) -> Stage:
        name = f"{name}/{level.name}" if level.name else name
        outward = landing == "put"
        nearest = outward and level is self.levels[0]
        route = level.route if outward else reverse_of(level.route)
        ends = (level.mirrored, level.mirrors) if outward else (level.mirrors, level.mirrored)
        return Stage(
            "publish" if outward else "fold", route, rows, rows, *ends, f"{name}/send/{layer.index}", landing,
            picked=route, arrived=f"{name}/receive/{layer.index}", landed=route, name=name,
            distinct=SHARED_MASTERS if nearest else None, masters=MIRRORS if nearest and level.name else None,
            by_replicas=self.by_replicas if nearest else {},
        )  # fmt: skip
