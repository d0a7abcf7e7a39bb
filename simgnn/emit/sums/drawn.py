"""Sums over own rows and the halo rows that are drawn in an epoch: sizes, the draw, and the edges that are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.communication import Transfers
from simgnn.emit.drawn_rows import (
    ARRIVED_IDS,
    FACTORS,
    IDS,
    KEPT,
    LISTED,
    ROUTE,
    CheckIds,
    DrawRows,
    DrawsRows,
    KeepEdges,
)
from simgnn.emit.segments import Segments
from simgnn.emit.sums.halo import HaloNames, HaloSums
from simgnn.emit.sums.own_first import HALO_EDGES, OwnFirst
from simgnn.emit.sync import Phase, Stage, Sync, emit_plainly
from simgnn.model.spec import LayerSpec
from simgnn.partition.statistics.halo_rows import ROW_EDGES
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.ops import ITEM_BYTES, Work
from simgnn.program.sizes import Column, IntArray, Route

EDGES = "drawn/edges"
"""Buffer of the edges from the drawn rows, and the column of their number."""
DRAWN = HaloNames(Column("drawn/arriving"), Column("drawn/leaving"), None, ROUTE, "drawn/")
DRAWN_FROM = Column("drawn/from")
"""Rows of a rank that may be drawn, sent and received ones."""
INDEX, POINTER = ITEM_BYTES["int32"], ITEM_BYTES["int64"]


@dataclass(frozen=True)
class Drawing:
    """The draws of a run of ``epochs`` epochs by ``policy``, in one partition."""

    policy: DrawsRows
    stats: PartitionStats
    seed: int
    epochs: int

    @property
    def counted(self) -> bool:
        """Whether kept edges are counted; otherwise, from statistics, their number is the expected one."""
        return ROW_EDGES in self.stats.tables

    @cached_property
    def _numbers(self) -> tuple[IntArray, IntArray]:
        """Rows of each pair of the route "halo", and kept edges of each rank: [k], or [k, epochs, 1] where epochs may
        differ, however many there are."""
        halo = self.stats.halo
        fixed = self.policy.fixed_counts(halo.rows)
        if fixed is None:
            counts, edges = self._drawn(self.epochs)
            return counts, edges if self.counted else self._expected(counts)
        if not self.counted:
            return fixed, self._expected(fixed[:, None, None])[:, 0, 0]
        if bool(((fixed > 0) & (fixed < halo.rows)).any()):
            return fixed, self._drawn(self.epochs)[1]
        return fixed, self._drawn(1)[1][:, 0, 0]

    def _drawn(self, epochs: int) -> tuple[IntArray, IntArray]:
        """Draw ``epochs`` epochs: rows of each pair [k, epochs, 1], kept edges of each rank [P, epochs, 1] (0 if edges
        are not counted)."""
        halo = self.stats.halo
        order = np.lexsort((halo.source, halo.target))  # by receiver, as halo rows lie
        owner, holder, rows = (part[order].astype(np.int64) for part in (halo.source, halo.target, halo.rows))
        counts = np.zeros((len(rows), epochs, 1), np.int64)
        edges = np.zeros((self.stats.ranks, epochs, 1), np.int64)
        of_row, lies_on = self.stats.tables.get(ROW_EDGES), np.repeat(holder, rows)
        for epoch in range(epochs):
            found = self.policy.drawn(self.seed, epoch, owner, holder, rows)
            counts[order, epoch, 0] = found.counts
            if of_row is not None:
                edges[:, epoch, 0] = np.bincount(lies_on[found.places], of_row[found.places], self.stats.ranks)
        return counts, edges

    def _expected(self, counts: IntArray) -> IntArray:
        """The kept edges [P, epochs, 1] if each halo row of a pair has as many: counted pair by pair where statistics
        do that."""
        stats, halo = self.stats, self.stats.halo
        share = counts / np.maximum(halo.rows, 1)[:, None, None]
        if "block_edges" in stats.tables:
            of_pair = np.asarray(stats.tables["block_edges"])[halo.target, halo.source].astype(np.float64)
        else:
            cut = np.asarray(stats.table("cut_edges", "a sum over drawn rows"), np.float64)
            of_pair = cut[halo.target] * halo.rows / np.maximum(stats.halo_rows(), 1)[halo.target]
        edges = np.zeros((stats.ranks, *counts.shape[1:]))
        np.add.at(edges, halo.target, share * of_pair[:, None, None])
        return np.rint(edges).astype(np.int64)

    def add_to(self, builder: ProgramBuilder, weighted: bool, attends: bool) -> None:
        """Add the route of drawn rows, and the columns of rows and edges."""
        stats, halo = self.stats, self.stats.halo
        counts, edges = self._numbers
        builder.route(ROUTE, Route(halo.source, halo.target, counts, listed=LISTED))
        ends = [(DRAWN.send_rows, halo.source), (DRAWN.halo_rows, halo.target)]
        for column, ranks in ends:
            rows = np.zeros((stats.ranks, *counts.shape[1:]), np.int64)
            np.add.at(rows, ranks, counts)
            builder.column(column.name, rows)
        builder.column(EDGES, edges)
        OwnFirst.add_to(builder, stats)
        sent = np.bincount(halo.source, halo.rows, minlength=stats.ranks).astype(np.int64)
        builder.column(DRAWN_FROM.name, sent + stats.halo_rows())
        own, arriving, kept = _alike(stats.rows, builder.columns[DRAWN.halo_rows.name], edges)
        # both directions: pointers, then an index and a weight of each edge; and the scales of sources in a sum
        of_edge = INDEX + (builder.item_bytes if weighted else 0)
        scales = 0 if attends else builder.item_bytes * (own + arriving)
        builder.column(f"{EDGES}/bytes", POINTER * (own + arriving + 2) + 2 * of_edge * kept + scales)

    def emit(self, builder: ProgramBuilder, templates: Sequence[str]) -> None:
        """Emit the draw of an epoch's rows, the message of ids if there is one, and the choice of the kept edges."""
        policy, fields = self.policy, {"route": "halo", "module": self.policy.slot, "category": "comm_overhead"}
        writes = [
            builder.buffer(LISTED, DRAWN.send_rows, 1, "int64"), builder.buffer(KEPT, DRAWN.halo_rows, 1, "int64")
        ]  # fmt: skip
        options: dict[str, str | int | float] = {}
        if policy.scales:
            writes.append(builder.buffer(FACTORS, DRAWN.halo_rows, 1))
            options["dtype"] = builder.dtype
        if policy.sends_ids:
            writes.append(builder.buffer(IDS, DRAWN.send_rows, 1, "int64"))
            options["ids"] = 1
        drawing = (_pass_over(DRAWN_FROM, POINTER),)
        builder.compute(templates, "draw/rows", OpKind.SELECT, [], writes, drawing, DrawRows, options=options, **fields)
        if policy.sends_ids:
            builder.buffer(ARRIVED_IDS, DRAWN.halo_rows, 1, "int64")
            builder.exchange(templates, "draw/ids", ROUTE, [IDS], ARRIVED_IDS, POINTER, control=True)
            comparing = (_pass_over(DRAWN.halo_rows, POINTER),)
            builder.compute(
                templates, "draw/check", OpKind.SELECT, [ARRIVED_IDS, KEPT], [KEPT], comparing, CheckIds, **fields
            )
        builder.buffer(EDGES, Column(f"{EDGES}/bytes"), 1, "uint8")
        choosing = (_pass_over(HALO_EDGES, INDEX),)
        builder.compute(templates, "draw/edges", OpKind.SELECT, [KEPT], [EDGES], choosing, KeepEdges, **fields)


