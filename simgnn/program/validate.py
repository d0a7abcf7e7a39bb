"""Checks that a program can be simulated and run. It reports all faults at once."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from simgnn.errors import ProgramError
from simgnn.program.calendar import EVALUATE, Turn
from simgnn.program.dependencies import Unrolled, windows
from simgnn.program.hazards import between_ranks, met_by_ranks, orders_needed
from simgnn.program.kinds import (
    COLLECTIVE_KINDS,
    COMPUTE_KINDS,
    FORMS_OF_PARTS,
    GROUP_KINDS,
    KIND_OF_FORM,
    LOCAL_COPY_KINDS,
    PAIRWISE_KINDS,
    OpKind,
)
from simgnn.program.ops import ITEM_BYTES, Access, Dependency, Op, Part
from simgnn.program.parts import Overlaps
from simgnn.program.program import Program, Template
from simgnn.program.sizes import Column, Decision, IntArray, Route, Size

PLACED_KINDS = LOCAL_COPY_KINDS | {OpKind.PEER_READ, OpKind.ADD} | (COMPUTE_KINDS - {OpKind.LOSS, OpKind.OPTIMIZE})
"""Kinds whose ops may write listed rows: they make the rows elsewhere, and put them there at their end."""


def validate(program: Program) -> Program:
    """Return the program, or raise :class:`ProgramError` with every fault.

    Checked: every name is declared; dependencies point backward; two uses of a buffer copy, one of them writing, are
    ordered unless columns prove that they touch different rows (proved for runs of consecutive turns, in which every
    kind of step meets every kind that may follow it; for buffers that ranks of a host share, by a collective);
    temporary buffers are written before they are read; sends are matched and bytes conserved; each process group has
    one stream and one order on all ranks; all ranks decide alike whether a collective with a condition (guard) runs. An
    evaluation of several steps is checked as a program of its own, since nothing else runs meanwhile."""
    problems = list(_sweep_faults(program))
    if not problems:
        faults = dict.fromkeys(fault for view in program.views for fault in _faults(view))
        problems = [*faults, *_evaluation_faults(program)] or list(dict.fromkeys(_spoilt_by_evaluations(program)))
    if problems:
        raise ProgramError([f"program '{program.name}': {problem}" for problem in problems])
    return program


def _faults(program: Program) -> list[str]:
    # names first: unknown ones make the other checks meaningless
    return list(_name_faults(program)) or [*_communication_faults(program), *_hazards(program)]


def _sweep_faults(program: Program) -> Iterator[str]:
    """Find what keeps an evaluation that is stated in stretches from being one."""
    calendar, templates = program.calendar, program.templates
    if not calendar.evaluation:
        return
    if any(stretch.steps < 1 for stretch in calendar.evaluation):
        yield "the calendar has a stretch of evaluations without steps; leave it out"
    if EVALUATE in templates:
        yield f"evaluations have several steps, but template '{EVALUATE}' is one of a single step; rename or remove it"
    for name in dict.fromkeys(program.sweep):
        if name not in templates:
            yield f"the calendar names template '{name}' for evaluations, which does not exist"
        elif name in calendar.templates:
            yield f"the calendar has template '{name}' in training and in evaluations; give each its own"


def _spoilt_by_evaluations(program: Program) -> Iterator[str]:
    """Find buffers that an evaluation changes between two epochs of which the second reads what the first left, and
    buffers of hosts that one rank may still use in the one when another begins the other."""
    if not program.calendar.evaluation:
        return
    training, evaluation = program.views
    read = _read_from_before(training)
    for name, template in evaluation.templates.items():
        for op in template.ops:
            for spoilt in sorted({access.buffer for access in op.writes} & read):
                yield (
                    f"{name}: '{op.name}' writes buffer '{spoilt}', in which an epoch reads rows of the one before; "
                    "give evaluations a buffer of their own"
                )
    if len(set(program.hosts)) < program.ranks:
        trained, evaluated = (windows(view)[0] for view in program.views)
        for before, after in ((trained, evaluated), (evaluated, trained)):
            for name, first, second in met_by_ranks(before, after):
                where = "before" if before is trained else "after"
                both = f"'{first.op.name}' and '{second.op.name}'"
                yield (
                    f"buffer '{name}' is used by {both}, one of them writing, {where} an evaluation: "
                    "they may be of two ranks, and no collective or barrier lies between them"
                )


def _read_from_before(program: Program) -> set[str]:
    """Return the buffers that an epoch reads before it writes any of their rows. A merged buffer, into which each layer
    puts its own rows before it reads them, is none."""
    calendar, found = program.calendar, set[str]()
    turns = [tuple(dict.fromkeys(calendar.of_epoch(1)))] if calendar.unlike else [(name,) for name in program.templates]
    for names in turns:
        written = set[str]()
        for op in (op for name in names for op in program.templates[name].ops):
            back = {access.buffer for access in op.reads if access.steps_back or access.epochs_back}
            found |= back | ({access.buffer for access in op.reads} - written)
            written |= {access.buffer for access in op.writes}
    return found


def _name_faults(program: Program) -> Iterator[str]:
    """Find names that are not declared, and dependencies that do not point backward."""
    calendar = program.calendar
    for cycle in calendar.cycles:
        if cycle.period < 1 or not 0 <= cycle.position < cycle.period:
            yield f"the calendar has '{cycle.name}' in epoch {cycle.position} of each {cycle.period}"
            return
    if calendar.cycles and calendar.steps > 1:
        yield "the calendar has special epochs and several steps an epoch, which do not go together"
    if calendar.unlike:
        if any(other is not None for other in (calendar.first, calendar.opening)) or calendar.cycles:
            yield "the calendar has unlike steps and epochs or steps that differ otherwise, which do not go together"
        if any(stretch.steps < 1 for stretch in calendar.unlike):
            yield "the calendar has a stretch without steps; leave it out"
        elif sum(stretch.steps for stretch in calendar.unlike) != calendar.steps:
            yield f"the calendar's stretches do not add up to its {calendar.steps} steps"
    short = list(_column_faults(program))
    if short:  # no size could be looked up
        yield from short
        return
    for name in calendar.templates:
        if name not in program.templates:
            yield f"the calendar names template '{name}', which does not exist"
    for buffer in program.buffers.values():
        yield from (f"buffer '{buffer.name}': {fault}" for fault in _size_faults(program, buffer.rows))
        if buffer.dtype not in ITEM_BYTES:
            yield f"buffer '{buffer.name}': unknown dtype '{buffer.dtype}'; known: {', '.join(ITEM_BYTES)}"
        if buffer.depth < 1 or buffer.width < 0:
            yield f"buffer '{buffer.name}': depth must be at least 1 and width at least 0"
    for stream in program.streams.values():
        if stream.group is not None and stream.group not in program.groups:
            yield f"stream '{stream.name}' names group '{stream.group}', which does not exist"
        if stream.servers < 1:
            yield f"stream '{stream.name}' has {stream.servers} servers; it needs at least 1"
        if stream.in_turn and (stream.servers != 1 or stream.owner != "rank" or stream.group is not None):
            yield f"stream '{stream.name}' runs ops of a host's ranks in turn: it has one server a host, and no group"
    for group in program.groups.values():
        if group.members not in ("world", "host") and group.members not in program.sizes.columns:
            yield f"group '{group.name}': members '{group.members}' is neither world, host nor a column"
    for name, route in program.sizes.routes.items():
        if route.listed and route.listed not in program.buffers:
            yield f"route '{name}': its rows are listed in '{route.listed}', which is no buffer"
    for name, kept in program.kept.items():
        for size in kept.sizes:
            yield from (f"kept memory '{name}': {fault}" for fault in _size_faults(program, size))
    for template in program.templates.values():
        twice = sorted(name for name, number in Counter(op.name for op in template.ops).items() if number > 1)
        if twice:
            yield f"template '{template.name}' has ops of one name: {', '.join(twice)}"
        for op in template.ops:
            yield from (f"{template.name}: '{op.name}': {fault}" for fault in _op_faults(program, template, op))


def _evaluation_faults(program: Program) -> Iterator[str]:
    if program.calendar.unlike or program.calendar.evaluation:
        for name in dict.fromkeys(program.sweep):
            yield from _faults_in_evaluation(program, program.templates[name])


def _faults_in_evaluation(program: Program, template: Template) -> Iterator[str]:
    """Find ops of an evaluation that refer to earlier epochs, and sizes that differ by step without numbers for the
    steps of the evaluation, which are none of the epoch's."""
    columns, routes = program.sizes.columns, program.sizes.routes
    steps, swept = program.calendar.steps, len(program.calendar.sweep)

    def lacks(values: IntArray) -> bool:
        return np.ndim(values) > 1 and not (swept and values.shape[-1] == steps + swept)

    for op in template.ops:
        touched = [access for access in op.reads + op.writes if access.buffer in program.buffers]
        sizes = [*op.sizes, *op.scratch.sizes, *(program.buffers[access.buffer].rows for access in touched)]
        sizes += [size for access in touched if access.part for size in (access.part.first, access.part.rows)]
        bounds = [size.bound if isinstance(size, Decision) else size for size in sizes]
        used = {size.name for size in bounds if isinstance(size, Column)} & columns.keys()
        names = {name for name in used if lacks(columns[name])}
        if op.route is not None and op.route in routes and lacks(routes[op.route].rows):
            names.add(op.route)
        if names:
            expected = f"expected {steps + swept} numbers, of {steps} steps and {swept} of an evaluation"
            listed, why = ", ".join(sorted(names)), expected if swept else "an evaluation is no step"
            yield f"{template.name}: '{op.name}' has sizes by step ({listed}); {why}"
        if swept and any([*(one.epochs_back for one in op.after), *(one.epochs_back for one in touched)]):
            yield f"{template.name}: '{op.name}' refers to an earlier epoch; an evaluation has none before it"


