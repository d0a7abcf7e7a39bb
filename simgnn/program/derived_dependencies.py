"""Dependencies derived from buffers: the fewest that order every two uses of which one writes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simgnn.program.ops import Dependency
from simgnn.program.program import EVALUATE, Program, Template, Turn
from simgnn.program.unroll import Unrolled, unroll


def derive_dependencies(program: Program) -> Program:
    """The same program with ``after`` filled in for all ops of training turns and of evaluation.

    For planners that emit ops in an order that is right, one step an epoch and buffers of depth 1: later uses depend on
    earlier ones of this epoch and of the one before. What other dependencies (or the order of a communicating stream)
    already imply is left out, so that each that stays is needed. Dependencies that the planner stated stay.
    """
    assert program.calendar.steps == 1, "with several steps an epoch, state dependencies by hand"
    assert all(buffer.depth == 1 for buffer in program.buffers.values()), "rings need dependencies by hand"
    pairs = _neighbours(program)
    found: dict[str, dict[str, list[Dependency]]] = {
        name: {op.name: list(op.after) for op in template.ops} for name, template in program.templates.items()
    }
    for before, name in pairs:
        _derive(program, before, name, found[name])
    templates = {
        name: Template(name, tuple(replace(op, after=tuple(found[name][op.name])) for op in template.ops))
        for name, template in program.templates.items()
    }
    return replace(program, templates=templates)


def _neighbours(program: Program) -> list[tuple[str | None, str]]:
    """(template of the epoch before, template) for every pair that a run can meet."""
    calendar = program.calendar
    first = calendar.template(0)
    pairs: list[tuple[str | None, str]] = [(None, first)]
    horizon = calendar.refresh_interval + 2 if calendar.refresh is not None else 3
    for epoch in range(1, horizon + 1):
        pair = (calendar.template(epoch - 1), calendar.template(epoch))
        if pair not in pairs:
            pairs.append(pair)
    pairs += [(None, name) for name in program.templates if name == EVALUATE]
    return pairs


def _derive(program: Program, before: str | None, name: str, found: Mapping[str, list[Dependency]]) -> None:
    names = [name] if before is None else [before, name]
    graph = unroll(program, [Turn(epoch, 0, template) for epoch, template in enumerate(names)])
    here = len(names) - 1
    uses = _uses(graph)
    ancestors: list[int] = []
    for index, node in enumerate(graph.nodes):
        needed, bits = _needed(graph, ancestors, index, _conflicts(graph, uses, index))
        ancestors.append(bits)
        if node.turn != here:
            continue
        have: Sequence[Dependency] = found[node.op.name]
        for other in reversed(needed):
            dependency = Dependency(graph.nodes[other].op.name, epochs_back=here - graph.nodes[other].turn)
            if dependency not in have:
                found[node.op.name].append(dependency)


def _uses(graph: Unrolled) -> dict[str, list[tuple[int, bool]]]:
    """Buffer -> its uses in order: (node, whether it writes)."""
    uses: dict[str, list[tuple[int, bool]]] = {}
    for index, node in enumerate(graph.nodes):
        written = {access.buffer for access in node.op.writes}
        for name in dict.fromkeys([access.buffer for access in node.op.reads + node.op.writes]):
            uses.setdefault(name, []).append((index, name in written))
    return uses


def _conflicts(graph: Unrolled, uses: Mapping[str, list[tuple[int, bool]]], index: int) -> set[int]:
    """Earlier nodes that touch a buffer of this node, one of the two writing."""
    op = graph.nodes[index].op
    written = {access.buffer for access in op.writes}
    result: set[int] = set()
    for name in {access.buffer for access in op.reads + op.writes}:
        result.update(other for other, writes in uses[name] if other < index and (writes or name in written))
    stream = graph.program.streams[op.stream]
    if stream.group is not None:
        result = {o for o in result if graph.nodes[o].op.stream != op.stream}
    return result


def _needed(graph: Unrolled, ancestors: Sequence[int], index: int, wanted: set[int]) -> tuple[list[int], int]:
    """The wanted predecessors that nothing else implies, and a bit set of all that has then ended before this node."""
    bits, needed = 0, []
    for parent in graph.parents[index]:
        if parent < index:  # the validator reports a dependency on a later op, such as one that a schedule adds
            bits |= _through(graph, ancestors, parent, index)
    for other in sorted(wanted, reverse=True):
        if not bits >> other & 1:
            needed.append(other)
            bits |= _through(graph, ancestors, other, index)
    return sorted(needed), bits


def _through(graph: Unrolled, ancestors: Sequence[int], parent: int, child: int) -> int:
    """What has ended before a child of a parent, for all that the parent tells."""
    return (ancestors[parent] if graph.passes_on(parent, child) else 0) | (1 << parent)
