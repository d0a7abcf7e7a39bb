"""Emits a layer's ops: one for each :class:`~simgnn.program.kinds.Segment` of it, and one for its backward pass."""

from collections.abc import Mapping, Sequence
from typing import Literal

from simgnn.emit.batches.names import VERTICES
from simgnn.emit.builder import Named, ProgramBuilder
from simgnn.emit.names import Names
from simgnn.model import costs
from simgnn.model.costs import Piece, RowSet, passing_rows, reversing_rows, saved_rows
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.model.user_layer import work_of
from simgnn.program.kinds import Form, OpKind, Segment
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.sizes import NO_SCRATCH, Scratch, Size, Terms, rows_of

FORWARD, BACKWARD = "locality/forward", "locality/backward"
"""Tables of the partition that tell how local the sums over a rank's own edges are."""


class Segments:
    """Emits the ops of each :class:`Segment` of a layer, forward and backward; holds the builder, model and names."""

    def __init__(self, builder: ProgramBuilder, model: ModelSpec, names: Names) -> None:
        self.builder = builder
        self.model = model
        self.names = names

    # -- names -----------------------------------------------------------------------------------------------------

    def own(self, layer: LayerSpec) -> str:
        """Name of the buffer of a layer's input rows on their own rank."""
        return "features" if layer.index == 1 else f"hidden/{layer.index - 1}"

    def own_rows(self, layer: LayerSpec) -> RowSet[Size]:
        """The number of a layer's own input rows, and of their stored values if they are sparse."""
        nonzeros = self.names.feature_nonzeros if layer.sparse_input else None
        return RowSet(self.names.rows, nonzeros, layer.centred_input)

    def needs_gradient(self, layer: LayerSpec) -> bool:
        """Whether gradients of the layer's input rows are needed."""
        return layer.index > 1

    # -- work ------------------------------------------------------------------------------------------------------

    def work(
        self, layer: LayerSpec, segment: str, built_in: list[Piece[Size]], rows: Size | None = None
    ) -> list[Piece[Size]]:
        """The cost of a :class:`Segment` on ``rows`` (None: all): ``built_in``, or what a user's layer declares."""
        names = self.names
        return work_of(layer, segment, names.rows if rows is None else rows, names.edges, names.sources, built_in)

    def product(self, layer: LayerSpec, rows: RowSet[Size]) -> list[Piece[Size]]:
        """The cost of ``prepare`` on some rows."""
        return self.work(layer, "prepare", costs.product(rows, layer.width_in, layer.prepared_width), rows.rows)

    def product_backward(self, layer: LayerSpec, rows: RowSet[Size], trained: bool) -> list[Piece[Size]]:
        """The cost of the reverse of ``prepare`` on some rows."""
        built_in = costs.product_backward(rows, layer.width_in, layer.prepared_width, trained)
        return self.work(layer, "prepare/backward", built_in, rows.rows)

    # -- memory beside buffers -------------------------------------------------------------------------------------

    def copied_weights(self, pieces: Sequence[Piece[Size]]) -> Scratch:
        """Memory of the largest copy of weights that the products make; they make them one after the other."""
        return Scratch(rows_of(1, max((piece.held for piece in pieces), default=0) * self.builder.item_bytes))

    def weight_gradients(self, layer: LayerSpec, pieces: Sequence[Piece[Size]], in_turn: bool) -> Terms:
        """Memory of the gradients of weights before they are added to the layer's: of all products at once, or of the
        largest if they are made ``in_turn``. If no product states its size, the layer's parameters count."""
        held = [piece.held for piece in pieces if piece.held]
        elements = (max if in_turn else sum)(held) if held else self.builder.buffers[f"gradients/{layer.index}"].width
        return rows_of(1, elements * self.builder.item_bytes)

    def pointers(self, reverse: bool = False) -> Scratch:
        """Memory that a sum over the edges of a batch needs: the row pointers as int64, and for ``reverse`` the edges
        by source (int32) with their own pointers."""
        names, word, pointer = self.names, ITEM_BYTES["int32"], ITEM_BYTES["int64"]
        if not names.drawn:
            return NO_SCRATCH
        turned = (*rows_of(names.sources, pointer), *rows_of(names.edges, word)) if reverse else ()
        return Scratch((*rows_of(names.rows, pointer), *turned))

    def keep_adjacency(self) -> None:
        """Count the memory that full-graph training keeps beside its edges: the in-degree (int64) of each source, in a
        weighted graph also the sum of its weights (float64), and the scalings of rows, at most one for each source and
        three for each row."""
        names, item = self.names, self.builder.item_bytes
        if names.train and not names.drawn:
            degrees = ITEM_BYTES["int64"] * (2 if self.model.layers[0].weighted else 1)
            self.builder.keep("adjacency", (names.sources, degrees + item), (names.rows, 3 * item))

    def keep_transposed(self, layer: LayerSpec, buffer: str, rows: RowSet[Size]) -> None:
        """Count the memory of the transpose of sparse input rows, and of the row pointers (int32) of both."""
        if rows.nonzeros is not None:
            word, columns = ITEM_BYTES["int32"], layer.width_in + rows.centred
            stored = (rows.nonzeros, word + self.builder.item_bytes)
            self.builder.keep(f"{buffer} transposed", stored, (rows.rows, word), (columns, word))

    # -- ops -------------------------------------------------------------------------------------------------------

    def forward(
        self, layer: LayerSpec, segment: Segment, kind: OpKind, reads: Sequence[Named], writes: Sequence[str],
        work: tuple[Work, ...], scratch: Scratch = NO_SCRATCH,
        options: Mapping[str, str | int | float] | None = None,
    ) -> None:  # fmt: skip
        """Emit a segment of a layer, in training and in evaluation."""
        parameters = [f"parameters/{layer.index}"] if self._learns(layer, segment) else []
        name = f"{self.names.prefix}forward/{layer.index}/{segment}"
        self.builder.compute(
            self.names.forward, name, kind, [*reads, *parameters], writes, work,
            layer=layer.index, phase="forward", segment=segment, options=options or {}, scratch=scratch,
        )  # fmt: skip

    def reverse(
        self, layer: LayerSpec, segment: Segment, kind: OpKind, reads: Sequence[str], writes: Sequence[str],
        work: tuple[Work, ...], gradients: dict[str, str], options: Mapping[str, str | int | float] | None = None,
        scratch: Scratch = NO_SCRATCH,
    ) -> None:  # fmt: skip
        """Emit the reverse of a segment. ``gradients``: gradient buffer -> the forward buffer that it belongs to."""
        learned = self._learns(layer, segment)
        self.builder.compute(
            self.names.train, f"backward/{layer.index}/{segment}", kind,
            [*reads, *([f"parameters/{layer.index}"] if learned else [])],
            [*writes, *([f"gradients/{layer.index}"] if learned else [])], work,
            layer=layer.index, phase="backward", segment=segment,
            reverses=f"forward/{layer.index}/{segment}", gradients=gradients, options=options or {}, scratch=scratch,
        )  # fmt: skip

    def update(self, layer: LayerSpec, reads: Sequence[str], hidden: str, summed: RowSet[Size]) -> None:
        """Emit ``update``, which reads the sums (``summed`` rows) and, if the layer uses them, own rows."""
        own = self.own_rows(layer)
        pieces = self.work(layer, "update", costs.update(layer, summed, own))
        work, scratch = self.builder.work(pieces), self.copied_weights(pieces)
        self.forward(
            layer, Segment.UPDATE, OpKind.TRANSFORM, reads, [hidden, *self._saved(layer, summed)], work, scratch
        )
        if not layer.adds_own_rows or summed.nonzeros is None:
            self.keep_transposed(layer, f"aggregated/{layer.index}", summed)
            if layer.uses_own_rows:
                self.keep_transposed(layer, self.own(layer), own)

    def reverse_update(
        self, layer: LayerSpec, summed: RowSet[Size], own: str, through: bool, own_gradient: bool
    ) -> None:
        """Emit the reverse of ``update``: gradients of sums if ``through``, of rows in ``own`` if ``own_gradient``."""
        builder, rows, index = self.builder, self.names.rows, layer.index
        gradients, writes = {f"d/hidden/{index}": f"hidden/{index}"}, []
        if through:
            writes.append(builder.buffer(f"d/aggregated/{index}", rows, layer.aggregated_width))
            gradients[f"d/aggregated/{index}"] = f"aggregated/{index}"
        if own_gradient:
            writes.append(builder.buffer(f"d/own/{index}", rows, layer.width_in))
            gradients[f"d/own/{index}"] = own
        saved = self._saved(layer, summed)
        for name, width in reversing_rows(layer).items():
            writes.append(builder.buffer(f"d/saved/{index}/{name}", rows, width, inner=True))
            gradients[writes[-1]] = f"saved/{index}/{name}"
        built_in = costs.update_backward(layer, summed, self.own_rows(layer), through, own_gradient)
        pieces = self.work(layer, "update/backward", built_in)
        passing, item = passing_rows(layer, through, own_gradient), builder.item_bytes
        learned = self.weight_gradients(layer, pieces, in_turn=bool(reversing_rows(layer)))
        scratch = Scratch(
            (*learned, *rows_of(rows, passing.width * item)), rows_of(rows, passing.least * item),
            (f"d/own/{index}",) if passing.copies_own else (),
        )  # fmt: skip
        reads = [f"d/hidden/{index}", f"aggregated/{index}", *([own] if layer.uses_own_rows else [])]
        self.reverse(
            layer, Segment.UPDATE, OpKind.TRANSFORM, [*reads, f"hidden/{index}", *saved], writes,
            builder.work(pieces), gradients, {"gradient_limit": layer.gradient_limit} if layer.gradient_limit else {},
            scratch,
        )  # fmt: skip

    def _saved(self, layer: LayerSpec, summed: RowSet[Size]) -> list[str]:
        """Add the buffers that ``update`` writes for its reverse, and return their names."""
        builder, found = self.builder, []
        for name, width in saved_rows(layer, layer.sparse_input and summed.nonzeros is None).items():
            buffer = f"{self.names.prefix}saved/{layer.index}/{name}"
            if name == "total" and summed.nonzeros is not None:
                # of constant rows, made once: it stores values where own rows or in-neighbours do, as is counted there
                entry = 4 + builder.item_bytes
                found.append(builder.buffer(buffer, summed.nonzeros, entry, "uint8", persistent=True, inner=True))
                self.keep_transposed(layer, buffer, summed)
            else:
                found.append(builder.buffer(buffer, self.names.rows, width, inner=True))
        return found

    @staticmethod
    def _learns(layer: LayerSpec, segment: Segment) -> bool:
        return segment not in (Segment.AGGREGATE, Segment.SUM_OWN, Segment.ADD_HALO) or layer.attends

    def dropout(
        self, layer: LayerSpec, phase: Literal["forward", "backward"], form: Form = Form.DROPOUT,
        vertices: Named = VERTICES,
    ) -> None:  # fmt: skip
        """Emit dropout of the layer's output or of its gradient, in place, in training only. Which elements are dropped
        depends on the row's vertex (``vertices``) and, with ``form`` BATCH_DROPOUT, on the rank's mini-batch."""
        if not layer.dropped:
            return
        index, options = layer.index, {"dropped": layer.dropped}
        rows = f"hidden/{index}" if phase == "forward" else f"d/hidden/{index}"
        self.builder.compute(
            self.names.train, f"{phase}/{index}/dropout", OpKind.ELEMENTWISE, [rows, vertices], [rows],
            self.builder.work(costs.dropout(layer, self.names.rows)), layer=index, phase=phase, form=form,
            options=options,
        )  # fmt: skip

    # -- the sum over in-neighbours --------------------------------------------------------------------------------

    def maximum(self, layer: LayerSpec, reads: Sequence[str]) -> str:
        """Emit the greatest attention score of each row over a rank's edges; returns the buffer [rows, heads]. It has
        no reverse, since sums of weighted rows divided by sums of weights do not depend on it."""
        names, builder, index = self.names, self.builder, layer.index
        result = builder.buffer(f"{names.prefix}maximum/{index}", names.rows, layer.heads)
        pieces: list[Piece[Size]] = costs.attention_maximum(layer, names.edges, names.rows, names.sources)
        self.forward(
            layer, Segment.MAXIMUM, OpKind.AGGREGATE, reads, [result],
            builder.work(pieces, f"{names.locality}/forward"), self.pointers(),
        )  # fmt: skip
        return result

    def aggregate(self, layer: LayerSpec, reads: Sequence[str]) -> str:
        """Emit the sum of prepared rows; returns the buffer of the sums."""
        names, builder, index = self.names, self.builder, layer.index
        result = builder.buffer(f"{names.prefix}aggregated/{index}", names.rows, layer.aggregated_width)
        pieces: list[Piece[Size]] = costs.sums(layer, names.edges, names.rows, names.sources)
        work = builder.work(self.work(layer, "aggregate", pieces), f"{names.locality}/forward")
        self.forward(layer, Segment.AGGREGATE, OpKind.AGGREGATE, reads, [result], work, self.pointers())
        self.keep_adjacency()
        return result

    def aggregate_backward(self, layer: LayerSpec, writes: Sequence[str], gradients: dict[str, str]) -> None:
        """Emit the reverse of :meth:`aggregate`: gradients of prepared rows. ``gradients`` as in :meth:`reverse`."""
        names, builder, index = self.names, self.builder, layer.index
        pieces: list[Piece[Size]] = costs.sums_backward(layer, names.edges, names.rows, names.sources)
        work = builder.work(self.work(layer, "aggregate/backward", pieces), f"{names.locality}/backward")
        incoming = f"d/aggregated/{index}"
        saved = [*gradients.values(), f"maximum/{index}"] if layer.attends else []
        self.reverse(
            layer, Segment.AGGREGATE, OpKind.AGGREGATE, [incoming, *saved], writes, work,
            {incoming: f"aggregated/{index}", **gradients},
        )  # fmt: skip

    def hoisted(self, layer: LayerSpec, reads: Sequence[str]) -> str:
        """Emit the sum of layer 1's inputs, computed once; it is sparse if :class:`Names` counts its values."""
        names, builder, index = self.names, self.builder, layer.index
        width, nonzeros = layer.width_in, names.aggregated_nonzeros
        if nonzeros is None:
            result = builder.buffer(f"aggregated/{index}", names.rows, width, persistent=True)
            pieces: list[Piece[Size]] = costs.aggregate(names.edges, names.rows, names.sources, width, layer.weighted)
            work = builder.work(pieces, FORWARD)
            self.keep_adjacency()
        else:
            entry = 4 + builder.item_bytes
            result = builder.buffer(f"aggregated/{index}", nonzeros, entry, "uint8", persistent=True)
            work = (Work("copy", {"rows": nonzeros, "width": 1, "item_bytes": entry}),)
        builder.compute(
            names.setup, f"setup/{index}/aggregate", OpKind.AGGREGATE, reads, [result], work,
            layer=index, phase="setup", segment=Segment.AGGREGATE,
        )  # fmt: skip
        return result