def _column_faults(program: Program) -> Iterator[str]:
    """Find columns and routes by step that are shorter than an epoch."""
    routes = ((f"the rows of route '{name}'", route.rows) for name, route in program.sizes.routes.items())
    columns = ((f"column '{name}'", column) for name, column in program.sizes.columns.items())
    for name, values in (*columns, *routes):
        shape = np.shape(values)
        if len(shape) > 1 and shape[-1] < program.calendar.steps:
            yield f"{name} has numbers for {shape[-1]} steps, an epoch has {program.calendar.steps}"


def _op_faults(program: Program, template: Template, op: Op) -> Iterator[str]:
    if op.stream not in program.streams:
        yield f"unknown stream '{op.stream}'"
    for access in op.reads + op.writes:
        yield from _access_faults(program, access)
        if access.buffer in program.buffers and access.part is not None:
            yield from _part_faults(program, template.name, op, access, access.part)
    for dependency in op.after:
        yield from _dependency_faults(program, template, op, dependency)
    for size in [*(size for work in op.work for size in work.sizes.values()), *op.scratch.sizes]:
        yield from _size_faults(program, size)
    if op.route is not None and op.route not in program.sizes.routes:
        yield f"unknown route '{op.route}'"
    if op.ranks is not None and op.ranks not in program.sizes.columns:
        yield f"unknown column '{op.ranks}' of ranks"
    if op.reverses is not None and op.reverses not in template.index:
        yield f"reverses '{op.reverses}', which is not in the template"
    if op.form is not None and KIND_OF_FORM[op.form] is not op.kind:
        yield f"the form '{op.form}' is one of {KIND_OF_FORM[op.form]} ops, the op's kind is {op.kind}"
    if op.kind not in COMPUTE_KINDS and op.transfer is None and not op.work and op.kind is not OpKind.BARRIER:
        yield f"an op of kind {op.kind} needs a transfer"
    if op.transfer is not None:
        yield from _size_faults(program, op.transfer.rows)
        if type(op.transfer.row_bytes) is not int or op.transfer.row_bytes < 0:
            yield f"bytes of a row: got {op.transfer.row_bytes!r}, expected a whole number of at least 0"
    if op.kind in PAIRWISE_KINDS and op.route is None:
        yield f"an op of kind {op.kind} needs a route"
    if op.kind in GROUP_KINDS and op.stream in program.streams and program.streams[op.stream].group is None:
        yield f"an op of kind {op.kind} needs a stream with a process group; '{op.stream}' has none"


