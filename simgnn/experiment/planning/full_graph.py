"""Full-graph training on an edge-cut: forward, loss, backward and update of every layer, around a halo exchange.

A rank owns some vertices and holds all their in-edges; rows of remote sources (the halo) arrive by an exchange before
a layer aggregates, and their gradients go back the same way. Source: the common plan of edge-cut systems.
"""

from simgnn.experiment.planning.builder import ProgramBuilder
from simgnn.experiment.planning.halo import HaloRows
from simgnn.experiment.planning.names import Names
from simgnn.experiment.planning.user_layer import work_of
from simgnn.model import costs
from simgnn.model.costs import RowSet
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Size

FORWARD, BACKWARD = "locality/forward", "locality/backward"


class FullGraphPlan:
    """Emits the ops of one epoch into a builder."""

    def __init__(
        self, builder: ProgramBuilder, model: ModelSpec, names: Names, exchanges: bool, rows: str, resend_inputs: bool
    ) -> None:
        self.builder = builder
        self.model = model
        self.names = names
        self.exchanges = exchanges
        self.rows = rows
        self.halo = HaloRows(builder, names)
        self.setup = names.forward if resend_inputs else names.setup
        """Templates in which input rows are fetched: the first epoch's, or every one."""

    # -- rows of a layer -------------------------------------------------------------------------------------------

    def own(self, layer: LayerSpec) -> str:
        """Buffer of a layer's own input rows."""
        return "features" if layer.index == 1 else f"hidden/{layer.index - 1}"

    def own_rows(self, layer: LayerSpec) -> RowSet[Size]:
        """The same as a size."""
        return RowSet(self.names.rows, self.names.feature_nonzeros if layer.sparse_input else None)

    def needs_gradient(self, layer: LayerSpec) -> bool:
        """Whether the layer's input rows are trained through."""
        return layer.index > 1

    def moves_halo(self, layer: LayerSpec) -> bool:
        """Whether the layer's halo rows are exchanged in every epoch."""
        return self.exchanges and (layer.index > 1 or self.rows == "transformed")

    # -- inputs ----------------------------------------------------------------------------------------------------

    def fetch_inputs(self) -> None:
        """Halo input rows arrive once (or, resent, in every epoch)."""
        if self.exchanges and self.rows == "input":
            self.halo.fetch_inputs(self.setup, self.model.layers[0])

    def hoist(self) -> None:
        """The constant sum of layer 1's inputs, computed once."""
        layer = self.model.layers[0]
        if not layer.hoisted:
            return
        names, builder = self.names, self.builder
        width = layer.width_in
        if names.aggregated_nonzeros is None:
            builder.buffer("aggregated/1", names.rows, width, persistent=True)
            work = builder.work(costs.aggregate(names.edges, names.rows, names.sources, width), FORWARD)
        else:
            builder.buffer("aggregated/1", names.aggregated_nonzeros, 4 + builder.item_bytes, "uint8", persistent=True)
            work = (
                Work("copy", {"rows": names.aggregated_nonzeros, "width": 1, "item_bytes": 4 + builder.item_bytes}),
            )
        reads = ["features", "halo/0"] if self.exchanges else ["features"]
        builder.compute(
            self.setup, "setup/1/aggregate", OpKind.AGGREGATE, reads, ["aggregated/1"], work,
            layer=1, phase="setup", module="layers.1.aggregate",
        )  # fmt: skip

    # -- one layer -------------------------------------------------------------------------------------------------

    def forward(self, layer: LayerSpec) -> None:
        """Prepare, exchange, aggregate, update."""
        if layer.whole:
            self._forward_whole(layer)
            return
        names, builder, index = self.names, self.builder, layer.index
        source, halo = self.own(layer), f"halo/{index - 1}"
        own = self.own_rows(layer)
        if layer.has_prepare:
            source = builder.buffer(f"prepared/{index}", names.rows, layer.prepared_width)
            reads, writes = [self.own(layer)], [source]
            work = builder.work(self._product(layer, "prepare", own))
            if self.exchanges and not self.moves_halo(layer):
                halo_in, halo = halo, builder.buffer(f"prepared_halo/{index}", names.halo_rows, layer.prepared_width)
                reads, writes = [*reads, halo_in], [*writes, halo]
                nonzeros = names.halo_nonzeros if layer.sparse_input else None
                work += builder.work(self._product(layer, "prepare", RowSet(names.halo_rows, nonzeros)))
            self._segment(layer, "prepare", OpKind.TRANSFORM, reads, writes, work)
        if self.moves_halo(layer):
            halo = f"halo/{index - 1}" if not layer.has_prepare else f"prepared_halo/{index}"
            self.halo.exchange(layer, source, halo)
        if not layer.hoisted:
            builder.buffer(f"aggregated/{index}", names.rows, layer.prepared_width)
            reads = [source, halo] if self.exchanges else [source]
            work = builder.work(
                self._work(
                    layer, "aggregate", costs.aggregate(names.edges, names.rows, names.sources, layer.prepared_width)
                ),
                FORWARD,
            )
            self._segment(layer, "aggregate", OpKind.AGGREGATE, reads, [f"aggregated/{index}"], work)
        builder.buffer(f"hidden/{index}", names.rows, layer.width_out)
        reads = [f"aggregated/{index}", *([self.own(layer)] if layer.uses_own_rows else [])]
        work = builder.work(self._work(layer, "update", costs.update(layer, self._aggregated_rows(layer), own)))
        self._segment(layer, "update", OpKind.TRANSFORM, reads, [f"hidden/{index}"], work)

    def backward(self, layer: LayerSpec) -> None:
        """Update, aggregate, exchange, add, prepare: each the reverse of its forward segment."""
        if layer.whole:
            self._backward_whole(layer)
            return
        names, builder, index = self.names, self.builder, layer.index
        below = f"d/hidden/{index - 1}"
        trained = self.needs_gradient(layer)
        through = not layer.hoisted and (trained or layer.has_prepare)
        own_gradient = trained and layer.uses_own_rows
        gradients = {f"d/hidden/{index}": f"hidden/{index}"}
        writes = []
        if through:
            gradients[builder.buffer(f"d/aggregated/{index}", names.rows, layer.prepared_width)] = f"aggregated/{index}"
            writes.append(f"d/aggregated/{index}")
        if own_gradient:
            gradients[builder.buffer(f"d/own/{index}", names.rows, layer.width_in)] = self.own(layer)
            writes.append(f"d/own/{index}")
        saved = [f"aggregated/{index}", *([self.own(layer)] if layer.uses_own_rows else []), f"hidden/{index}"]
        work = builder.work(
            self._work(
                layer,
                "update/backward",
                costs.update_backward(layer, self._aggregated_rows(layer), self.own_rows(layer), through, own_gradient),
            )
        )
        self._reverse(layer, "update", OpKind.TRANSFORM, [f"d/hidden/{index}", *saved], writes, work, gradients)
        if not through:
            return
        target = f"d/prepared/{index}" if layer.has_prepare else below
        source = f"prepared/{index}" if layer.has_prepare else self.own(layer)
        halo = f"prepared_halo/{index}" if layer.has_prepare else f"halo/{index - 1}"
        builder.buffer(target, names.rows, layer.prepared_width)
        gradients = {f"d/aggregated/{index}": f"aggregated/{index}", target: source}
        writes = [target]
        if self.exchanges:
            gradients[builder.buffer(f"d/{halo}", names.halo_rows, layer.prepared_width)] = halo
            writes.append(f"d/{halo}")
        work = builder.work(
            self._work(
                layer,
                "aggregate/backward",
                costs.aggregate(names.edges, names.sources, names.rows, layer.prepared_width),
            ),
            BACKWARD,
        )
        self._reverse(layer, "aggregate", OpKind.AGGREGATE, [f"d/aggregated/{index}"], writes, work, gradients)
        if self.moves_halo(layer):
            self.halo.give_back(layer, f"d/{halo}", target)
        if layer.has_prepare:
            self._backward_prepare(layer, target, below, trained)
        if own_gradient:
            self._add_own(layer, below)

    def _backward_prepare(self, layer: LayerSpec, target: str, below: str, trained: bool) -> None:
        names, builder, index = self.names, self.builder, layer.index
        local_halo = self.exchanges and not self.moves_halo(layer)
        reads, writes = [target, self.own(layer)], []
        gradients = {target: f"prepared/{index}"}
        work = builder.work(self._product_backward(layer, self.own_rows(layer), trained))
        if local_halo:
            reads += [f"d/prepared_halo/{index}", f"halo/{index - 1}"]
            gradients[f"d/prepared_halo/{index}"] = f"prepared_halo/{index}"
            nonzeros = names.halo_nonzeros if layer.sparse_input else None
            work += builder.work(self._product_backward(layer, RowSet(names.halo_rows, nonzeros), False))
        if trained:
            gradients[builder.buffer(below, names.rows, layer.width_in)] = self.own(layer)
            writes.append(below)
        self._reverse(layer, "prepare", OpKind.TRANSFORM, reads, writes, work, gradients)

    def _forward_whole(self, layer: LayerSpec) -> None:
        names, builder, index = self.names, self.builder, layer.index
        if self.moves_halo(layer):
            self.halo.exchange(layer, self.own(layer), f"halo/{index - 1}")
        builder.buffer(f"hidden/{index}", names.rows, layer.width_out)
        reads = [self.own(layer), *([f"halo/{index - 1}"] if self.exchanges else [])]
        work = builder.work(self._work(layer, "forward", []), FORWARD)
        self._segment(layer, "forward", OpKind.TRANSFORM, reads, [f"hidden/{index}"], work)

    def _backward_whole(self, layer: LayerSpec) -> None:
        names, builder, index = self.names, self.builder, layer.index
        gradients = {f"d/hidden/{index}": f"hidden/{index}"}
        reads, writes = [f"d/hidden/{index}", self.own(layer), f"hidden/{index}"], []
        if self.needs_gradient(layer):
            below = builder.buffer(f"d/hidden/{index - 1}", names.rows, layer.width_in)
            gradients[below] = self.own(layer)
            writes.append(below)
            if self.exchanges:
                halo = builder.buffer(f"d/halo/{index - 1}", names.halo_rows, layer.width_in)
                gradients[halo] = f"halo/{index - 1}"
                writes.append(halo)
        work = builder.work(self._work(layer, "forward/backward", []), BACKWARD)
        self._reverse(layer, "forward", OpKind.TRANSFORM, reads, writes, work, gradients)
        if self.moves_halo(layer):
            self.halo.give_back(layer, f"d/halo/{index - 1}", f"d/hidden/{index - 1}")

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _work(
        self, layer: LayerSpec, segment: str, built_in: list[costs.Piece[Size]], rows: Size | None = None
    ) -> list[costs.Piece[Size]]:
        names = self.names
        return work_of(layer, segment, names.rows if rows is None else rows, names.edges, names.sources, built_in)

    def _product(self, layer: LayerSpec, segment: str, rows: RowSet[Size]) -> list[costs.Piece[Size]]:
        return self._work(layer, segment, costs.product(rows, layer.width_in, layer.prepared_width), rows.rows)

    def _product_backward(self, layer: LayerSpec, rows: RowSet[Size], trained: bool) -> list[costs.Piece[Size]]:
        built_in = costs.product_backward(rows, layer.width_in, layer.prepared_width, trained)
        return self._work(layer, "prepare/backward", built_in, rows.rows)

    def _aggregated_rows(self, layer: LayerSpec) -> RowSet[Size]:
        nonzeros = self.names.aggregated_nonzeros if layer.sparse_input and layer.hoisted else None
        return RowSet(self.names.rows, nonzeros)

    def _segment(
        self, layer: LayerSpec, segment: str, kind: OpKind, reads: list[str], writes: list[str], work: tuple[Work, ...]
    ) -> None:
        parameters = [] if segment == "aggregate" else [f"parameters/{layer.index}"]
        self.builder.compute(
            self.names.forward, f"forward/{layer.index}/{segment}", kind, [*reads, *parameters], writes, work,
            layer=layer.index, phase="forward", module=f"layers.{layer.index}.{segment}",
        )  # fmt: skip

    def _reverse(
        self, layer: LayerSpec, segment: str, kind: OpKind, reads: list[str], writes: list[str],
        work: tuple[Work, ...], gradients: dict[str, str],
    ) -> None:  # fmt: skip
        learned = segment != "aggregate"
        self.builder.compute(
            self.names.train, f"backward/{layer.index}/{segment}", kind,
            [*reads, *([f"parameters/{layer.index}"] if learned else [])],
            [*writes, *([f"gradients/{layer.index}"] if learned else [])], work,
            layer=layer.index, phase="backward", module=f"layers.{layer.index}.{segment}",
            reverses=f"forward/{layer.index}/{segment}", gradients=gradients,
        )  # fmt: skip

    def _add_own(self, layer: LayerSpec, below: str) -> None:
        builder, names, index = self.builder, self.names, layer.index
        work = builder.work([costs.pass_over(names.rows, layer.width_in, 3)])
        builder.compute(
            names.train, f"backward/{index}/add_own", OpKind.ADD, [f"d/own/{index}", below], [below], work,
            layer=index, phase="backward",
        )  # fmt: skip
