"""The ops of a transfer in which both ends keep the rows as last sent, so that only chosen rows travel."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.caches.masks import COUNT_BYTES, ID_BYTES, add_count_route, add_mask_route
from simgnn.emit.caches.row_cache import (
    ChoosesRows,
    DecodeMoved,
    EncodeMoved,
    EndEpoch,
    ListRows,
    MaskRows,
    SelectMoved,
)
from simgnn.emit.sync import Stage, Sync, buffer_name, land, pack, receiving_buffer
from simgnn.policy import Action, Codec, row_bytes_of
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Column, Decision, Scratch, Size, Terms, rows_of

STATE = "threshold"
"""Buffer of the policy's state, the same on all ranks: float64, its numbers, then whether an epoch has ended."""


@dataclass(frozen=True)
class CachedStage:
    """The ops of one stage of a sync: select, encode, exchange of row names, exchange of rows, decode into the cache.

    Buffers for the whole run: ``sent`` and ``kept``, the rows as last sent, on both ends. A mask has a bit for each row
    that may travel to a peer, in wire order; how many rows travel is a :class:`Decision`. With index form "ids", counts
    and positions travel instead of masks, and receivers rebuild the masks from them."""

    builder: ProgramBuilder
    sync: Sync
    stage: Stage
    codec: Codec
    policy: ChoosesRows

    def emit(self) -> None:
        self.add_kept()
        self.send_moved(EncodeMoved, 0)
        self.land_moved()

    def land_moved(self) -> None:
        """Decode the arrived rows into the cache ``kept``, and put them into their target rows."""
        receive, kept = receiving_buffer(self.builder, self.sync, self.stage), self.add_kept()
        reads = [self.name("arrived"), self.name("mask_in"), kept]
        work = (*self.landing_work(), self.work("copy", self.stage.arriving))
        self.compute("decode", OpKind.DECODE, DecodeMoved, reads, [receive, kept], work, self.landing_copies())
        land(self.builder, self.sync, self.stage)

    def reset(
        self, who: str, action: type[Action[Any]], renewed: str, states: list[str], rows: Size, **options: str | int
    ) -> None:
        """Zero the rows of ``states`` that the buffer ``renewed`` marks; ``rows``: the number of rows of a state."""
        work = tuple(self.work("elementwise", rows, passes=1) for _ in states)
        self.compute(f"reset/{who}", OpKind.SELECT, action, [renewed, *states], states, work, (), **options)

    def send_moved(self, encoding: type[Action[Any]], plain: int) -> None:
        """Send the rows that changed enough since they were last sent; the action ``encoding`` encodes them. ``plain``:
        see :meth:`coding_copies`."""
        builder, stage = self.builder, self.stage
        pack(builder, self.sync, stage)
        sent = self.add_sent()
        chosen = builder.buffer(self.name("chosen"), self.leaving, 1, "int64")
        select = (self.work("select", stage.leaving),)
        mask = self.add_masks()
        reads = [stage.packed, sent, *add_state(builder, self.policy)]
        self.compute("select", OpKind.SELECT, SelectMoved, reads, [mask, chosen], select, (), **self.sync.test)
        coded = self.add_coded()
        self.compute(
            "encode", OpKind.ENCODE, encoding, [stage.packed, chosen, sent], [coded, sent],
            self.coding_work(self.leaving, self.codec.keeps_exact_rows), self.coding_copies(self.leaving, plain),
        )  # fmt: skip
        self.exchange()

    def add_sent(self) -> str:
        """Add the buffer of the rows as this rank last sent them."""
        return self.builder.buffer(self.name("sent"), self.stage.leaving, self.sync.width, persistent=True)

    def add_kept(self) -> str:
        """Add the buffer of the rows as this rank last received them."""
        return self.builder.buffer(self.name("kept"), self.stage.arriving, self.sync.width, persistent=True)

    def add_masks(self) -> str:
        """Add the buffers of sent and received masks; returns the name of the sent one."""
        masks = add_mask_route(self.builder, self.stage.route)
        self.builder.buffer(self.name("mask_in"), Column(f"{masks}/arriving"), 1, "uint8")
        return self.builder.buffer(self.name("mask"), Column(f"{masks}/leaving"), 1, "uint8")

    def add_coded(self) -> str:
        """Add the buffers of rows as they travel (encoded, if there is a codec); returns the name of the sent one."""
        columns, dtype = (self.row_bytes, "uint8") if self.codec.encodes else (self.sync.width, self.builder.dtype)
        self.builder.buffer(self.name("arrived"), self.arriving, columns, dtype)
        return self.builder.buffer(self.name("coded"), self.leaving, columns, dtype)

    def exchange(self) -> None:
        """Exchange the masks or ids of the rows that travel, then these rows."""
        if self.policy.index_form() == "bitmap":
            masks = add_mask_route(self.builder, self.stage.route)
            self._exchange("mask", masks, [self.name("mask")], self.name("mask_in"), 1, control=True)
        else:
            self._exchange_ids()
        reads = [self.name("coded"), self.name("mask"), self.name("mask_in")]
        self._exchange(
            "exchange", self.stage.route, reads, self.name("arrived"), self.row_bytes,
            decision=self.leaving, announced=True,
        )  # fmt: skip

    def _exchange_ids(self) -> None:
        """Exchange how many rows each pair of ranks sends, then their positions; pairs without rows send nothing."""
        builder, stage = self.builder, self.stage
        pairs = add_count_route(builder, stage.route)
        counts = builder.buffer(self.name("counts"), Column(f"{pairs}/leaving"), 1, "int64")
        ids = builder.buffer(self.name("ids"), self.leaving, 1, "int32")
        counts_in = builder.buffer(self.name("counts_in"), Column(f"{pairs}/arriving"), 1, "int64")
        ids_in = builder.buffer(self.name("ids_in"), self.arriving, 1, "int32")
        self.compute(
            "ids/pack", OpKind.ENCODE, ListRows, [self.name("mask")], [counts, ids], _listing(stage.leaving),
            rows_of(stage.leaving, ID_BYTES),
        )  # fmt: skip
        self._exchange("count", pairs, [counts], counts_in, COUNT_BYTES, control=True)
        self._exchange(
            "ids", stage.route, [ids, counts, counts_in], ids_in, ID_BYTES,
            control=True, decision=self.leaving, announced=True,
        )  # fmt: skip
        self.compute(
            "ids/unpack", OpKind.DECODE, MaskRows, [ids_in, counts_in], [self.name("mask_in")],
            _listing(stage.arriving),
        )  # fmt: skip

    @property
    def row_bytes(self) -> int:
        return row_bytes_of(self.codec, self.sync.width, self.builder.dtype)

    @cached_property
    def leaving(self) -> Decision:
        """The decided number of rows that a rank sends."""
        return Decision(self.decision("rows"), _bound(self.stage.leaving))

    @cached_property
    def arriving(self) -> Decision:
        """The decided number of rows that a rank receives."""
        return Decision(self.decision("arrived"), _bound(self.stage.arriving))

    def coding_work(self, rows: Size, exact: bool = False) -> tuple[Work, ...]:
        """The work of gathering rows and updating the cache. A codec encodes their difference from the cached rows, and
        decodes it as receivers will, unless the cache keeps ``exact`` rows."""
        moved = (self.work("gather", rows), self.work("gather", rows))
        if not self.codec.encodes:
            return moved
        change, shape = self.work("elementwise", rows, passes=3), (rows, self.sync.width, self.builder.dtype)
        coding = (*moved, self.work("gather", rows), change, *self.codec.encode_work(*shape))
        return coding if exact else (*coding, *self.codec.decode_work(*shape), change)

    def landing_work(self) -> tuple[Work, ...]:
        """The work of putting arrived rows into the cache, or of adding them if they are differences."""
        rows, put = self.arriving, self.work("gather", self.arriving)
        if not self.codec.encodes:
            return (put,)
        decoding = self.codec.decode_work(rows, self.sync.width, self.builder.dtype)
        return (*decoding, self.work("gather", rows), self.work("elementwise", rows, passes=3), put)

    def copies(self, rows: Size, number: int) -> Terms:
        """The memory of ``number`` copies of rows."""
        return rows_of(rows, number * self.sync.width * self.builder.item_bytes)

    def coding_copies(self, rows: Size, plain: int) -> Terms:
        """The memory of the copies in :meth:`coding_work`: two for a difference. ``plain``: the number of copies
        without a codec, one where rows are gathered before they are put in wire order."""
        if not self.codec.encodes:
            return self.copies(rows, plain)
        return (*self.copies(rows, 2), *self.codec.encode_scratch(rows, self.sync.width, self.builder.dtype))

    def landing_copies(self, number: int = 1) -> Terms:
        """The memory of the copies in :meth:`landing_work`: differences are decoded beside rows of the cache."""
        return self.copies(self.arriving, number) if self.codec.encodes else ()

    def work(self, primitive: str, rows: Size, **sizes: int) -> Work:
        return self.builder.row_work(primitive, rows, self.sync.width, **sizes)

    def compute(
        self, part: str, kind: OpKind, action: type[Action[Any]], reads: list[str], writes: list[str],
        work: tuple[Work, ...], scratch: Terms = (), **options: str | int,
    ) -> None:  # fmt: skip
        """Emit an op that runs an action of the policy."""
        self.builder.compute(
            self.sync.templates, self.sync.op(self.stage, part), kind, reads, writes, work, action,
            route=self.stage.route, module=self.policy.slot, options=options, scratch=Scratch(scratch),
            **self.sync.overhead,
        )  # fmt: skip

    def _exchange(self, part: str, route: str, reads: list[str], write: str, row_bytes: int, **fields: Any) -> None:
        self.builder.exchange(
            self.sync.templates, self.sync.op(self.stage, part), route, reads, write, row_bytes,
            layer=self.sync.layer, phase=self.sync.phase, **fields,
        )  # fmt: skip

    def name(self, what: str) -> str:
        return buffer_name(what, self.sync, self.stage)

    def decision(self, name: str) -> str:
        return f"{buffer_name('sync', self.sync, self.stage)}/{name}"


