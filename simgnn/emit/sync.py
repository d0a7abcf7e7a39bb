"""Rows that travel between the copies of a vertex: what a communication asks for, and how it is carried out plainly.

A communication says *which* rows travel; freshness and codec say *how*: each sync is handed to :class:`Expand`, which
emits its ops. Exact, unencoded transfers are what :func:`emit_plainly` emits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Route, Size

Phase = Literal["forward", "backward", "setup"]
LANDING_FORMS: Mapping[str, Form | None] = {"put": Form.PUT, "add": None, "max": Form.GREATER}
"""How rows land -> form of the op that lands them."""


@dataclass(frozen=True)
class Stage:
    """One exchange of a sync: rows of ``source`` travel along ``route`` and arrive in ``target``.

    ``role``: "publish" carries a vertex's row from its owner to the copies, "fold" carries the copies' parts to the
    owner. ``name``: part of the names of its ops ("" where a sync has one stage). ``leaving``, ``arriving``: rows that
    a rank sends and receives.

    ``picked``: the route along which rows of ``source`` are gathered into the buffer ``packed``; None: ``source`` lies
    in the order of the wire already, and is ``packed`` itself. ``landing``: "store", what arrives is the whole of
    ``target``; "put", "add" and "max", it arrives in the buffer ``arrived`` and replaces, is added to, or where greater
    replaces elements of, the rows of ``target`` that the route ``landed`` names. The order of the wire is that of the
    route's lists, peers ascending.
    ``kept``: a stored target lives for the whole run. ``distinct``: rows of ``source`` that travel, each counted once,
    whoever needs them (None: not known); ``masters``: the route that names all of these, where ``route`` names a part.
    ``by_replicas``: rows of each pair whose vertices have so many replicas, by their number (empty: not known); of a
    hop between hosts, by the number of hosts that they lie on.
    """

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
        """Whether owner and copies hold the rows in one buffer, in which what is published is put."""
        return self.role == "publish" and self.landing == "put" and self.source == self.target


@dataclass(frozen=True)
class Sync:
    """A sync point in one direction: its stages follow one another; each rank ends with the rows that it needs.

    ``point`` names it for states and decisions ("2/forward"); ``width``: elements of a row. ``renewed``: a buffer, bool
    [rows, 1], of the rows that are relative to something else than before, so that what was sent of them is void.
    ``divisors``: elements at the end of a row that others of it are divided by, so that each matters by itself.
    """

    templates: tuple[str, ...]
    layer: int
    phase: Phase
    width: int
    stages: tuple[Stage, ...]
    renewed: str | None = None
    divisors: int = 0

    @property
    def test(self) -> dict[str, int]:
        """Options of ops that test whether rows moved."""
        return {"divisors": self.divisors} if self.divisors else {}

    @property
    def point(self) -> str:
        """Name of the sync point."""
        return f"{self.layer}/{self.phase}"

    def op(self, stage: Stage, part: str) -> str:
        """Name of an op of a stage."""
        return "/".join(word for word in (self.phase, str(self.layer), stage.name, part) if word)


@dataclass(frozen=True)
class Reference:
    """What the sums of a layer are relative to, the same on all copies of a row: ``rows`` rows of ``width`` elements in
    ``buffer``, made anew in each turn."""

    layer: int
    buffer: str
    rows: Size
    width: int


class Expand(Protocol):
    """How freshness and codec carry out what a communication of rows asks for."""

    def __call__(self, sync: Sync) -> None:
        """Emit the ops of a sync."""
        ...

    def settle(self, templates: tuple[str, ...], reference: Reference) -> str | None:
        """Let freshness go on with an earlier reference, where sums of several turns must add up. The buffer of rows
        that it renewed, see :class:`Sync`; None: it keeps nothing."""
        ...


def emit_plainly(builder: ProgramBuilder, sync: Sync) -> None:
    """Every row of every stage, as it is: pack, exchange, put or add."""
    for stage in sync.stages:
        pack(builder, sync, stage)
        receive = receiving_buffer(builder, sync, stage)
        builder.exchange(
            sync.templates, sync.op(stage, "exchange"), stage.route, [stage.packed], receive,
            sync.width * builder.item_bytes, layer=sync.layer, phase=sync.phase,
        )  # fmt: skip
        land(builder, sync, stage)


def pack(builder: ProgramBuilder, sync: Sync, stage: Stage) -> None:
    """Gather the rows that leave, unless they lie in the order of the wire."""
    if stage.picked is None:
        return
    builder.buffer(stage.packed, stage.leaving, sync.width)
    work = (Work("gather", {"rows": stage.leaving, "width": sync.width, "item_bytes": builder.item_bytes}),)
    builder.compute(
        sync.templates, sync.op(stage, "pack"), OpKind.COPY, [stage.source], [stage.packed], work,
        layer=sync.layer, phase=sync.phase, route=stage.picked, category="comm_overhead",
    )  # fmt: skip
    builder.keep_rows_of(stage.picked, stage.leaving)


def receiving_buffer(builder: ProgramBuilder, sync: Sync, stage: Stage) -> str:
    """The buffer that decoded rows arrive in, added to the builder: the target where they are stored."""
    if stage.landing == "store":
        return builder.buffer(stage.target, stage.arriving, sync.width, persistent=stage.kept)
    assert stage.arrived is not None, "rows that are put or added arrive in a buffer of their own"
    return builder.buffer(stage.arrived, stage.arriving, sync.width)


def land(builder: ProgramBuilder, sync: Sync, stage: Stage) -> None:
    """Put or add what has arrived; rows that are stored have landed."""
    if stage.landing == "store" or stage.arrived is None:
        return
    primitive, kind = ("gather", OpKind.COPY) if stage.landing == "put" else ("scatter_add", OpKind.ADD)
    work = (Work(primitive, {"rows": stage.arriving, "width": sync.width, "item_bytes": builder.item_bytes}),)
    builder.compute(
        sync.templates, sync.op(stage, stage.landing), kind, [stage.arrived, stage.target], [stage.target], work,
        layer=sync.layer, phase=sync.phase, route=stage.landed, category="comm_overhead",
        form=LANDING_FORMS[stage.landing],
    )  # fmt: skip
    if stage.landed is not None:
        builder.keep_rows_of(stage.landed, stage.leaving if stage.landed == stage.route else stage.arriving)
