"""The order of ops: consecutive turns (:class:`Turn`) as one graph, and the dependencies that uses of buffers need."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import lcm

from simgnn.program.calendar import EVALUATE, STEADY, Calendar, Turn
from simgnn.program.ops import Access, Dependency, Op
from simgnn.program.program import Program, Template


@dataclass(frozen=True, slots=True)
class Node:
    """One op in one :class:`Turn`; ``turn`` is the position of that among the unrolled turns."""

    turn: int
    op: Op


@dataclass(frozen=True)
class Unrolled:
    """The ops of consecutive turns. Edges: dependencies, and program order on communicating streams."""

    program: Program
    turns: tuple[Turn, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All ops, turn by turn in program order."""
        return tuple(
            Node(position, op)
            for position, turn in enumerate(self.turns)
            for op in self.program.templates[turn.template].ops
        )

    @cached_property
    def _position(self) -> dict[tuple[int, str], int]:
        return {(node.turn, node.op.name): index for index, node in enumerate(self.nodes)}

    @cached_property
    def _turn_index(self) -> dict[tuple[int, int], int]:
        return {(turn.epoch, turn.step): position for position, turn in enumerate(self.turns)}

    def _earlier_turn(self, turn: int, steps_back: int, epochs_back: int) -> int | None:
        """Position of the :class:`Turn` that many steps and epochs back; None if before the first unrolled one."""
        here = self.turns[turn]
        steps = self.program.calendar.steps
        absolute = here.epoch * steps + here.step - steps_back - epochs_back * steps
        return self._turn_index.get((absolute // steps, absolute % steps)) if absolute >= 0 else None

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """The direct predecessors of every node."""
        result: list[tuple[int, ...]] = []
        last_on_stream: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            found: list[int] = []
            for dependency in node.op.after:
                turn = self._earlier_turn(node.turn, dependency.steps_back, dependency.epochs_back)
                parent = None if turn is None else self._position.get((turn, dependency.op))
                if parent is not None:
                    found.append(parent)
            stream = self.program.streams.get(node.op.stream)
            if stream is not None and stream.group is not None:
                if stream.name in last_on_stream:
                    found.append(last_on_stream[stream.name])
                last_on_stream[stream.name] = index
            result.append(tuple(found))
        return tuple(result)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each node, a bit set of the nodes that always end before it starts.

        Nodes are visited in order, so a parent must come before its child: a dependency on a later op of the same turn,
        such as one that a schedule adds, makes a cycle with program order and is reported by the validator."""
        result: list[int] = []
        for index, parents in enumerate(self.parents):
            bits = 0
            for parent in parents:
                if parent < index:
                    bits |= self.ended_with(parent, index, result)
            result.append(bits)
        return tuple(result)

    def ended_with(self, parent: int, child: int, ancestors: Sequence[int]) -> int:
        """Return a bit set of the nodes that always end before ``child`` starts, because it waits for ``parent``.

        An op that exists on only some ranks delays nothing on the others, so its own predecessors count only if it
        exists on every rank on which its child does."""
        ranks = self.nodes[parent].op.ranks
        passes_on = ranks is None or ranks == self.nodes[child].op.ranks
        return (ancestors[parent] if passes_on else 0) | (1 << parent)

    def ordered(self, first: int, second: int) -> bool:
        """Whether one of two nodes always ends before the other starts."""
        early, late = min(first, second), max(first, second)
        return bool(self.ancestors[late] >> early & 1)

    def copy_of(self, node: Node, access: Access) -> tuple[str, int] | None:
        """The physical copy of a buffer that an access uses: (name, slot). None: its turn is not unrolled."""
        buffer = self.program.buffers[access.buffer]
        turn = self._earlier_turn(node.turn, access.steps_back, access.epochs_back)
        if turn is None:
            return None
        at = self.turns[turn]
        count = at.epoch if buffer.ring == "epoch" else at.epoch * self.program.calendar.steps + at.step
        return buffer.name, count % buffer.depth


def windows(program: Program) -> list[Unrolled]:
    """Return windows of consecutive turns that contain every sequence of templates in a run. A window is deep enough
    for every ring to wrap around. Long stretches of equal epochs are cut short: what orders two uses across so many of
    them is a chain through each, which a longer stretch has too."""
    calendar, after = program.calendar, [dependency for _, op in program.ops for dependency in op.after]
    if calendar.unlike:
        short = _shortened(program)
        rings = [buffer.depth for buffer in program.buffers.values() if buffer.ring == "epoch"]
        laps = 1 if calendar.drained else max([1, *rings, *(dependency.epochs_back for dependency in after)]) + 1
        return [Unrolled(short, tuple(short.calendar.turns(laps)))]
    depth = max((buffer.depth for buffer in program.buffers.values()), default=1)
    if calendar.steps > 1:
        # nothing looks further back than rings and dependencies: more steps in the middle of an epoch add nothing
        back = max((dependency.steps_back for dependency in after), default=0)
        steps = min(calendar.steps, 2 * max(depth, back) + 3)
        laps = max((buffer.depth for buffer in program.buffers.values() if buffer.ring == "epoch"), default=1) + 1
        short = replace(program, calendar=replace(calendar, steps=steps))
        return [Unrolled(short, tuple(short.calendar.turns(laps)))]
    back = max((max(dependency.epochs_back, dependency.steps_back) for dependency in after), default=0)
    epochs = max(depth, back) + 2
    if not calendar.cycles:
        return [Unrolled(program, tuple(calendar.turns(epochs)))]
    names = calendar.sequence(epochs)
    return [Unrolled(program, tuple(Turn(epoch, 0, name) for epoch, name in enumerate(names)))]


def _shortened(program: Program) -> Program:
    """Return a program of unlike steps with shorter stretches. Any step and what its dependencies name look alike in
    both, and so do rings: each stretch loses whole turns of them. A chain of dependencies through a stretch of this
    length passes some op twice, so that longer stretches have such chains, too."""
    rings = [buffer.depth for buffer in program.buffers.values() if buffer.ring == "step"]
    back = max((dependency.steps_back for _, op in program.ops for dependency in op.after), default=0)
    most = max(len(template.ops) for template in program.templates.values())
    longest, turn = 2 * max([1, back, *rings]) + 3 + back * most, lcm(*rings)
    unlike = tuple(
        replace(stretch, steps=min(stretch.steps, longest + (stretch.steps - longest) % turn))
        for stretch in program.calendar.unlike
    )
    steps = sum(stretch.steps for stretch in unlike)
    return replace(program, calendar=replace(program.calendar, steps=steps, unlike=unlike))


def derive_dependencies(program: Program) -> Program:
    """Return the program with ``after`` filled in for all ops of training turns and of evaluation: the fewest
    dependencies that order every two uses of a buffer of which one writes.

    For planners that emit ops in a correct order, for epochs of one step or of unlike steps, and buffers of depth 1:
    later uses depend on earlier ones of this turn and of the previous one; see :func:`_derive_far` for special epochs,
    and for steps that lie farther apart. Dependencies that others (or the order of a communicating stream) imply are
    left out. Dependencies that the planner stated stay. A part of a buffer counts as all of it: steps that write parts
    come one after the other, so that who reads all parts waits for the last step alone. An evaluation of several steps
    has dependencies of its own."""
    if program.calendar.evaluation:
        made = {name: one for view in program.views for name, one in derive_dependencies(view).templates.items()}
        return replace(program, templates={name: made[name] for name in program.templates})
    unlike = bool(program.calendar.unlike)
    assert program.calendar.steps == 1 or unlike, "with mini-batches, state dependencies by hand"
    assert all(buffer.depth == 1 for buffer in program.buffers.values()), "rings need dependencies by hand"
    found: dict[str, dict[str, list[Dependency]]] = {
        name: {op.name: list(op.after) for op in template.ops} for name, template in program.templates.items()
    }
    near = _turn_by_turn(program) if unlike else program
    for before, name in _neighbours(program):
        _derive(near, before, name, found[name], by_step=unlike)
    derived = _with_dependencies(program, found)
    while (program.calendar.cycles or unlike) and _derive_far(derived, found):
        derived = _with_dependencies(program, found)
    return derived


def _turn_by_turn(program: Program) -> Program:
    """Return a program of unlike steps as one whose turns are epochs, in which a step back is an epoch back. What lies
    a whole epoch back is no neighbour."""
    templates = {
        name: Template(
            name, tuple(replace(op, after=tuple(d for d in op.after if not d.epochs_back)) for op in one.ops)
        )
        for name, one in program.templates.items()
    }
    return replace(program, templates=templates, calendar=Calendar(STEADY))


def _with_dependencies(program: Program, found: Mapping[str, Mapping[str, Sequence[Dependency]]]) -> Program:
    templates = {
        name: Template(name, tuple(replace(op, after=tuple(found[name][op.name])) for op in template.ops))
        for name, template in program.templates.items()
    }
    return replace(program, templates=templates)


def _derive_far(program: Program, found: Mapping[str, Mapping[str, list[Dependency]]]) -> bool:
    """Order uses of a buffer that lie several turns apart, such as those in special epochs alone, or in the forward and
    the backward step of a chunk; return whether any dependency was added. The turn after the first use waits for it:
    the last op of that turn that ends before the second use. So no rank needs to remember ops of more than one turn
    before."""
    added, unlike = False, bool(program.calendar.unlike)
    for graph in windows(program):
        begins = [0]
        for each in graph.turns:
            begins.append(begins[-1] + len(program.templates[each.template].ops))
        for users in _uses(graph).values():
            for first, second in neighbouring_uses(users):
                turn = graph.nodes[first].turn
                if graph.nodes[second].turn <= turn + 1 or graph.ordered(first, second):
                    continue
                between = range(begins[turn + 2] - 1, begins[turn + 1] - 1, -1)
                waits = [n for n in between if graph.nodes[n].op.ranks is None and graph.ordered(n, second)]
                have = found[graph.turns[turn + 1].template][graph.nodes[waits[0]].op.name] if waits else []
                dependency = _turns_back(graph.nodes[first].op.name, 1, unlike)
                if waits and dependency not in have:
                    have.append(dependency)
                    added = True
    return added


def _neighbours(program: Program) -> list[tuple[str | None, str]]:
    """Return every pair (template of a turn, template of the next) in a run; None stands before the first turn."""
    calendar = program.calendar
    if calendar.unlike:
        short = [*_shortened(program).calendar.of_epoch(0)] * (1 if calendar.drained else 2)
    else:
        short = calendar.sequence(2)
    pairs = [(before, name) for before, name in pairwise([None, *short]) if name is not None]
    return [*dict.fromkeys(pairs), *((None, name) for name in program.templates if name == EVALUATE)]


def _turns_back(op: str, turns: int, by_step: bool) -> Dependency:
    return Dependency(op, steps_back=turns) if by_step else Dependency(op, epochs_back=turns)


def _derive(
    program: Program, before: str | None, name: str, found: Mapping[str, list[Dependency]], by_step: bool
) -> None:
    names = [name] if before is None else [before, name]
    graph = Unrolled(program, tuple(Turn(epoch, 0, template) for epoch, template in enumerate(names)))
    here = len(names) - 1
    uses = _uses(graph)
    ancestors: list[int] = []
    for index, node in enumerate(graph.nodes):
        needed, bits = _needed(graph, ancestors, index, _conflicts(graph, uses, index))
        ancestors.append(bits)
        if node.turn != here:
            continue
        have = found[node.op.name]
        for other in needed:
            dependency = _turns_back(graph.nodes[other].op.name, here - graph.nodes[other].turn, by_step)
            if dependency not in have:
                have.append(dependency)


def _uses(graph: Unrolled) -> dict[str, list[tuple[int, bool]]]:
    """Return the uses of each buffer in order: (node, whether it writes)."""
    uses: dict[str, list[tuple[int, bool]]] = {}
    for index, node in enumerate(graph.nodes):
        written = {access.buffer for access in node.op.writes}
        for name in dict.fromkeys([access.buffer for access in node.op.reads + node.op.writes]):
            uses.setdefault(name, []).append((index, name in written))
    return uses


def _conflicts(graph: Unrolled, uses: Mapping[str, list[tuple[int, bool]]], index: int) -> set[int]:
    """Return the earlier nodes that share a buffer with this node, if at least one of the two writes it."""
    op = graph.nodes[index].op
    written = {access.buffer for access in op.writes}
    result: set[int] = set()
    for name in {access.buffer for access in op.reads + op.writes}:
        result.update(other for other, writes in uses[name] if other < index and (writes or name in written))
    if graph.program.streams[op.stream].group is not None:
        result = {other for other in result if graph.nodes[other].op.stream != op.stream}
    return result


def _needed(graph: Unrolled, ancestors: Sequence[int], index: int, wanted: set[int]) -> tuple[list[int], int]:
    """Return wanted predecessors that no other implies, latest first, and a bit set of all nodes that end before."""
    bits, needed = 0, []
    for parent in graph.parents[index]:
        if parent < index:
            bits |= graph.ended_with(parent, index, ancestors)
    for other in sorted(wanted, reverse=True):
        if not bits >> other & 1:
            needed.append(other)
            bits |= graph.ended_with(other, index, ancestors)
    return needed, bits


def neighbouring_uses(users: list[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of uses from whose order that of all conflicting pairs follows: a write and its reads, and those
    reads and the next write. ``users``: (node, whether it writes), ascending."""
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