def _access_faults(program: Program, access: Access) -> Iterator[str]:
    buffer = program.buffers.get(access.buffer)
    if buffer is None:
        yield f"unknown buffer '{access.buffer}'"
        return
    if access.steps_back < 0 or access.epochs_back < 0:
        yield f"buffer '{access.buffer}' is accessed in the future"
    back = access.epochs_back if buffer.ring == "epoch" else access.steps_back
    if back >= buffer.depth and buffer.depth >= 1 and back > 0:
        yield f"buffer '{access.buffer}' keeps {buffer.depth} copies; the copy of {back} turns back is gone"


def _part_faults(program: Program, template: str, op: Op, access: Access, part: Part) -> Iterator[str]:
    buffer, what = program.buffers[access.buffer], f"its part of buffer '{access.buffer}'"
    faults = [fault for size in (part.first, part.rows) for fault in _size_faults(program, size)]
    yield from (f"{what}: {fault}" for fault in faults)
    rows = buffer.rows
    if isinstance(rows, Column) and rows.name not in program.sizes.columns:
        return  # reported with the buffer
    differs = isinstance(rows, Decision) or (isinstance(rows, Column) and program.sizes.columns[rows.name].ndim > 1)
    if differs and (part.places or access in op.writes):
        yield f"{what}: the buffer's rows differ by turn; a buffer of which ops write parts has the same rows in all"
        return
    if differs:
        yield from _range_faults(program, template, part, rows, what)
        return
    if op.form is not None and op.form not in FORMS_OF_PARTS:
        yield f"{what}: ops of the form '{op.form}' use whole buffers"
    if part.width > buffer.width:
        yield f"{what}: its rows of width {part.width} are wider than the buffer's, {buffer.width}"
        return
    held = program.sizes.most(rows)
    if part.places:
        listed = program.buffers.get(part.places)
        if listed is None:
            yield f"{what}: its rows are listed in '{part.places}', which is no buffer"
            return
        apart = (listed.space == "device") != (buffer.space == "device")
        if listed.dtype != "int64" or listed.width != 1 or apart:
            yield f"{what}: the list '{part.places}' must be int64 of width 1 and lie in the same memory"
        if Access(part.places) not in op.reads[1:]:
            yield f"{what}: the op must read the list '{part.places}', after what it reads first"
        if access in op.writes and op.kind not in PLACED_KINDS:
            yield f"{what}: ops of kind {op.kind} cannot write listed rows"
        held = program.sizes.most(listed.rows)
    if not faults:
        end = _sum_of(program, part.first, part.rows)
        over = np.flatnonzero(end.reshape(len(end), -1).max(axis=1) > held)
        if len(over):
            rank = int(over[0])
            name = part.places or access.buffer
            yield f"{what} ends at row {int(end[rank].max())} on rank {rank}, '{name}' has {int(held[rank])}"


