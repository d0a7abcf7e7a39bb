"""Rows that travel between the copies of a vertex: what a communication requests, and ops that send all of them.

A communication decides *which* rows travel; freshness and codec decide *how*: each sync is passed to :class:`Expand`,
which emits its ops. :func:`emit_plainly` sends rows as they are, :func:`emit_encoded` sends them encoded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from simgnn.emit.builder import ProgramBuilder
from simgnn.policy import Codec, DecodeRows, EncodeRows, row_bytes_of
from simgnn.program.calendar import EVALUATE, templates_of, templates_without
from simgnn.program.kinds import Form, OpKind
from simgnn.program.sizes import Route, Scratch, Size, reverse_of

Phase = Literal["forward", "backward", "setup"]
LANDING_FORMS: Mapping[str, Form | None] = {"put": Form.PUT, "add": None, "max": Form.GREATER}
"""How rows land -> form of the op that lands them."""
ENCODED = ("coded", "arrived", "news")
"""Buffers of encoded rows, one for each form of the codec."""


@dataclass(frozen=True)
class Stage:
    """One exchange of a sync: rows of ``source`` travel along ``route`` and arrive in ``target``.

    ``role``: "publish" carries a vertex's row from its owner to the copies, "fold" carries the copies' parts to the
    owner. ``name``: part of the names of its ops ("" if a sync has one stage). ``leaving``, ``arriving``: rows that a
    rank sends and receives.

    ``picked``: the route along which rows of ``source`` are gathered into the buffer ``packed``; None: ``source`` is in
    wire order already, and is ``packed`` itself. Wire order is that of the route's lists, peers ascending. ``landing``:
    "store", the arriving rows are the whole ``target``; with "put", "add" and "max" they arrive in the buffer
    ``arrived`` and replace, are added to, or replace smaller elements of, the rows of ``target`` that the route
    ``landed`` names. ``kept``: a stored target lives for the whole run.

    ``distinct``: rows of ``source`` that travel, each counted once however many ranks need it (None: not known);
    ``masters``: the route that names all of these, where ``route`` names a part. ``by_replicas``: rows of each pair by
    the number of replicas of their vertex (empty: not known); for a hop between hosts, by the number of hosts of the
    vertex."""

    role: Literal["publish", "fold"]
    route: str
    source: str
    target: str
    leaving: Size
    arriving: Size
    packed: str
    landing: Literal["store", "put", "add", "max"]
    picked: str | None = None
    arrived: str | None = None
    landed: str | None = None
    name: str = ""
    kept: bool = False
    distinct: Size | None = None
    masters: str | None = None
    by_replicas: Mapping[int, Route] = field(default_factory=dict)

    @property
    def in_place(self) -> bool:
        """Whether owner and copies hold the rows in one buffer, into which published rows are put."""
        return self.role == "publish" and self.landing == "put" and self.source == self.target


@dataclass(frozen=True)
class Sync:
    """A transfer between copies of rows: stages run in order; afterwards each rank has the rows that it needs.

    ``point`` names it in states and decisions ("2/forward"); ``width``: elements of a row. ``renewed``: a buffer, bool
    [rows, 1], of the rows whose reference changed, which makes earlier sent values of them invalid. ``divisors``: how
    many last elements of a row divide others of it; each of them is tested by itself. ``linear``: sums of these rows
    are linear in them, which attention's are not. ``held``: the buffer in which receivers hold the rows of all turns
    already, so that nothing travels. ``form``: which form of the codec encodes rows in these templates ("": it has
    one); rows of each form arrive in buffers of their own."""

    templates: tuple[str, ...]
    layer: int
    phase: Phase
    width: int
    stages: tuple[Stage, ...]
    renewed: str | None = None
    divisors: int = 0
    linear: bool = True
    held: str | None = None
    form: str = ""

    def only(self, name: str) -> "Sync":
        """Return the sync restricted to epochs with a name (:class:`~simgnn.policy.Epochs`). It may have no template,
        and then no op of it is emitted."""
        return replace(self, templates=templates_of(self.templates, name))

    def without(self, name: str) -> "Sync":
        """Return the sync restricted to all other epochs, and to evaluations if it is for these."""
        return replace(self, templates=templates_without(self.templates, name))

    @property
    def test(self) -> dict[str, int]:
        """The options of ops that test whether rows moved."""
        return {"divisors": self.divisors} if self.divisors else {}

    @property
    def point(self) -> str:
        return f"{self.layer}/{self.phase}"

    @property
    def overhead(self) -> dict[str, Any]:
        """The fields of ops that prepare rows for a transfer or process those that arrived."""
        return {"layer": self.layer, "phase": self.phase, "category": "comm_overhead"}

    def op(self, stage: Stage, part: str) -> str:
        """Return the name of the op that does ``part`` of a stage."""
        return "/".join(word for word in (self.phase, str(self.layer), stage.name, part) if word)


@dataclass(frozen=True)
class Reference:
    """The reference that a layer's sums are relative to, the same on all copies of a row: ``rows`` rows of ``width``
    elements in ``buffer``, computed in each epoch."""

    layer: int
    buffer: str
    rows: Size
    width: int


class Expand(Protocol):
    """How freshness and codec carry out the syncs that a communication requests."""

    def __call__(self, sync: Sync) -> None:
        """Emit the ops of a sync."""

    def settle(self, templates: tuple[str, ...], reference: Reference) -> str | None:
        """Let freshness continue with an earlier reference, where sums of several epochs must add up. Returns the
        buffer of renewed rows, see :class:`Sync`; None: nothing is kept between epochs."""


def emit_plainly(builder: ProgramBuilder, sync: Sync) -> None:
    """Emit a sync that sends every row of every stage unencoded: pack, exchange, put or add."""
    for stage in sync.stages:
        carry(builder, sync, stage, None)
        land(builder, sync, stage)


def carry(
    builder: ProgramBuilder, sync: Sync, stage: Stage, codec: Codec | None, into: str | None = None,
    version: str | None = None,
) -> None:  # fmt: skip
    """Emit the way of a stage's rows to their receivers: pack, encode, exchange, decode (``codec`` None: rows travel as
    they are). They arrive in the buffer ``into`` (None: in that of the stage), from where nothing lands them yet.
    ``version``: see :meth:`ProgramBuilder.exchange`."""
    if not sync.templates:
        return
    pack(builder, sync, stage)
    if codec is not None:
        codec.emit_beside(builder, sync, stage)
    fields: dict[str, Any] = {"layer": sync.layer, "phase": sync.phase, "version": version}
    name = sync.op(stage, "exchange")
    if codec is None:
        receive, row_bytes = into or receiving_buffer(builder, sync, stage), sync.width * builder.item_bytes
        builder.exchange(sync.templates, name, stage.route, [stage.packed], receive, row_bytes, **fields)
        return
    receive = into or receiving_buffer(builder, sync, stage)
    if codec.emit_transfer(builder, sync, stage, receive, version):
        return
    row_bytes = row_bytes_of(codec, sync.width, builder.dtype)
    coded = builder.buffer(buffer_name("coded", sync, stage), stage.leaving, row_bytes, "uint8")
    arrived = builder.buffer(buffer_name("arrived", sync, stage), stage.arriving, row_bytes, "uint8")
    shape = (stage.leaving, sync.width, builder.dtype)
    builder.compute(
        sync.templates, sync.op(stage, "encode"), OpKind.ENCODE, [stage.packed, *builder.listed(stage.picked)],
        [coded], codec.encode_work(*shape), EncodeRows, route=stage.route, module="codec",
        scratch=Scratch(codec.encode_scratch(*shape)), **sync.overhead,
    )  # fmt: skip
    builder.exchange(sync.templates, name, stage.route, [coded], arrived, row_bytes, **fields)
    _decode(builder, sync, codec, stage.arriving, sync.op(stage, "decode"), arrived, receive)


def pack(builder: ProgramBuilder, sync: Sync, stage: Stage) -> None:
    """Emit the gather of the rows to send, unless they are in wire order."""
    if stage.picked is None:
        return
    builder.buffer(stage.packed, stage.leaving, sync.width)
    builder.compute(
        sync.templates, sync.op(stage, "pack"), OpKind.COPY,
        [stage.source, *builder.listed(stage.picked)], [stage.packed],
        (builder.row_work("gather", stage.leaving, sync.width),), route=stage.picked, **sync.overhead,
    )  # fmt: skip
    builder.keep_rows_of(stage.picked, stage.leaving)


def receiving_buffer(builder: ProgramBuilder, sync: Sync, stage: Stage) -> str:
    """Add and return the buffer that decoded rows arrive in: the target itself if the rows are stored."""
    if stage.landing == "store":
        return builder.buffer(stage.target, stage.arriving, sync.width, persistent=stage.kept)
    assert stage.arrived is not None, "rows that are put or added arrive in a buffer of their own"
    return builder.buffer(stage.arrived, stage.arriving, sync.width)


def land(builder: ProgramBuilder, sync: Sync, stage: Stage) -> None:
    """Emit the op that puts or adds arrived rows; rows that arrive in the target itself need none."""
    if stage.landing == "store" or stage.arrived is None or not sync.templates:
        return
    primitive, kind = ("gather", OpKind.COPY) if stage.landing == "put" else ("scatter_add", OpKind.ADD)
    work = (builder.row_work(primitive, stage.arriving, sync.width),)
    builder.compute(
        sync.templates, sync.op(stage, stage.landing), kind,
        [stage.arrived, stage.target, *builder.listed(stage.landed)], [stage.target], work,
        route=stage.landed, form=LANDING_FORMS[stage.landing], **sync.overhead,
    )  # fmt: skip
    if stage.landed is not None:
        builder.keep_rows_of(stage.landed, stage.leaving if stage.landed == stage.route else stage.arriving)


def training_part(builder: ProgramBuilder, sync: Sync) -> Sync:
    """Return the sync restricted to training; emit it unencoded for evaluation, if evaluation needs it."""
    if EVALUATE in sync.templates:
        emit_plainly(builder, replace(sync, templates=(EVALUATE,)))
    return replace(sync, templates=tuple(name for name in sync.templates if name != EVALUATE))


def emit_encoded(builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
    """Emit a sync that encodes every row: pack, encode, exchange, decode, put or add. Evaluations are exact."""
    training = training_part(builder, sync)
    for stage in training.stages:
        carry(builder, training, stage, codec)
        land(builder, training, stage)
        if stage.in_place:  # owners go on with what their copies decode, so that all hold the same rows
            coded = buffer_name("coded", training, stage)
            taken = builder.buffer(buffer_name("taken", training, stage), stage.leaving, sync.width)
            _decode(builder, training, codec, stage.leaving, training.op(stage, "decode_own"), coded, taken)
            builder.compute(
                training.templates, training.op(stage, "put_own"), OpKind.COPY, [taken, stage.target], [stage.target],
                (builder.row_work("gather", stage.leaving, sync.width),), route=reverse_of(stage.route), form=Form.PUT,
                **sync.overhead,
            )  # fmt: skip
            builder.keep_rows_of(reverse_of(stage.route), stage.arriving)


def _decode(builder: ProgramBuilder, sync: Sync, codec: Codec, rows: Size, name: str, coded: str, target: str) -> None:
    work = codec.decode_work(rows, sync.width, builder.dtype)
    builder.compute(
        sync.templates, name, OpKind.DECODE, [coded], [target], work, DecodeRows, module="codec", **sync.overhead
    )


def buffer_name(what: str, sync: Sync, stage: Stage) -> str:
    """Return the name of a buffer that belongs to one stage."""
    form = sync.form if what in ENCODED else ""
    return "/".join(word for word in (what, sync.point, stage.name, form) if word)
