"""Checks that a program can be simulated and run. It reports all faults at once."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from simgnn.errors import ProgramError
from simgnn.program.calendar import EVALUATE, Turn
from simgnn.program.dependencies import Unrolled, neighbouring_uses, windows
from simgnn.program.kinds import (
    COLLECTIVE_KINDS,
    COMPUTE_KINDS,
    GROUP_KINDS,
    KIND_OF_FORM,
    PAIRWISE_KINDS,
    WRITES_OWN_ROWS,
    Form,
    OpKind,
)
from simgnn.program.ops import ITEM_BYTES, Access, Dependency, Op
from simgnn.program.program import Program, Template
from simgnn.program.sizes import Column, Decision, IntArray, Route, Size


def validate(program: Program) -> Program:
    """Return the program, or raise :class:`ProgramError` with every fault.

    Checked: every name is declared; dependencies point backward; two uses of a buffer copy, one of them writing, are
    ordered (proved for runs of consecutive turns; for buffers that ranks of a host share, by a collective); temporary
    buffers are written before they are read; sends are matched and bytes conserved; each process group has one stream
    and one order on all ranks; all ranks decide alike whether a collective with a condition (guard) runs."""
    # names first: unknown ones make the other checks meaningless
    problems = list(_name_faults(program)) or [*_communication_faults(program), *_hazards(program)]
    if problems:
        raise ProgramError([f"program '{program.name}': {problem}" for problem in problems])
    return program


def _name_faults(program: Program) -> Iterator[str]:
    """Find names that are not declared, and dependencies that do not point backward."""
    calendar = program.calendar
    for cycle in calendar.cycles:
        if cycle.period < 1 or not 0 <= cycle.position < cycle.period:
            yield f"the calendar has '{cycle.name}' in epoch {cycle.position} of each {cycle.period}"
            return
    if calendar.cycles and calendar.steps > 1:
        yield "the calendar has special epochs and several steps an epoch, which do not go together"
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


def _op_faults(program: Program, template: Template, op: Op) -> Iterator[str]:
    if op.stream not in program.streams:
        yield f"unknown stream '{op.stream}'"
    for access in op.reads + op.writes:
        yield from _access_faults(program, access)
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
            if op.kind in GROUP_KINDS:
                yield from (f"{template}: '{op.name}': {fault}" for fault in _transfer_faults(program, op))


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


def _transfer_faults(program: Program, op: Op) -> Iterator[str]:
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
        if op.kind is OpKind.EXCHANGE and op.transfer is not None and op.transfer.decision is None:
            yield from _conservation_faults(program, op, route, op.transfer.row_bytes)


def _conservation_faults(program: Program, op: Op, route: Route, row_bytes: int) -> Iterator[str]:
    """Check in every turn that the rows read are those sent, and that the rows that arrive fill the buffer written."""
    for accesses, ends, verb in ((op.reads, route.source, "sends"), (op.writes, route.target, "receives")):
        if not accesses:
            continue
        buffer = program.buffers[accesses[0].buffer]  # others hold counts or versions
        bound = buffer.rows.bound if isinstance(buffer.rows, Decision) else buffer.rows
        held = program.sizes.columns[bound.name] if isinstance(bound, Column) else np.full(program.ranks, bound)
        rows = np.zeros((program.ranks, *route.rows.shape[1:]), np.int64)
        np.add.at(rows, ends, route.rows)
        sent, room = _same_turns(rows * row_bytes, held * buffer.row_bytes)
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
        problems |= dict.fromkeys(_unordered(graph))
        if position == 0 or graph.turns[0].template == EVALUATE:
            problems |= dict.fromkeys(_unwritten(graph))
    return list(problems)


def _unordered(graph: Unrolled) -> Iterator[str]:
    uses: dict[tuple[str, int], list[tuple[int, bool]]] = {}
    for index, node in enumerate(graph.nodes):
        touched: dict[tuple[str, int], bool] = {}
        for access, writes in [(a, False) for a in node.op.reads] + [(a, True) for a in node.op.writes]:
            copy = graph.copy_of(node, access)
            if copy is not None:
                touched[copy] = touched.get(copy, False) or writes
        for copy, writes in touched.items():
            uses.setdefault(copy, []).append((index, writes))
    # what waited for an op that some ranks lack did not wait there, so that order is passed on where all have all ops
    passed_on = all(node.op.ranks is None for node in graph.nodes)
    for (name, _), users in uses.items():
        if passed_on and all(_fault(graph, name, *pair) is None for pair in neighbouring_uses(users)):
            continue
        for place, (second, second_writes) in enumerate(users):
            for first, first_writes in users[:place]:
                fault = _fault(graph, name, first, second) if first_writes or second_writes else None
                if fault is not None:
                    one, other = (_named(graph, index) for index in (first, second))
                    yield f"buffer '{name}' is used by {one} and {other}, one of them writing: {fault}"


def _fault(graph: Unrolled, name: str, first: int, second: int) -> str | None:
    """Describe why two uses of a buffer's copy, one of them writing, may overlap; None: they cannot."""
    if not graph.ordered(first, second):
        return "nothing orders them; add a dependency"
    hosts = graph.program.hosts
    shared = graph.program.buffers[name].space == "host-shared" and len(set(hosts)) < len(hosts)
    reads_of_peers = OpKind.PEER_READ in (graph.nodes[first].op.kind, graph.nodes[second].op.kind)
    if (shared or reads_of_peers) and not _through_collective(graph, first, second):
        return "they may be of two ranks, and no collective or barrier lies between them"
    return None


def _through_collective(graph: Unrolled, first: int, second: int) -> bool:
    """Whether a collective call of all ranks lies between two nodes (or is one of them, or they are one op)."""
    one, other = graph.nodes[first].op, graph.nodes[second].op
    if one.kind in GROUP_KINDS or other.kind in GROUP_KINDS:
        return True
    if one.form in WRITES_OWN_ROWS and other.form in WRITES_OWN_ROWS:
        return True
    if one.form is Form.OWN_VIEWS:  # of a rank, who alone waits for it; what other ranks do before it is ordered apart
        return True
    return any(
        graph.nodes[middle].op.kind in GROUP_KINDS
        and graph.ancestors[second] >> middle & 1
        and graph.ancestors[middle] >> first & 1
        for middle in range(first + 1, second)
    )


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