def _range_faults(program: Program, template: str, part: Part, rows: Size, what: str) -> Iterator[str]:
    """Check a range that is read of a buffer whose rows differ by turn, in the steps of its template."""
    end, held = _same_turns(
        _in_steps(program, _sum_of(program, part.first, part.rows), template), _rows_of(program, rows, template)
    )
    over = np.argwhere(end > held)
    if len(over):
        at = tuple(over[0].tolist())
        yield f"{what} ends at row {end[at]} on rank {at[0]}, the buffer has {held[at]}"


def _sum_of(program: Program, one: int | Column, other: int | Column) -> IntArray:
    """Add two sizes in every turn: int64 [P], [P, steps] or [P, epochs, steps]."""
    columns = program.sizes.columns
    found = [np.full(program.ranks, size) if isinstance(size, int) else columns[size.name] for size in (one, other)]
    first, second = _same_turns(*found)
    return first + second


def _dependency_faults(program: Program, template: Template, op: Op, dependency: Dependency) -> Iterator[str]:
    if dependency.steps_back < 0 or dependency.epochs_back < 0:
        yield f"depends on '{dependency.op}' of a later turn"
    elif dependency.steps_back == 0 and dependency.epochs_back == 0:
        if dependency.op not in template.index:
            yield f"depends on '{dependency.op}', which is not in the template"
        elif template.index[dependency.op] >= template.index[op.name]:
            yield f"depends on '{dependency.op}', which does not come before it in program order"
    elif all(dependency.op not in other.index for other in program.templates.values()):
        yield f"depends on '{dependency.op}' of an earlier turn, which no template has"