def _pass_over(numbers: Column, item_bytes: int) -> Work:
    return Work("elementwise", {"rows": numbers, "width": 1, "passes": 2, "item_bytes": item_bytes})


def _alike(*columns: NDArray[np.int64]) -> list[IntArray]:
    """Give columns [P] the axes of turns, if any of them has these."""
    turns = any(column.ndim == 3 for column in columns)
    return [column[:, None, None] if turns and column.ndim == 1 else column for column in columns]


class DrawnSums(HaloSums):
    """The sums of a training epoch over own rows, then over drawn halo rows; rows of layer 1 arrive in every epoch, as
    other halo rows do, or are taken from the copies of all (:attr:`DrawsRows.holds_inputs`)."""

    def __init__(
        self, segments: Segments, drawing: Drawing, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]
    ) -> None:
        super().__init__(segments, DRAWN, transfers.rows(), True, rows, fetched_in)
        self.drawing = drawing
        self.divided = OwnFirst(segments, DRAWN.halo_rows, Column(EDGES), EDGES)

    def divides(self, layer: LayerSpec) -> bool:
        """Always true: edges from own rows stay, those from the halo are chosen anew."""
        return True

    def forward(self, layer: LayerSpec, source: str) -> None:
        super().forward(layer, source)
        self._send_before(layer, "forward", Segment.SUM_OWN)

    def backward(self, layer: LayerSpec, source: str, target: str) -> None:
        super().backward(layer, source, target)
        self._send_before(layer, "backward", Segment.OWN_GRADIENTS if layer.attends else Segment.SUM_OWN)

    def _send_before(self, layer: LayerSpec, phase: Phase, sums: Segment) -> None:
        """Move the sums over own rows behind the message that travels meanwhile; one after the other where they do
        not overlap, and where the rows of layer 1 have arrived before its product."""
        builder = self.segments.builder
        if builder.sums_own_first and self.moves(layer):
            op = f"{phase}/{layer.index}"
            builder.move_behind(self.names.train, f"{op}/{sums}", f"{op}/exchange")

    def fetch_inputs(self) -> None:
        """Emit the draw, and the arrival of the drawn rows' input features if these travel."""
        builder = self.segments.builder
        self.drawing.emit(builder, self.names.train)
        if self.rows != "input":
            return
        layer, held = self.segments.model.layers[0], None
        if self.drawing.policy.holds_inputs:
            held = "halo/0"
            everything = Stage(
                "publish", "halo", "features", held, Column("send_rows"), Column("halo_rows"), "send/0", "store",
                picked="halo", kept=True,
            )  # fmt: skip
            emit_plainly(builder, Sync(self.fetched_in, 1, "setup", layer.width_in, (everything,)))
        self.arrive(layer, "features", f"{DRAWN.prefix}halo/0", layer.width_in, held)