def add_state(builder: ProgramBuilder, policy: ChoosesRows) -> list[str]:
    """Add the buffer of the policy's state and return its name in a list, which is empty for a policy without state."""
    if not policy.state_width:
        return []
    return [builder.buffer(STATE, 1, policy.state_width + 1, "float64", persistent=True)]


def emit_state_step(builder: ProgramBuilder, policy: ChoosesRows, templates: tuple[str, ...]) -> None:
    """Emit the update of the policy's state at the end of an epoch, unless no sync reads the state."""
    if STATE not in builder.buffers:
        return
    work = (Work("elementwise", {"rows": 1, "width": policy.state_width + 1, "passes": 2, "item_bytes": 8}),)
    builder.compute(
        templates, "update/threshold", OpKind.ELEMENTWISE, ["metrics", STATE], [STATE], work, EndEpoch, phase="update",
        module=policy.slot, category="update", options={"point": "accuracy/update"},
    )  # fmt: skip


def _bound(size: Size) -> int | Column:
    assert not isinstance(size, Decision), "rows that may travel are known when the program is planned"
    return size


def _listing(rows: Size) -> tuple[Work, ...]:
    """The work of converting between masks and positions."""
    return (Work("gather", {"rows": rows, "width": 1, "item_bytes": ID_BYTES}),)
