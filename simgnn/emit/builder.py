"""Collects the parts of a program while a planner writes it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.model.costs import Piece
from simgnn.policy import Action, Schedule
from simgnn.program.calendar import Calendar
from simgnn.program.dependencies import derive_dependencies
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import (
    HOST,
    ITEM_BYTES,
    WORLD,
    Access,
    Buffer,
    Dependency,
    Group,
    Nature,
    Op,
    Stream,
    Transfer,
    Work,
)
from simgnn.program.program import Program, Publication, Template
from simgnn.program.sizes import Column, Decision, IntArray, Route, Scratch, Size, SizeTable, Term, reverse_of

Named = str | Access
"""A buffer that an op touches: by its name, all of its copy of this turn; or an access to some of its rows."""


class ProgramBuilder:
    """Collects buffers, columns, routes and ops by name, and builds a program from them.

    An op is emitted once and put into every named template; program order is the order of emission. An op names its
    purpose (:class:`Nature`), for which ``schedule`` chooses a stream (None: the default stream). ``natures``: those
    that the plan uses. ``late``: rows that travel are used in a later epoch (:class:`~simgnn.policy.FreshnessTraits`).
    """

    def __init__(
        self, name: str, hosts: Sequence[int], dtype: str, schedule: Schedule | None = None, late: bool = False
    ) -> None:
        self.name = name
        self.schedule, self.late = schedule, late
        self.hosts = tuple(int(host) for host in hosts)
        self.dtype = dtype
        self.item_bytes = ITEM_BYTES[dtype]
        self.buffers: dict[str, Buffer] = {}
        self.columns: dict[str, IntArray] = {}
        self.routes: dict[str, Route] = {}
        self.forward_routes: dict[str, str] = {}
        self.natures: list[Nature] = [Nature.COMPUTE, Nature.COMMUNICATION]
        self.templates: dict[str, list[Op]] = {}
        self.publications: list[Publication] = []
        self.kept: dict[str, Scratch] = {}
        self._one_by_one = False

    @property
    def sums_own_first(self) -> bool:
        """Whether a layer sums its rank's own rows in an op of its own, before halo rows arrive. Late rows are there
        when a layer begins."""
        return self.schedule is not None and self.schedule.sums_own_first and not self.late

    @property
    def queues_copies(self) -> bool:
        """Whether rows for shared memory of a host leave the device and are merged there in two ops."""
        return self.schedule is not None and self.schedule.queues_copies

    def column(self, name: str, values: IntArray) -> Column:
        """Add a column [P], [P, steps] or [P, epochs, steps]."""
        self.columns[name] = np.asarray(values, dtype=np.int64)
        return Column(name)

    def route(self, name: str, route: Route) -> str:
        """Add a route and its reverse, see :func:`reverse_of`."""
        self.routes[name] = route
        self.routes[reverse_of(name)] = route.reversed()
        self.forward_routes[reverse_of(name)] = name
        return name

    def part(self, name: str, whole: str, chosen: NDArray[np.bool_]) -> str:
        """Add a route of some pairs of the route ``whole``: those for which ``chosen``, bool [sender, receiver], is
        set. Adds the columns ``NAME/leaving`` and ``NAME/arriving``, rows of each rank."""
        route, ranks = self.routes[whole], len(self.hosts)
        kept = chosen[route.source, route.target]
        source, target, rows = route.source[kept], route.target[kept], route.rows[kept]
        for column, ends in (("leaving", source), ("arriving", target)):
            self.column(f"{name}/{column}", np.bincount(ends, rows, minlength=ranks))
        return self.route(name, Route(source, target, rows, whole))

    def rows_of(self, name: str, whole: str, chosen: NDArray[np.bool_], slots: IntArray | None = None) -> str:
        """Add a route of some rows of the route ``whole``: those for which ``chosen``, bool [rows, pair after pair], is
        set. ``slots`` int64 [rows]: see :class:`Route`. Adds columns as :meth:`part` does."""
        route, ranks, back = self.routes[whole], len(self.hosts), reverse_of(whole)
        turned = None if slots is None else route.turned(slots)
        self.routes[name] = found = route.choose(whole, chosen, slots)
        self.routes[reverse_of(name)] = self.routes[back].choose(back, route.turned(chosen), turned)
        self.forward_routes[reverse_of(name)] = name
        for column, ends in (("leaving", found.source), ("arriving", found.target)):
            self.column(f"{name}/{column}", np.bincount(ends, found.rows, minlength=ranks))
        return name

    def buffer(self, name: str, rows: Size, width: int, dtype: str | None = None, **fields: Any) -> str:
        """Add a buffer, in the training dtype unless ``dtype`` is given; ``fields`` are those of :class:`Buffer`."""
        self.buffers[name] = Buffer(name, rows, width, dtype or self.dtype, **fields)
        return name

    def keep(self, name: str, *terms: tuple[Size, int]) -> None:
        """Declare memory that the executor fills once and keeps: the sum of (rows, bytes of a row)."""
        self.kept[name] = Scratch(tuple(Term(rows, row_bytes) for rows, row_bytes in terms))

    def listed(self, route: str | None) -> list[str]:
        """Return the buffer of a route's local rows if these differ by turn, for ops that read them; else nothing."""
        found = self.routes[route].listed if route in self.routes else ""
        return [found] if found else []

    def keep_rows_of(self, route: str, rows: Size) -> None:
        """Declare the memory of a route's list of local rows (int64): ``rows`` on each rank. A list that differs by
        turn is a buffer of the program."""
        if self.listed(route):
            return
        self.keep(f"rows of route {route}", (rows, ITEM_BYTES["int64"]))

    def work(self, pieces: Sequence[Piece[Size]], locality: str | None = None) -> tuple[Work, ...]:
        """Convert each piece of a cost to :class:`Work`; the table ``locality`` applies to pieces over edges."""
        found = []
        for piece in pieces:
            table = piece.locality or (locality if "edges" in piece.sizes else None)
            found.append(Work(piece.primitive, {**piece.sizes, "item_bytes": self.item_bytes}, table))
        return tuple(found)

    def row_work(self, primitive: str, rows: Size, width: int, **sizes: int) -> Work:
        """Return the work of a primitive on rows of ``width`` elements of the training dtype."""
        return Work(primitive, {"rows": rows, "width": width, **sizes, "item_bytes": self.item_bytes})

    def compute(
        self, templates: Sequence[str], name: str, kind: OpKind, reads: Sequence[Named], writes: Sequence[Named],
        work: tuple[Work, ...], action: type[Action[Any]] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Emit an op that computes. ``action``: the action that the policy of slot ``module`` runs in it."""
        label = None if action is None else action.label
        read, written = accesses(reads), accesses(writes)
        self.emit(templates, Op(name, kind, Nature.COMPUTE, read, written, work=work, action=label, **fields))

    def exchange(
        self, templates: Sequence[str], name: str, route: str, reads: Sequence[str], writes: str, row_bytes: int, *,
        control: bool = False, decision: Decision | None = None, announced: bool = False, version: str | None = None,
        **fields: Any,
    ) -> None:  # fmt: skip
        """Emit an uneven all-to-all of a packed buffer, the first of ``reads``; see :class:`Transfer`. ``version``: the
        buffer (int64 [1, 1]) in which the executor notes the epoch of the rows that arrived, plus one."""
        transfer = Transfer(row_bytes, decision=decision, control=control, announced=announced)
        written = [writes] if version is None else [writes, version]
        self._transfer(templates, name, OpKind.EXCHANGE, reads, written, transfer, route=route, **fields)

    def peer_read(
        self, templates: Sequence[str], name: str, route: str, reads: Sequence[Named], writes: Sequence[Named],
        row_bytes: int, **fields: Any,
    ) -> None:  # fmt: skip
        """Emit a read of the rows that a route names from the devices of their owners."""
        self._transfer(templates, name, OpKind.PEER_READ, reads, writes, Transfer(row_bytes), route=route, **fields)

    def allreduce(
        self, templates: Sequence[str], name: str, buffers: Sequence[str], nbytes: int, control: bool,
        nature: Nature = Nature.COMMUNICATION, **fields: Any,
    ) -> None:  # fmt: skip
        """Emit a sum over all ranks, in place."""
        transfer = Transfer(nbytes, control=control)
        self._transfer(templates, name, OpKind.ALLREDUCE, buffers, buffers, transfer, nature, **fields)

    def host_copy(
        self, templates: Sequence[str], name: str, kind: OpKind, reads: Sequence[Named], writes: Sequence[Named],
        rows: Size, row_bytes: int, **fields: Any,
    ) -> None:  # fmt: skip
        """Emit a copy of ``rows`` rows between a device and the memory of its host, ``kind`` H2D or D2H."""
        transfer = Transfer(row_bytes, rows)
        read, written = accesses(reads), accesses(writes)
        self.emit(templates, Op(name, kind, Nature.COMPUTE, read, written, transfer=transfer, **fields))

    def host_merge(
        self, templates: Sequence[str], name: str, reads: Sequence[str], writes: Sequence[str], rows: Size,
        row_bytes: int, **fields: Any,
    ) -> None:  # fmt: skip
        """Emit a copy of ``rows`` rows from the memory of a rank to its rows of a buffer that its host's ranks share,
        who do so in turn."""
        nature, read, written = self._uses(Nature.MERGING), accesses(reads), accesses(writes)
        transfer = Transfer(row_bytes, rows)
        self.emit(
            templates,
            Op(name, OpKind.COPY, nature, read, written, transfer=transfer, form=Form.MERGED_ROWS, **fields),
        )

    def host_barrier(self, templates: Sequence[str], name: str, after: Sequence[str], **fields: Any) -> None:
        """Emit a point at which the ranks of each host wait for one another, once the ops ``after`` have ended."""
        nature, waits = self._uses(Nature.SHARING), tuple(Dependency(one) for one in after)
        self.emit(templates, Op(name, OpKind.BARRIER, nature, after=waits, category="comm", **fields))

    def _uses(self, nature: Nature) -> Nature:
        if nature not in self.natures:
            self.natures.append(nature)
        return nature

    def broadcast(
        self, templates: Sequence[str], name: str, root: int, reads: Sequence[str], writes: Sequence[str],
        rows: Size, row_bytes: int, **fields: Any,
    ) -> None:  # fmt: skip
        """Emit a broadcast of ``rows`` rows of the root, ``row_bytes`` each."""
        transfer = Transfer(row_bytes, rows)
        self._transfer(templates, name, OpKind.BROADCAST, reads, writes, transfer, root=root, **fields)

    def allgather(
        self, templates: Sequence[str], name: str, reads: str, writes: str, row_bytes: int, control: bool, **fields: Any
    ) -> None:
        """Emit an all-gather of one row per rank."""
        transfer = Transfer(row_bytes, control=control)
        self._transfer(templates, name, OpKind.ALLGATHER, [reads], [writes], transfer, **fields)

    def _transfer(
        self, templates: Sequence[str], name: str, kind: OpKind, reads: Sequence[Named], writes: Sequence[Named],
        transfer: Transfer, nature: Nature = Nature.COMMUNICATION, **fields: Any,
    ) -> None:  # fmt: skip
        read, written = accesses(reads), accesses(writes)
        op = Op(name, kind, nature, read, written, transfer=transfer, category="comm", **fields)
        self.emit(templates, op)

    def emit(self, templates: Sequence[str], op: Op) -> None:
        """Append an op to every named template."""
        for template in templates:
            ops = self.templates.setdefault(template, [])
            waits = (Dependency(ops[-1].name),) if self._one_by_one and ops else ()
            ops.append(replace(op, after=(*op.after, *waits)) if waits else op)

    @contextmanager
    def one_by_one(self) -> Iterator[None]:
        """Let each op that is emitted in this block wait for the one before it, also where their buffers do not."""
        self._one_by_one = True
        try:
            yield
        finally:
            self._one_by_one = False

    def chain(self, calendar: Calendar) -> None:
        """Let the first op of each step of a calendar wait for the last op of the step before."""
        for before, following in calendar.followers.items():
            last = self.templates[before][-1].name
            for after in following:
                ops = self.templates[after]
                waits = Dependency(last, steps_back=1)
                if waits not in ops[0].after:
                    ops[0] = replace(ops[0], after=(*ops[0].after, waits))

    def move_behind(self, templates: Sequence[str], name: str, other: str) -> None:
        """Move the op ``name`` in program order, so that it comes directly behind the op ``other``."""
        for template in templates:
            ops = self.templates[template]
            moved = ops.pop(next(place for place, op in enumerate(ops) if op.name == name))
            ops.insert(next(place for place, op in enumerate(ops) if op.name == other) + 1, moved)

    def build(self, calendar: Calendar) -> Program:
        """Return the program, with dependencies derived from the buffers."""
        return derive_dependencies(self.stated(calendar))

    def stated(self, calendar: Calendar) -> Program:
        """Return the program with the dependencies that its ops state; none are derived from the buffers."""
        streams = {nature.value: nature.stream for nature in self.natures}
        templates = {name: Template(name, tuple(self._scheduled(ops, streams))) for name, ops in self.templates.items()}
        groups = dict.fromkeys(stream.group for stream in streams.values() if stream.group is not None)
        names = {access.buffer for ops in self.templates.values() for op in ops for access in op.reads + op.writes}
        return Program(
            name=self.name,
            templates=templates,
            calendar=calendar,
            buffers={name: each for name, each in self.buffers.items() if name in names or each.persistent},
            streams=streams,
            groups={name: _group(name) for name in groups},
            sizes=SizeTable(len(self.hosts), self.columns, self.routes),
            hosts=self.hosts,
            publications=tuple(self.publications),
            kept=self.kept,
        )

    def _scheduled(self, ops: Sequence[Op], streams: dict[str, Stream]) -> Iterator[Op]:
        """Yield the ops of a template with their streams and the schedule's dependencies; adds to ``streams``."""
        for place, op in enumerate(ops):
            nature = Nature(op.stream)
            if self.schedule is None:
                yield replace(op, stream=nature.stream.name)
                continue
            stream = self.schedule.stream(nature, op)
            streams[stream.name] = stream
            yield replace(op, stream=stream.name, after=(*op.after, *self.schedule.after(nature, op, ops[:place])))


def _group(name: str) -> Group:
    if name == HOST:
        return Group(name, members="host", backend="gloo")
    return Group(name, backend="default" if name == WORLD else "gloo")


def accesses(names: Sequence[Named]) -> tuple[Access, ...]:
    """Return an :class:`Access` to the current turn's copy of each named buffer."""
    return tuple(Access(name) if isinstance(name, str) else name for name in names)
