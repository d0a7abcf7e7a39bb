"""Syncs of which both ends keep the rows as last sent, so that only chosen ones travel: the ops around a cache."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simgnn.policies.codec.base import Codec
from simgnn.policies.encoded import buffer_name
from simgnn.policies.sync import Stage, Sync, land, pack, receiving_buffer
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Column, Decision, IntArray, Route, Size

THRESHOLD = "threshold"
"""Buffer of the controller that chooses, the same on all ranks: [1, 3] float64."""
REVERSE = "/reverse"


@dataclass(frozen=True)
class CachedStage:
    """One stage of a sync, expanded: select, encode, exchange of masks, exchange of rows, decode into the cache.

    Buffers: ``sent`` and ``kept``, the rows as last sent, on both ends, for the whole run. A mask has a bit for each
    row that may travel to a peer, in the order of the wire; the rows that do are a decision. The policy "freshness"
    carries out select, encode and decode.
    """

    builder: ProgramBuilder
    sync: Sync
    stage: Stage
    codec: Codec

    def emit(self) -> None:
        """All ops, in the sync's templates."""
        builder, sync, stage = self.builder, self.sync, self.stage
        width, row_bytes = sync.width, self.codec.row_bytes(sync.width, builder.dtype)
        columns, dtype = (row_bytes, "uint8") if self.codec.encodes else (width, builder.dtype)
        pack(builder, sync, stage)
        builder.buffer(THRESHOLD, 1, 3, "float64", persistent=True)
        sent = builder.buffer(self._name("sent"), stage.leaving, width, persistent=True)
        kept = builder.buffer(self._name("kept"), stage.arriving, width, persistent=True)
        masks = add_mask_route(builder, stage.route)
        mask = builder.buffer(self._name("mask"), Column(f"{masks}/leaving"), 1, "uint8")
        mask_in = builder.buffer(self._name("mask_in"), Column(f"{masks}/arriving"), 1, "uint8")
        chosen = builder.buffer(self._name("chosen"), self.leaving, 1, "int64")
        coded = builder.buffer(self._name("coded"), self.leaving, columns, dtype)
        arrived = builder.buffer(self._name("arrived"), self.arriving, columns, dtype)
        select = (self._work("select", stage.leaving),)
        self._compute("select", OpKind.SELECT, [stage.packed, sent, THRESHOLD], [mask, chosen], select)
        self._compute("encode", OpKind.ENCODE, [stage.packed, chosen, sent], [coded, sent], self._encode_work())
        self._exchange("mask", masks, [mask], mask_in, 1, control=True)
        self._exchange(
            "exchange", stage.route, [coded, mask, mask_in], arrived, row_bytes, decision=self.leaving, announced=True
        )
        receive = receiving_buffer(builder, sync, stage)
        self._compute("decode", OpKind.DECODE, [arrived, mask_in, kept], [receive, kept], self._decode_work())
        land(builder, sync, stage)

    @cached_property
    def leaving(self) -> Decision:
        """Rows that a rank sends."""
        return Decision(self._decision("rows"), _bound(self.stage.leaving))

    @cached_property
    def arriving(self) -> Decision:
        """Rows that a rank receives."""
        return Decision(self._decision("arrived"), _bound(self.stage.arriving))

    def _encode_work(self) -> tuple[Work, ...]:
        """Rows are picked and put into the cache; encoded, it is their difference from the cached ones, decoded too."""
        rows = self.leaving
        moved = (self._work("gather", rows), self._work("gather", rows))
        if not self.codec.encodes:
            return moved
        change, shape = self._work("elementwise", rows, passes=3), (rows, self.sync.width, self.builder.dtype)
        coding = (*self.codec.encode_work(*shape), *self.codec.decode_work(*shape))
        return (*moved, self._work("gather", rows), change, *coding, change)

    def _decode_work(self) -> tuple[Work, ...]:
        """Rows are put into the cache, or added where they are differences; all cached rows are handed on."""
        rows = self.arriving
        coded = self.codec.decode_work(rows, self.sync.width, self.builder.dtype) if self.codec.encodes else ()
        added = (self._work("gather", rows), self._work("elementwise", rows, passes=3)) if self.codec.encodes else ()
        return (*coded, *added, self._work("gather", rows), self._work("copy", self.stage.arriving))

    def _work(self, primitive: str, rows: Size, **sizes: int) -> Work:
        width, item = self.sync.width, self.builder.item_bytes
        return Work(primitive, {"rows": rows, "width": width, **sizes, "item_bytes": item})

    def _compute(self, part: str, kind: OpKind, reads: list[str], writes: list[str], work: tuple[Work, ...]) -> None:
        self.builder.compute(
            self.sync.templates, self.sync.op(self.stage, part), kind, reads, writes, work, layer=self.sync.layer,
            phase=self.sync.phase, route=self.stage.route, module="freshness", category="comm_overhead",
        )  # fmt: skip

    def _exchange(self, part: str, route: str, reads: list[str], write: str, row_bytes: int, **fields: Any) -> None:
        self.builder.exchange(
            self.sync.templates, self.sync.op(self.stage, part), route, reads, write, row_bytes,
            layer=self.sync.layer, phase=self.sync.phase, **fields,
        )  # fmt: skip

    def _name(self, what: str) -> str:
        return buffer_name(what, self.sync, self.stage)

    def _decision(self, name: str) -> str:
        return f"{buffer_name('sync', self.sync, self.stage)}/{name}"


def add_mask_route(builder: ProgramBuilder, route: str) -> str:
    """The route of the masks over a route's rows: a bit a row, each pair's padded to whole bytes; with its reverse.

    Adds the columns ``NAME/leaving`` and ``NAME/arriving`` of the direction that is asked for, bytes of each rank.
    """
    forward = route.removesuffix(REVERSE)
    name = f"{forward}/mask" + REVERSE * route.endswith(REVERSE)
    if f"{forward}/mask" not in builder.routes:
        rows = builder.routes[forward]
        builder.route(f"{forward}/mask", Route(rows.source, rows.target, (rows.rows + 7) // 8))
    found, ranks = builder.routes[name], len(builder.hosts)
    for column, ends in (("leaving", found.source), ("arriving", found.target)):
        total: IntArray = np.bincount(ends, found.rows, minlength=ranks).astype(np.int64)
        builder.column(f"{name}/{column}", total)
    return name


def emit_cached(builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
    """Every stage of a sync of training, with a cache of its own."""
    for stage in sync.stages:
        CachedStage(builder, sync, stage, codec).emit()


def emit_threshold(builder: ProgramBuilder, templates: tuple[str, ...]) -> None:
    """The controller's step at the end of an epoch; none where no sync asked for a threshold."""
    if THRESHOLD not in builder.buffers:
        return
    work = (Work("elementwise", {"rows": 1, "width": 3, "passes": 2, "item_bytes": 8}),)
    builder.compute(
        templates, "update/threshold", OpKind.ELEMENTWISE, ["metrics", THRESHOLD], [THRESHOLD], work, phase="update",
        module="freshness", category="update", options={"function": "end epoch", "point": "accuracy/update"},
    )  # fmt: skip


def _bound(size: Size) -> int | Column:
    assert not isinstance(size, Decision), "rows that may travel are known when the program is planned"
    return size