def _size_faults(program: Program, size: Size) -> Iterator[str]:
    bound = size.bound if isinstance(size, Decision) else size
    if isinstance(bound, Column):
        column = program.sizes.columns.get(bound.name)
        if column is None:
            yield f"unknown column '{bound.name}'"
        elif column.shape[0] != program.ranks:
            yield f"column '{bound.name}' has {column.shape[0]} ranks, the program {program.ranks}"
        elif column.size and int(np.min(column)) < 0:
            yield f"column '{bound.name}' is negative somewhere"
    elif bound < 0:
        yield f"negative size {bound}"


def _communication_faults(program: Program) -> Iterator[str]:
    """Find faults that would hang or corrupt a run: unmatched sends, lost bytes, several orders of a process group."""
    problems = list(_group_faults(program))
    for name, route in program.sizes.routes.items():
        problems += [f"route '{name}': {fault}" for fault in _route_faults(program, route)]
    yield from problems
    if not problems:
        for template, op in program.ops:
            faults = _transfer_faults(program, template, op) if op.kind in GROUP_KINDS else iter(())
            if op.kind in LOCAL_COPY_KINDS and op.route is None and op.reads and op.writes:
                faults = _copied_faults(program, template, op)
            yield from (f"{template}: '{op.name}': {fault}" for fault in faults)


def _group_faults(program: Program) -> Iterator[str]:
    by_group: dict[str, list[str]] = {}
    for stream in program.streams.values():
        if stream.group is not None:
            by_group.setdefault(stream.group, []).append(stream.name)
    for group, streams in by_group.items():
        if len(streams) > 1:
            yield (
                f"streams {', '.join(streams)} share group '{group}': ranks could issue its collectives in different "
                "orders; give each stream a group of its own"
            )


def _route_faults(program: Program, route: Route) -> Iterator[str]:
    if len(route.source) != len(route.target) or len(route.source) != route.rows.shape[0]:
        yield "source, target and rows differ in length"
        return
    if len(route.source) == 0:
        return
    ends = np.concatenate([route.source, route.target])
    outside = ends[(ends < 0) | (ends >= program.ranks)]
    if len(outside):
        yield f"names rank {outside.max()}; ranks are 0..{program.ranks - 1}"
    if np.any(route.source == route.target):
        yield "sends from a rank to itself"
    if int(route.rows.min()) < 0:
        yield "has negative rows"
    key = route.source.astype(np.int64) * program.ranks + route.target
    if np.any(np.diff(key) <= 0):
        yield "pairs must be sorted by (source, target), none twice"


