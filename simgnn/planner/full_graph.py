"""Full-graph training: forward and backward of every layer, around sums that the communication completes.

Each rank prepares and updates the rows that it holds; between the two, ``Sums`` adds the rows of in-neighbours. Source:
the common plan of full-graph systems."""

from dataclasses import replace

from simgnn.emit.communication import Sums, WholeLayers
from simgnn.emit.segments import Segments
from simgnn.model import costs
from simgnn.model.costs import RowSet
from simgnn.model.spec import LayerSpec
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.sizes import Scratch, Size


class FullGraphPlan:
    """Emits the ops of one epoch."""

    def __init__(self, segments: Segments, sums: Sums) -> None:
        self.segments = segments
        self.builder, self.names = segments.builder, segments.names
        self.sums = sums

    def inputs(self) -> None:
        """Emit the ops that run once before layer 1: inputs arrive, and their constant sum is computed."""
        self.sums.fetch_inputs()
        layer = self.segments.model.layers[0]
        if layer.hoisted:
            self.sums.hoist(layer)

    def forward(self, layer: LayerSpec) -> None:
        """Emit a layer: prepare, sum, update."""
        if layer.whole:
            self._whole().forward_whole(layer)
            return
        segments, builder, index = self.segments, self.builder, layer.index
        own, source = segments.own_rows(layer), segments.own(layer)
        if layer.has_prepare and not layer.sums_inputs:
            source = builder.buffer(f"prepared/{index}", self.names.rows, layer.prepared_width)
            reads, writes, pieces = [segments.own(layer)], [source], segments.product(layer, own)
            copies = self.sums.copies(layer)
            if copies is not None:
                reads.append(copies.source)
                writes.append(builder.buffer(copies.prepared, copies.rows.rows, layer.prepared_width))
                pieces += segments.product(layer, copies.rows)
                own = replace(own, rows=copies.rows.rows)  # the pointers of copies stand for those of own rows, too
            segments.keep_transposed(layer, segments.own(layer), own)
            if copies is not None:
                segments.keep_transposed(layer, copies.source, copies.rows)
            work, scratch = builder.work(pieces), segments.copied_weights(pieces)
            segments.forward(layer, Segment.PREPARE, OpKind.TRANSFORM, reads, writes, work, scratch)
        self.sums.forward(layer, source)
        hidden = builder.buffer(f"hidden/{index}", self.names.rows, layer.width_out)
        reads = [f"aggregated/{index}", *([segments.own(layer)] if layer.uses_own_rows else [])]
        segments.update(layer, reads, hidden, self._aggregated_rows(layer))
        segments.dropout(layer, "forward")

    def backward(self, layer: LayerSpec) -> None:
        """Emit the reverse of a layer: of update, sum and prepare."""
        if layer.whole:
            self._whole().backward_whole(layer)
            return
        segments, builder, index = self.segments, self.builder, layer.index
        below = f"d/hidden/{index - 1}"
        trained = segments.needs_gradient(layer)
        through = not layer.hoisted and (trained or layer.has_prepare)
        own_gradient = trained and layer.uses_own_rows
        segments.dropout(layer, "backward")
        segments.reverse_update(layer, self._aggregated_rows(layer), segments.own(layer), through, own_gradient)
        if not through:
            return
        target = f"d/prepared/{index}" if layer.has_prepare else below
        source = f"prepared/{index}" if layer.has_prepare else segments.own(layer)
        builder.buffer(target, self.names.rows, layer.prepared_width)
        self.sums.backward(layer, source, target)
        if layer.has_prepare:
            self._reverse_prepare(layer, target, below, trained)
        if own_gradient:
            self._add_own(layer, below)

    def _whole(self) -> WholeLayers:
        assert self.sums.whole is not None, "the communication has rejected such layers"
        return self.sums.whole

    def _reverse_prepare(self, layer: LayerSpec, target: str, below: str, trained: bool) -> None:
        segments, builder, index = self.segments, self.builder, layer.index
        if layer.sums_inputs:
            self._product_gradient(layer, target, below, trained)
            return
        reads, writes = [target, segments.own(layer)], []
        gradients = {target: f"prepared/{index}"}
        pieces = segments.product_backward(layer, segments.own_rows(layer), trained)
        copies = self.sums.copies(layer)
        if copies is not None:
            reads += [f"d/{copies.prepared}", copies.source]
            gradients[f"d/{copies.prepared}"] = copies.prepared
            pieces += segments.product_backward(layer, copies.rows, False)
        if trained:
            gradients[builder.buffer(below, self.names.rows, layer.width_in)] = segments.own(layer)
            writes.append(below)
        scratch = Scratch(segments.weight_gradients(layer, pieces, in_turn=True))
        work = builder.work(pieces)
        segments.reverse(layer, Segment.PREPARE, OpKind.TRANSFORM, reads, writes, work, gradients, scratch=scratch)

    def _product_gradient(self, layer: LayerSpec, target: str, below: str, trained: bool) -> None:
        """Emit the gradients of weights and of own rows, from gradients that were summed over the edges."""
        segments, index = self.segments, layer.index
        writes = [self.builder.buffer(below, self.names.rows, layer.width_in)] if trained else []
        work = self.builder.work(segments.product_backward(layer, segments.own_rows(layer), trained))
        self.builder.compute(
            self.names.train, f"backward/{index}/product", OpKind.TRANSFORM,
            [target, segments.own(layer), f"parameters/{index}"], [*writes, f"gradients/{index}"], work,
            layer=index, phase="backward", segment=Segment.PRODUCT_GRADIENT,
        )  # fmt: skip

    def _add_own(self, layer: LayerSpec, below: str) -> None:
        index = layer.index
        work = self.builder.work([costs.pass_over(self.names.rows, layer.width_in, 3)])
        self.builder.compute(
            self.names.train, f"backward/{index}/add_own", OpKind.ADD, [f"d/own/{index}", below], [below], work,
            layer=index, phase="backward",
        )  # fmt: skip

    def _aggregated_rows(self, layer: LayerSpec) -> RowSet[Size]:
        nonzeros = self.names.aggregated_nonzeros if layer.sparse_input and layer.hoisted else None
        return RowSet(self.names.rows, nonzeros, layer.centred_input)
