"""Buffer hazards: any two uses of one buffer copy, of which one writes, must be ordered by the program itself."""

from collections.abc import Iterator

from simgnn.program.kinds import GROUP_KINDS, Form, OpKind
from simgnn.program.program import EVALUATE, Program, Turn
from simgnn.program.unroll import Unrolled, unroll, windows


def hazard_problems(program: Program) -> list[str]:
    """Unordered uses, and reads of temporary buffers that nothing has written."""
    problems: dict[str, None] = {}
    found = windows(program)
    if EVALUATE in program.templates:  # evaluation runs alone between two epochs
        found.append(unroll(program, [Turn(0, 0, EVALUATE)]))
    for position, graph in enumerate(found):
        for problem in _unordered(graph):
            problems.setdefault(problem)
        if position == 0 or graph.turns[0].template == EVALUATE:
            for problem in _unwritten(graph):
                problems.setdefault(problem)
    return list(problems)


def _unordered(graph: Unrolled) -> list[str]:
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
    problems = []
    for (name, _), users in uses.items():
        if passed_on and all(_fault(graph, name, *pair) is None for pair in _neighbours(users)):
            continue
        for place, (second, second_writes) in enumerate(users):
            for first, first_writes in users[:place]:
                fault = _fault(graph, name, first, second) if first_writes or second_writes else None
                if fault is not None:
                    problems.append(_message(graph, name, first, second, fault))
    return problems


def _neighbours(users: list[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
    """Of all pairs of uses of which one writes, those that the others follow from where order is passed on: a write and
    what reads it, these and the next write. ``users``: (node, whether it writes), ascending."""
    written: int | None = None
    reads: list[int] = []
    for user, writes in users:
        if writes and reads:
            yield from ((read, user) for read in reads)
        elif written is not None:
            yield written, user
        if writes:
            written, reads = user, []
        else:
            reads.append(user)


def _fault(graph: Unrolled, name: str, first: int, second: int) -> str | None:
    """Why two uses of a buffer's copy, one of them writing, may meet; None: they cannot."""
    if not graph.ordered(first, second):
        return "nothing orders them; add a dependency"
    hosts = graph.program.hosts
    shared = graph.program.buffers[name].space == "host-shared" and len(set(hosts)) < len(hosts)
    if (shared or _by_peer(graph, first, second)) and not _through_collective(graph, first, second):
        return "they may be of two ranks, and no collective or barrier lies between them"
    return None


def _by_peer(graph: Unrolled, first: int, second: int) -> bool:
    """Whether one of two nodes reads the memory of another rank."""
    return OpKind.PEER_READ in (graph.nodes[first].op.kind, graph.nodes[second].op.kind)


def _through_collective(graph: Unrolled, first: int, second: int) -> bool:
    """Whether a call that all ranks make together lies between two nodes (or is one of them, or they are one op)."""
    if graph.nodes[first].op.kind in GROUP_KINDS or graph.nodes[second].op.kind in GROUP_KINDS:
        return True
    if graph.nodes[first].op.form is Form.OWN_ROWS and graph.nodes[second].op.form is Form.OWN_ROWS:
        return True
    return any(
        graph.nodes[middle].op.kind in GROUP_KINDS
        and graph.ancestors[second] >> middle & 1
        and graph.ancestors[middle] >> first & 1
        for middle in range(first + 1, second)
    )


def _unwritten(graph: Unrolled) -> list[str]:
    problems = []
    written: set[tuple[str, int]] = set()
    for node in graph.nodes:
        for access in node.op.reads:
            copy = graph.copy_of(node, access)
            if copy is None or graph.program.buffers[access.buffer].persistent or copy in written:
                continue
            turn = graph.turns[node.turn]
            problems.append(
                f"'{node.op.name}' of {turn.template} reads buffer '{access.buffer}' before anything has written it"
            )
        written.update(copy for access in node.op.writes if (copy := graph.copy_of(node, access)) is not None)
    return problems


def _message(graph: Unrolled, buffer: str, first: int, second: int, why: str) -> str:
    names = []
    for index in (first, second):
        node = graph.nodes[index]
        turn = graph.turns[node.turn]
        names.append(f"'{node.op.name}' (epoch {turn.epoch}, step {turn.step})")
    return f"buffer '{buffer}' is used by {names[0]} and {names[1]}, one of them writing: {why}"
