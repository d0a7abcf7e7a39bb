"""Layers on the blocks of a mini-batch: forward and backward of each, on the rows that its hop leaves.

Layer l of L sums over the block of hop L - l + 1, from the rows after that hop to those before, which come first among
them. Source: the common plan of sampled systems (specs/minibatch_common.md C9, C10).
"""

from collections.abc import Mapping

from simgnn.model import costs
from simgnn.model.costs import Piece, RowSet
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.policies.minibatch import INPUTS, block, edges_of, rows_after
from simgnn.policies.names import Names
from simgnn.policies.segments import Segments
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import OpKind
from simgnn.program.sizes import Size


class BlockLayers:
    """Emits the ops of a step's layers into ``templates``."""

    def __init__(self, builder: ProgramBuilder, model: ModelSpec, templates: tuple[str, ...]) -> None:
        self.builder = builder
        self.model = model
        self.templates = templates

    def forward(self, layer: LayerSpec) -> None:
        """Prepare all rows, sum over the block, update the rows that are left."""
        builder, index, segments = self.builder, layer.index, self._segments(layer)
        names, source, below = segments.names, self._source(layer), self._below(layer)
        if layer.has_prepare:
            builder.buffer(source, names.sources, layer.prepared_width)
            sources: RowSet[Size] = RowSet(names.sources)
            work = builder.work(segments.product(layer, sources))
            segments.forward(layer, "prepare", OpKind.TRANSFORM, [below], [source], work)
        reads = [self._block(layer), source]
        if layer.attends:
            reads.append(segments.maximum(layer, reads))
        segments.aggregate(layer, reads)
        hidden = builder.buffer(f"hidden/{index}", names.rows, layer.width_out)
        reads = [f"aggregated/{index}", *([below] if layer.uses_own_rows else [])]
        rows: RowSet[Size] = RowSet(names.rows)
        work = builder.work(segments.work(layer, "update", costs.update(layer, rows, rows)))
        segments.forward(layer, "update", OpKind.TRANSFORM, reads, [hidden], work)

    def backward(self, layer: LayerSpec) -> None:
        """Update, sum, prepare: each the reverse of its forward segment. Input rows have no gradient."""
        builder, index, segments = self.builder, layer.index, self._segments(layer)
        trained = segments.needs_gradient(layer)
        through, own = trained or layer.has_prepare, trained and layer.uses_own_rows
        self._reverse_update(layer, segments, through, own)
        if not through:
            return
        target = f"d/prepared/{index}" if layer.has_prepare else f"d/hidden/{index - 1}"
        builder.buffer(target, segments.names.sources, layer.prepared_width)
        self._reverse_sum(layer, segments, target)
        if layer.has_prepare:
            self._reverse_prepare(layer, segments, target, trained)
        if own:
            below = f"d/hidden/{index - 1}"
            builder.compute(
                self.templates, f"backward/{index}/add_own", OpKind.ADD, [f"d/own/{index}", below], [below],
                builder.work([costs.pass_over(segments.names.rows, layer.width_in, 3)]),
                layer=index, phase="backward", options={"rows": "first"},
            )  # fmt: skip

    def _reverse_update(self, layer: LayerSpec, segments: Segments, through: bool, own: bool) -> None:
        builder, index, rows = self.builder, layer.index, segments.names.rows
        gradients, writes = {f"d/hidden/{index}": f"hidden/{index}"}, []
        if through:
            writes.append(builder.buffer(f"d/aggregated/{index}", rows, layer.aggregated_width))
            gradients[f"d/aggregated/{index}"] = f"aggregated/{index}"
        if own:
            writes.append(builder.buffer(f"d/own/{index}", rows, layer.width_in))
            gradients[f"d/own/{index}"] = self._below(layer)
        saved = [f"aggregated/{index}", *([self._below(layer)] if layer.uses_own_rows else []), f"hidden/{index}"]
        held: RowSet[Size] = RowSet(rows)
        pieces = costs.update_backward(layer, held, held, through, own)
        options: Mapping[str, float] = {"gradient_limit": layer.gradient_limit} if layer.gradient_limit else {}
        segments.reverse(
            layer, "update", OpKind.TRANSFORM, [f"d/hidden/{index}", *saved], writes,
            builder.work(segments.work(layer, "update/backward", pieces)), gradients, options,
        )  # fmt: skip

    def _reverse_sum(self, layer: LayerSpec, segments: Segments, target: str) -> None:
        builder, index, names, source = self.builder, layer.index, segments.names, self._source(layer)
        incoming = f"d/aggregated/{index}"
        pieces: list[Piece[Size]] = costs.sums_backward(layer, names.edges, names.rows, names.sources)
        work = builder.work(segments.work(layer, "aggregate/backward", pieces), f"{names.locality}/backward")
        saved = [source, f"maximum/{index}"] if layer.attends else []
        segments.reverse(
            layer, "aggregate", OpKind.AGGREGATE, [self._block(layer), incoming, *saved], [target], work,
            {incoming: f"aggregated/{index}", target: source},
        )  # fmt: skip

    def _reverse_prepare(self, layer: LayerSpec, segments: Segments, target: str, trained: bool) -> None:
        builder, index, names = self.builder, layer.index, segments.names
        below, source = f"d/hidden/{index - 1}", self._source(layer)
        gradients, writes = {target: source}, []
        if trained:
            writes.append(builder.buffer(below, names.sources, layer.width_in))
            gradients[below] = self._below(layer)
        sources: RowSet[Size] = RowSet(names.sources)
        work = builder.work(segments.product_backward(layer, sources, trained))
        segments.reverse(layer, "prepare", OpKind.TRANSFORM, [target, self._below(layer)], writes, work, gradients)

    def _hop(self, layer: LayerSpec) -> int:
        return len(self.model.layers) - layer.index + 1

    def _block(self, layer: LayerSpec) -> str:
        return block(self._hop(layer))

    def _below(self, layer: LayerSpec) -> str:
        """The buffer of a layer's input rows."""
        return INPUTS if layer.index == 1 else f"hidden/{layer.index - 1}"

    def _source(self, layer: LayerSpec) -> str:
        """The buffer of the rows that it sums."""
        return f"prepared/{layer.index}" if layer.has_prepare else self._below(layer)

    def _segments(self, layer: LayerSpec) -> Segments:
        hop = self._hop(layer)
        names = Names(
            rows=rows_after(hop - 1),
            sources=rows_after(hop),
            edges=edges_of(hop),
            train_rows=rows_after(0),
            feature_nonzeros=None,
            aggregated_nonzeros=None,
            train=self.templates,
            forward=self.templates,
            setup=(),
            locality=f"locality/blocks/{hop}",
        )
        return Segments(self.builder, self.model, names)