def _transfer_faults(program: Program, template: str, op: Op) -> Iterator[str]:
    group = program.group_of(op)
    assert group is not None
    ids = program.team_of(op)
    if op.ranks is not None:
        taking_part = program.sizes.columns[op.ranks].reshape(program.ranks, -1)
        for identifier in np.unique(ids):
            inside = taking_part[ids == identifier]
            if np.any(inside != inside[:1]):
                yield f"only some ranks of group '{group.name}' take part; the others would wait for ever"
    if op.guard is not None and op.kind in COLLECTIVE_KINDS and not op.guard.agreed:
        yield (
            f"is guarded by '{op.guard.decision}', which ranks decide alone; a collective's guard must be one that "
            "all ranks decide alike (Guard.agreed)"
        )
    if op.kind is OpKind.BROADCAST and (op.root is None or not 0 <= op.root < program.ranks):
        yield f"needs a root among ranks 0..{program.ranks - 1}; got {op.root}"
    if op.route is not None:
        route = program.sizes.routes[op.route]
        if np.any(ids[route.source] != ids[route.target]):
            yield f"route '{op.route}' leaves group '{group.name}'"
        if op.kind in (OpKind.EXCHANGE, OpKind.PEER_READ) and op.transfer is not None and op.transfer.decision is None:
            yield from _conservation_faults(program, template, op, route, op.transfer.row_bytes)


def _copied_faults(program: Program, template: str, op: Op) -> Iterator[str]:
    """Check in every step of a template that a copy moves as many rows as the parts that it reads and writes have."""
    if len(op.inputs) + len(op.writes) > 2 and any(access.part is not None for access in op.reads + op.writes):
        yield "copies several buffers and parts of them; let it copy one"
    for access in (op.reads[0], op.writes[0]):
        if access.part is None or op.transfer is None or isinstance(op.transfer.rows, Decision):
            continue
        row_bytes = _row_bytes(program, access)
        moved, there = (_rows_of(program, size, template) for size in (op.transfer.rows, access.part.rows))
        moved, there = _same_turns(moved * op.transfer.row_bytes, there * row_bytes)
        wrong = np.argwhere(moved != there)
        if len(wrong):
            at = tuple(wrong[0].tolist())
            yield f"rank {at[0]} moves {moved[at]} bytes, its part of buffer '{access.buffer}' has {there[at]}"


def _row_bytes(program: Program, access: Access) -> int:
    """Return the bytes of a row that an access touches."""
    buffer = program.buffers[access.buffer]
    width = access.part.width if access.part is not None else 0
    return (width or buffer.width) * ITEM_BYTES[buffer.dtype]


def _rows_of(program: Program, size: Size, template: str) -> IntArray:
    """Return a size in the steps of a template: [P] if it is always the same, [P, steps] or [P, epochs, steps]."""
    bound = size.bound if isinstance(size, Decision) else size
    column = program.sizes.columns[bound.name] if isinstance(bound, Column) else np.full(program.ranks, bound)
    return _in_steps(program, column, template)


def _in_steps(program: Program, column: IntArray, template: str) -> IntArray:
    """Select the steps of a template from a column, if an epoch has unlike steps; in others no step says nothing."""
    if column.ndim == 1 or template not in program.calendar.templates or not program.calendar.unlike:
        return column
    return np.asarray(column[..., np.flatnonzero(np.array(program.calendar.of_epoch(1)) == template)])


