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
        kept = builder.buffer(self.name("kept"), stage.arriving, sync.width, persistent=True)
        self.send_moved("encode")
        receive = receiving_buffer(builder, sync, stage)
        reads = [self.name("arrived"), self.name("mask_in"), kept]
        self.compute(
            "decode", OpKind.DECODE, reads, [receive, kept], (*self.landing_work(), self.work("copy", stage.arriving))
        )
        land(builder, sync, stage)

    def send_moved(self, face: str) -> None:
        """Rows that moved from the cache ``sent`` are sent; what of them, says the policy's ``face``."""
        builder, stage = self.builder, self.stage
        pack(builder, self.sync, stage)
        builder.buffer(THRESHOLD, 1, 3, "float64", persistent=True)
        sent = builder.buffer(self.name("sent"), stage.leaving, self.sync.width, persistent=True)
        chosen = builder.buffer(self.name("chosen"), self.leaving, 1, "int64")
        select = (self.work("select", stage.leaving),)
        mask = self.add_masks()
        self.compute("select", OpKind.SELECT, [stage.packed, sent, THRESHOLD], [mask, chosen], select)
        coded = self.add_coded()
        self.compute(
            "encode", OpKind.ENCODE, [stage.packed, chosen, sent], [coded, sent], self.coding_work(self.leaving), face
        )
        self.exchange()

    def add_masks(self) -> str:
        """The buffers of the masks that leave and arrive; the name of the first."""
        masks = add_mask_route(self.builder, self.stage.route)
        self.builder.buffer(self.name("mask_in"), Column(f"{masks}/arriving"), 1, "uint8")
        return self.builder.buffer(self.name("mask"), Column(f"{masks}/leaving"), 1, "uint8")

    def add_coded(self) -> str:
        """The buffers of what leaves and arrives on the wire; the name of the first."""
        columns, dtype = (self.row_bytes, "uint8") if self.codec.encodes else (self.sync.width, self.builder.dtype)
        self.builder.buffer(self.name("arrived"), self.arriving, columns, dtype)
        return self.builder.buffer(self.name("coded"), self.leaving, columns, dtype)

    def exchange(self) -> None:
        """Masks, then the rows that they name."""
        masks = add_mask_route(self.builder, self.stage.route)
        self._exchange("mask", masks, [self.name("mask")], self.name("mask_in"), 1, control=True)
        reads = [self.name("coded"), self.name("mask"), self.name("mask_in")]
        self._exchange(
            "exchange", self.stage.route, reads, self.name("arrived"), self.row_bytes,
            decision=self.leaving, announced=True,
        )  # fmt: skip

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on the wire."""
        return self.codec.row_bytes(self.sync.width, self.builder.dtype)

    @cached_property
    def leaving(self) -> Decision:
        """Rows that a rank sends."""
        return Decision(self.decision("rows"), _bound(self.stage.leaving))

    @cached_property
    def arriving(self) -> Decision:
        """Rows that a rank receives."""
        return Decision(self.decision("arrived"), _bound(self.stage.arriving))

    def coding_work(self, rows: Size) -> tuple[Work, ...]:
        """``rows`` rows are picked and put into the cache; encoded, it is their difference from the cached ones,
        decoded as receivers will."""
        moved = (self.work("gather", rows), self.work("gather", rows))
        if not self.codec.encodes:
            return moved
        change, shape = self.work("elementwise", rows, passes=3), (rows, self.sync.width, self.builder.dtype)
        coding = (*self.codec.encode_work(*shape), *self.codec.decode_work(*shape))
        return (*moved, self.work("gather", rows), change, *coding, change)

    def landing_work(self) -> tuple[Work, ...]:
        """Arrived rows are put into the cache, or added where they are differences."""
        rows = self.arriving
        coded = self.codec.decode_work(rows, self.sync.width, self.builder.dtype) if self.codec.encodes else ()
        added = (self.work("gather", rows), self.work("elementwise", rows, passes=3)) if self.codec.encodes else ()
        return (*coded, *added, self.work("gather", rows))

    def work(self, primitive: str, rows: Size, **sizes: int) -> Work:
        """Work on rows of the sync's width."""
        width, item = self.sync.width, self.builder.item_bytes
        return Work(primitive, {"rows": rows, "width": width, **sizes, "item_bytes": item})

    def compute(
        self, part: str, kind: OpKind, reads: list[str], writes: list[str], work: tuple[Work, ...],
        face: str | None = None, **options: str,
    ) -> None:  # fmt: skip
        """Emit an op of the policy: its ``face``, by default that of the op's kind."""
        called = {} if face is None or face == kind.value else {"face": face}
        self.builder.compute(
            self.sync.templates, self.sync.op(self.stage, part), kind, reads, writes, work, layer=self.sync.layer,
            phase=self.sync.phase, route=self.stage.route, module="freshness", category="comm_overhead",
            options={**called, **options},
        )  # fmt: skip

    def _exchange(self, part: str, route: str, reads: list[str], write: str, row_bytes: int, **fields: Any) -> None:
        self.builder.exchange(
            self.sync.templates, self.sync.op(self.stage, part), route, reads, write, row_bytes,
            layer=self.sync.layer, phase=self.sync.phase, **fields,
        )  # fmt: skip

    def name(self, what: str) -> str:
        """Name of a buffer of the stage."""
        return buffer_name(what, self.sync, self.stage)

    def decision(self, name: str) -> str:
        """Name of a decision of the stage."""
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
