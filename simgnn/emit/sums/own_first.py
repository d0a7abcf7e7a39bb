"""Sums over a rank's own rows, and over its halo rows, as two ops, so that halo rows travel during the first.

Own rows come first in the order in which a row's sources are added, so that the two ops give what one sum gives, to the
last bit. Attention is a running softmax as in :mod:`simgnn.emit.sums.block_attention`: weights are relative to the
greatest score so far, which the halo may raise, so that its sums differ from those of one op by rounding; it is
summed in these two ops under every schedule.
"""

from collections.abc import Sequence

import numpy as np

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.segments import Segments
from simgnn.model import costs
from simgnn.model.costs import Piece
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.sizes import NO_SCRATCH, Column, Scratch, Size, Terms, rows_of

OWN_EDGES, HALO_EDGES = Column("edges/own"), Column("edges/halo")
"""A rank's edges by where their source lies."""
CUT_EDGES = "cut_edges"
"""The table of a partition that counts the edges of each rank from its halo."""


class OwnFirst:
    """Emits the sums of a layer whose halo rows, ``halo_rows`` a rank, travel in every epoch. ``halo_edges``: the
    number of edges from them; ``kept``: the buffer of these edges, where they differ by turn (None: all edges from the
    halo)."""

    def __init__(
        self, segments: Segments, halo_rows: Size, halo_edges: Column = HALO_EDGES, kept: str | None = None
    ) -> None:
        self.segments, self.halo_rows, self.halo_edges = segments, halo_rows, halo_edges
        self.builder, self.names = segments.builder, segments.names
        self.kept = [] if kept is None else [kept]
        self.options: dict[str, str | int | float] = {} if kept is None else {"edges": kept}

    @staticmethod
    def serves(layer: LayerSpec) -> bool:
        """Whether a layer can be summed in two parts: a user's own layer is one function of all rows."""
        return layer.kind in BUILT_IN_LAYERS and not layer.hoisted

    @staticmethod
    def add_to(builder: ProgramBuilder, stats: PartitionStats) -> None:
        """Add the columns of the numbers of edges to a builder."""
        from_halo = np.asarray(stats.table(CUT_EDGES, "a sum over own rows, then over halo rows"), dtype=np.int64)
        builder.column(OWN_EDGES.name, stats.edges - from_halo)
        builder.column(HALO_EDGES.name, from_halo)

    def forward(self, layer: LayerSpec, source: str, halo: str) -> None:
        """Sum own rows from ``source`` and halo rows from ``halo`` into ``aggregated/LAYER``."""
        names, builder, index, item = self.names, self.builder, layer.index, self.builder.item_bytes
        rows, width, heads = names.rows, layer.aggregated_width, layer.heads
        own: list[Piece[Size]]
        more: list[Piece[Size]]
        sums = [builder.buffer(f"{names.prefix}aggregated/{index}", rows, width)]
        if not layer.attends:
            own = costs.sums(layer, OWN_EDGES, rows, rows)
            more = [*costs.sums(layer, self.halo_edges, rows, self.halo_rows), costs.pass_over(rows, width, 1)]
            self._sum(layer, Segment.SUM_OWN, [source], sums, own)
            # the sums become new rows beside those so far
            self._sum(layer, Segment.ADD_HALO, [*self.kept, halo, *sums], sums, more, rows_of(rows, width * item))
            return
        sums.insert(0, builder.buffer(f"{names.prefix}maximum/{index}", rows, heads))
        own = costs.attended_block(layer, OWN_EDGES, rows, rows, added=False)
        more = costs.attended_block(layer, self.halo_edges, rows, self.halo_rows, added=True)
        self._sum(layer, Segment.SUM_OWN, [source], sums, own, rows_of(rows, 2 * heads * item))
        held = (*rows_of(rows, (5 * heads + width) * item), *rows_of(self.halo_rows, heads * item))
        self._sum(layer, Segment.ADD_HALO, [*self.kept, halo, source, *sums], sums, more, held)

    def _sum(
        self, layer: LayerSpec, segment: Segment, reads: Sequence[str], writes: Sequence[str],
        pieces: Sequence[Piece[Size]], held: Terms = (),
    ) -> None:  # fmt: skip
        work = self.builder.work(pieces, f"{self.names.locality}/forward")
        options = self.options if segment is Segment.ADD_HALO else {}
        self.segments.forward(layer, segment, OpKind.AGGREGATE, reads, writes, work, Scratch(held), options)
        self.segments.keep_adjacency()

    def backward(self, layer: LayerSpec, source: str, halo: str, target: str) -> None:
        """Emit, from ``d/aggregated/LAYER``, first the gradient of halo rows, which then travels, and after it the
        gradient of the rows in ``source``, into ``target``."""
        rows, of_halo = self.names.rows, self.builder.buffer(f"d/{halo}", self.halo_rows, layer.prepared_width)
        from_halo: list[Piece[Size]] = costs.sums_backward(layer, self.halo_edges, rows, self.halo_rows)
        from_own: list[Piece[Size]] = costs.sums_backward(layer, OWN_EDGES, rows, rows)
        if layer.attends:
            self._reverse_attention(layer, source, halo, target, from_halo, from_own)
            return
        incoming = f"d/aggregated/{layer.index}"
        for segment, part, gradient, pieces in (
            (Segment.ADD_HALO, halo, of_halo, from_halo), (Segment.SUM_OWN, source, target, from_own),
        ):  # fmt: skip
            gradients = {incoming: f"aggregated/{layer.index}", gradient: part}
            work = self.builder.work(pieces, f"{self.names.locality}/backward")
            reads = [incoming, *(self.kept if segment is Segment.ADD_HALO else [])]
            self.segments.reverse(layer, segment, OpKind.AGGREGATE, reads, [gradient], work, gradients)

    def _reverse_attention(
        self, layer: LayerSpec, source: str, halo: str, target: str, from_halo: Sequence[Piece[Size]],
        from_own: Sequence[Piece[Size]],
    ) -> None:  # fmt: skip
        """Edges of both kinds contribute to gradients of targets' scores; the second op adds to those of the first."""
        index, heads = layer.index, layer.heads
        scores = self.builder.buffer(f"d/target/{index}", self.names.rows, heads)
        read = [f"d/aggregated/{index}", source, f"maximum/{index}", f"parameters/{index}"]
        for segment, reads, writes, pieces in (
            (Segment.HALO_GRADIENTS, [*self.kept, *read, halo], [f"d/{halo}", scores], from_halo),
            (Segment.OWN_GRADIENTS, [*read, scores], [target], from_own),
        ):
            self.builder.compute(
                self.names.train, f"backward/{index}/{segment}", OpKind.AGGREGATE, reads,
                [*writes, f"gradients/{index}"], self.builder.work(pieces, f"{self.names.locality}/backward"),
                layer=index, phase="backward", segment=segment,
                options=self.options if segment is Segment.HALO_GRADIENTS else {},
                scratch=Scratch(rows_of(self.names.rows, 3 * heads * self.builder.item_bytes)) if heads else NO_SCRATCH,
            )  # fmt: skip