def _conservation_faults(program: Program, template: str, op: Op, route: Route, row_bytes: int) -> Iterator[str]:
    """Check in every turn that the rows read are those sent, and that the rows that arrive fill what is written. A peer
    read may take its rows from a whole buffer, of which the rank's graph lists those that leave."""
    for accesses, ends, verb in ((op.reads, route.source, "sends"), (op.writes, route.target, "receives")):
        if not accesses or (op.kind is OpKind.PEER_READ and accesses[0].part is None):
            continue
        buffer, part = program.buffers[accesses[0].buffer], accesses[0].part  # others hold counts or versions
        held = _rows_of(program, buffer.rows if part is None else part.rows, template)
        travelling = _in_steps(program, route.rows, template)
        rows = np.zeros((program.ranks, *travelling.shape[1:]), np.int64)
        np.add.at(rows, ends, travelling)
        sent, room = _same_turns(rows * row_bytes, held * _row_bytes(program, accesses[0]))
        wrong = np.argwhere(sent != room)
        if len(wrong):
            at = tuple(wrong[0].tolist())
            where = "".join(f", {name} {turn}" for name, turn in zip(("step", "epoch"), at[:0:-1], strict=False))
            yield f"rank {at[0]} {verb} {sent[at]} bytes, but buffer '{buffer.name}' holds {room[at]}{where}"


def _same_turns(one: IntArray, other: IntArray) -> tuple[IntArray, IntArray]:
    """Broadcast two columns to the same number of epochs and steps."""
    most = max(one.ndim, other.ndim)
    first, second = (part.reshape(len(part), *[1] * (most - part.ndim), *part.shape[1:]) for part in (one, other))
    wide, broad = np.broadcast_arrays(first, second)
    return wide, broad


def _hazards(program: Program) -> list[str]:
    """Find uses of a buffer copy that nothing orders, and reads of temporary buffers that nothing has written."""
    problems: dict[str, None] = {}
    found = windows(program)
    if EVALUATE in program.templates:  # evaluation runs alone between two epochs
        found.append(Unrolled(program, (Turn(0, 0, EVALUATE),)))
    for position, graph in enumerate(found):
        problems |= dict.fromkeys(_unordered(graph, program.overlaps))
        if position == 0 or graph.turns[0].template == EVALUATE:
            problems |= dict.fromkeys(_unwritten(graph))
    return list(problems)


def _unordered(graph: Unrolled, overlaps: Overlaps) -> Iterator[str]:
    hosts, everywhere = graph.program.hosts, None
    for name, second, earlier in orders_needed(graph, overlaps):
        ordered = graph.ancestors[second]
        yield from _unsafe(graph, name, second, earlier & ~ordered, "nothing orders them; add a dependency")
        if graph.program.buffers[name].space == "host-shared" and len(set(hosts)) < len(hosts):
            everywhere = everywhere or between_ranks(graph)
            alone = earlier & ordered & ~everywhere(second)
            fault = "they may be of two ranks, and no collective or barrier lies between them"
            yield from _unsafe(graph, name, second, alone, fault)


def _unsafe(graph: Unrolled, name: str, second: int, earlier: int, fault: str) -> Iterator[str]:
    while earlier:
        first = (earlier & -earlier).bit_length() - 1
        earlier &= earlier - 1
        one, other = (_named(graph, index) for index in (first, second))
        yield f"buffer '{name}' is used by {one} and {other}, one of them writing: {fault}"


def _unwritten(graph: Unrolled) -> Iterator[str]:
    written: set[tuple[str, int]] = set()
    for node in graph.nodes:
        for access in node.op.reads:
            copy = graph.copy_of(node, access)
            if copy is not None and copy not in written and not graph.program.buffers[access.buffer].persistent:
                template = graph.turns[node.turn].template
                yield f"'{node.op.name}' of {template} reads buffer '{access.buffer}' before anything has written it"
        written.update(copy for access in node.op.writes if (copy := graph.copy_of(node, access)) is not None)


def _named(graph: Unrolled, index: int) -> str:
    node = graph.nodes[index]
    turn = graph.turns[node.turn]
    return f"'{node.op.name}' (epoch {turn.epoch}, step {turn.step})"
