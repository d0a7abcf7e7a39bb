"""A program: templates of ops, the calendar of which template runs when, sizes, and lifetimes of buffers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from simgnn.program.calendar import EVALUATE, Calendar, Turn
from simgnn.program.kinds import GROUP_KINDS, OpKind
from simgnn.program.ops import Buffer, Group, Op, Part, Stream
from simgnn.program.parts import Overlaps, Use, covers
from simgnn.program.sizes import IntArray, Route, Scratch, SizeTable


@dataclass(frozen=True, slots=True)
class CopiesRoute:
    """The ``route`` of the rows that travel if every master whose vertex has ``copies`` copies publishes its row."""

    copies: int
    route: str


@dataclass(frozen=True)
class Publication:
    """A point of the program where a master sends a vertex's row to all mirrors (publishes it) if any copy changed
    enough. A program declares it so that a recorded run can be applied to another partition.

    ``gathered``, ``active``, ``published``: the decisions that count the rows that mirrors sent, the masters that
    published, and the rows that these sent. Publishing masters with r copies are recorded as :func:`counted_as`.
    ``copies``: what counts as a copy: a replica, or a host whose replicas add up first. ``masters``: the column of the
    masters that have mirrors. ``routes``: empty if the partition's statistics do not count the copies of vertices."""

    gathered: str
    active: str
    published: str
    tally: str
    copies: Literal["replicas", "hosts"]
    masters: str
    routes: tuple[CopiesRoute, ...] = ()

    def rows(self, sizes: SizeTable) -> Mapping[int, Route]:
        """Return the rows of each pair if all masters are published, by the number of copies of their vertex."""
        return {each.copies: sizes.routes[each.route] for each in self.routes}

    def masters_by_copies(self, sizes: SizeTable) -> dict[int, IntArray]:
        """Count each rank's mirrored masters, int64 [P], by their number r of copies: each publishes r - 1 rows. Those
        with one copy (on one host alone) publish none to others. Empty if the statistics do not count copies."""
        found: dict[int, IntArray] = {
            r: np.bincount(route.source, route.rows, minlength=sizes.ranks).astype(np.int64) // (r - 1)
            for r, route in self.rows(sizes).items()
        }
        if not found:
            return {}
        alone = np.maximum(0, sizes.columns[self.masters] - np.sum(list(found.values()), axis=0))
        return {1: alone, **found} if alone.any() else found


def counted_as(tally: str, copies: int) -> str:
    """Name of the decision that counts the publishing masters with ``copies`` copies; ``tally``: the names' prefix."""
    return f"{tally}-{copies}"


@dataclass(frozen=True)
class Template:
    """The ops of one turn, in program order."""

    name: str
    ops: tuple[Op, ...]

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The position of each op by name."""
        return {op.name: position for position, op in enumerate(self.ops)}


@dataclass(frozen=True)
class Program:
    """What every rank does. Both backends interpret it; it holds no tensors.

    ``hosts`` is the host of each rank, int [P]. An op's id is unique in the program: templates in the order of
    ``templates``, ops in program order. ``publications``: how decisions of masters apply to other partitions. ``kept``:
    by name, device memory that the executor fills once and keeps, as large as the first turn needs."""

    name: str
    templates: Mapping[str, Template]
    calendar: Calendar
    buffers: Mapping[str, Buffer]
    streams: Mapping[str, Stream]
    groups: Mapping[str, Group]
    sizes: SizeTable
    hosts: tuple[int, ...]
    publications: tuple[Publication, ...] = ()
    kept: Mapping[str, Scratch] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """P, the number of ranks."""
        return self.sizes.ranks

    @cached_property
    def op_ids(self) -> Mapping[tuple[str, str], int]:
        """The op id of each (template, op name)."""
        return {(template, op.name): number for number, (template, op) in enumerate(self.ops)}

    @cached_property
    def ops(self) -> tuple[tuple[str, Op], ...]:
        """All ops with their template's name; the position is the op id."""
        return tuple((template.name, op) for template in self.templates.values() for op in template.ops)

    @cached_property
    def overlaps(self) -> Overlaps:
        """Which uses of buffers may touch the same row."""
        return Overlaps(self.calendar, self.sizes, self.buffers)

    @cached_property
    def sweep(self) -> tuple[str, ...]:
        """The template of each step of an evaluation, [E]; empty: the program evaluates nothing."""
        return self.calendar.sweep or ((EVALUATE,) if EVALUATE in self.templates else ())

    def evaluation(self, epoch: int) -> Iterator[Turn]:
        """Yield the turns of the evaluation after an epoch, in order."""
        for place, name in enumerate(self.sweep):
            yield Turn(epoch, place - len(self.sweep), name)

    def evaluates(self, template: str) -> bool:
        """Whether a template holds ops of evaluations."""
        return template in self.sweep

    @cached_property
    def views(self) -> "tuple[Program, ...]":
        """This program; if its evaluation is stated in stretches, one program of its training and one whose epochs are
        evaluations, as both begin when all ops of the other have ended. Columns then have the numbers of the steps of
        each; in that of evaluations, columns that have none for it are zeros."""
        if not self.calendar.evaluation:
            return (self,)
        sweep = replace(Calendar.of_steps(self.calendar.evaluation), drained=True)
        trained = replace(self.calendar, evaluation=())
        return self._view(trained, swept=False), self._view(sweep, swept=True)

    def _view(self, calendar: Calendar, swept: bool) -> "Program":
        steps, whole = self.calendar.steps, self.calendar.steps + len(self.sweep)

        def cut(values: IntArray) -> IntArray:
            if values.ndim < 2:
                return values
            if values.shape[-1] == whole:
                return values[..., steps:] if swept else values[..., :steps]
            return np.zeros((*values.shape[:-1], calendar.steps), np.int64) if swept else values

        columns = {name: cut(column) for name, column in self.sizes.columns.items()}
        routes = {name: replace(route, rows=cut(route.rows)) for name, route in self.sizes.routes.items()}
        sizes = replace(self.sizes, columns=columns, routes=routes)
        templates = {name: one for name, one in self.templates.items() if self.evaluates(name) is swept}
        return replace(self, templates=templates, calendar=calendar, sizes=sizes)

    def has(self, op: Op, rank: int) -> bool:
        """Whether a rank runs an op."""
        return op.ranks is None or bool(self.sizes.columns[op.ranks][rank])

    def group_of(self, op: Op) -> Group | None:
        """Return the process group of an op's stream; None if the op needs none."""
        if op.kind not in GROUP_KINDS:
            return None
        name = self.streams[op.stream].group
        return None if name is None else self.groups[name]

    def team_of(self, op: Op) -> IntArray:
        """Return a number for each rank, int64 [P], which is the same for ranks that take part in an op together."""
        group = self.group_of(op)
        if group is None or group.members == "world":
            return np.zeros(self.ranks, dtype=np.int64)
        return np.asarray(self.hosts if group.members == "host" else self.sizes.columns[group.members], dtype=np.int64)


def carried(program: Program) -> frozenset[str]:
    """The buffers that outlive a turn: persistent ones, rings, and those read before they are written in a turn."""
    rings = {buffer.name for buffer in program.buffers.values() if buffer.depth > 1}
    found = [_read_first([(template, 0)], program.overlaps) for template in program.templates.values()]
    return _persistent(program) | rings.union(*found)


def remembered(program: Program) -> frozenset[str]:
    """Return the buffers that a turn may read from earlier turns, which a run needs to resume from a checkpoint.

    Rings whose copies serve one turn each are left out, such as those of batches staged ahead; so are buffers that each
    epoch of unlike steps, or each evaluation, writes before it reads them."""
    return _persistent(program).union(*map(_awaited, program.views))


def _awaited(view: Program) -> set[str]:
    """Return the buffers that an epoch of a program, or of one of its views, reads before it writes them."""
    calendar, templates = view.calendar, view.templates
    epoch = [(templates[stretch.template], place) for place, stretch in enumerate(calendar.unlike)]
    alone = [template for template in templates.values() if not epoch or template.name not in calendar.templates]
    turns = [epoch, *([(template, 0)] for template in alone)]
    return set[str]().union(*(_read_first(ops, view.overlaps) for ops in turns))


def _persistent(program: Program) -> frozenset[str]:
    return frozenset(buffer.name for buffer in program.buffers.values() if buffer.persistent)


def _read_first(turns: Sequence[tuple[Template, int]], overlaps: Overlaps) -> set[str]:
    """Return the buffers that consecutive turns, each as (template, its stretch), read before they write them. A part
    that was written counts where the same part is read in that turn; all parts count once they fill the buffer."""
    names, written, pieces = set[str](), set[str](), dict[str, list[Use]]()
    for template, stretch in turns:
        here, whole = set[tuple[str, Part]](), set[str]()
        for op in template.ops:
            for access in op.reads:
                known = access.buffer in written or (access.part is not None and (access.buffer, access.part) in here)
                if access.steps_back or access.epochs_back or not known:
                    names.add(access.buffer)
            for access in op.writes:
                if access.part is None:
                    written.add(access.buffer)
                    continue
                here.add((access.buffer, access.part))
                filled, use = (
                    pieces.setdefault(access.buffer, []),
                    Use(template.name, stretch, access.part, writes=True),
                )
                filled += [] if use in filled else [use]
                if access.buffer not in written and covers(overlaps, access.buffer, *filled):
                    whole.add(access.buffer)
        written |= whole
    return names


def steps_that_complete(program: Program, buffer: str) -> tuple[int, ...]:
    """Return the steps, of an epoch after the first and (negative ones) of an evaluation, ascending, in which a buffer
    gets a value that no op in a later step adds to: what is written next, if anything, does not read it. So of metrics
    that chunks add up, the step that sums them over ranks; of those of mini-batches, every step."""
    calendar, found = program.calendar, list[int]()
    for first, names in ((-len(program.sweep), program.sweep), (0, calendar.of_epoch(1))):
        added, steps = False, list[int]()
        for place in reversed(range(len(names))):
            ops = program.templates[names[place]].ops
            writing = [op for op in ops if any(access.buffer == buffer for access in op.writes)]
            if writing:
                if not added:
                    steps.append(first + place)
                added = any(access.buffer == buffer for access in writing[0].reads)
        found += reversed(steps)
    return tuple(found)


def ahead_of_epoch(template: Template) -> frozenset[str]:
    """Return the ops of a template that only prepare the next epoch: they write rings by epoch that their own epoch
    does not read, and all that leads to these."""
    later = {access.buffer for op in template.ops for access in op.reads if access.epochs_back}
    names: set[str] = set()
    wanted: set[str] = set()
    for op in reversed(template.ops):
        written = {access.buffer for access in op.writes if not access.epochs_back}
        if written & (wanted | later):
            names.add(op.name)
            wanted = (wanted - written) | {access.buffer for access in op.reads if not access.epochs_back}
    return frozenset(names)


def made_once(program: Program) -> frozenset[str]:
    """Return the buffers that outlive a turn and that only the first turn fills, such as rows that are exchanged once
    and sums that never change. They take memory from the op that fills them onwards."""
    if program.calendar.first is None:
        return frozenset()
    opening = program.templates[program.calendar.first]
    others = [op for template in program.templates.values() if template is not opening for op in template.ops]
    known = {access.buffer for op in others for access in op.writes}
    made: set[str] = set()
    for op in opening.ops:
        known |= {access.buffer for access in op.reads} - made
        made |= {access.buffer for access in op.writes} - known
    plain = {name for name in made if program.buffers[name].depth == 1 and not program.buffers[name].inner}
    return carried(program) & plain


def always_held(program: Program) -> frozenset[str]:
    """Return the buffers allocated for the whole run: lasting ones, and those that outlive a turn, except
    :func:`made_once`."""
    lasting = {buffer.name for buffer in program.buffers.values() if buffer.allocated_once}
    return (carried(program) - made_once(program)) | lasting


def handed_over(program: Program) -> frozenset[str]:
    """Return the device buffers that need no memory on a CPU, since the executor uses a permanent host buffer for
    them."""
    ops, held = (op for _, op in program.ops if op.scratch.handed_over), always_held(program)
    pairs = (pair for op in ops for pair in zip(op.reads, op.writes, strict=True))
    return frozenset(device.buffer for host, device in pairs if host.buffer in held)


def received_blocks(program: Program) -> frozenset[str]:
    """Return the buffers that broadcasts fill: the root reads its rows where they are, so :func:`block_owner` of an op
    does not touch them."""
    return frozenset(op.writes[0].buffer for _, op in program.ops if op.kind is OpKind.BROADCAST and op.writes)


def block_owner(op: Op) -> int | None:
    """Return the rank whose rows an op sends to all, or sums over as they arrive; None: of no one rank."""
    return op.root if op.kind is OpKind.BROADCAST else op.scratch.own_block


def same_as_constants(program: Program) -> frozenset[str]:
    """Return the buffers that keep a block as its root last sent it (the third that a broadcast writes) although the
    block never changes, such as features. These buffers need no memory, since the block itself serves."""
    written = {access.buffer for _, op in program.ops for access in op.writes}
    sends = [op for _, op in program.ops if op.kind is OpKind.BROADCAST and len(op.writes) > 2]
    return frozenset(op.writes[2].buffer for op in sends if op.reads[0].buffer not in written)
