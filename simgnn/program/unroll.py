"""Consecutive turns laid out as one graph, to prove what must hold for every run: which op surely ends before which."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simgnn.program.ops import Access, Op
from simgnn.program.program import Program, Turn


@dataclass(frozen=True, slots=True)
class Node:
    """One op in one turn; ``turn`` is its position among the unrolled turns."""

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

    def find(self, turn: int, name: str) -> int | None:
        """Node index of an op in an unrolled turn."""
        return self._position.get((turn, name))

    def earlier_turn(self, turn: int, steps_back: int, epochs_back: int) -> int | None:
        """Position of the turn that lies so far back; None when it is before the first unrolled one."""
        here = self.turns[turn]
        steps = self.program.calendar.steps
        absolute = here.epoch * steps + here.step - steps_back - epochs_back * steps
        return self._turn_index.get((absolute // steps, absolute % steps)) if absolute >= 0 else None

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """Direct predecessors of every node."""
        result: list[tuple[int, ...]] = []
        last_on_stream: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            found: list[int] = []
            for dependency in node.op.after:
                turn = self.earlier_turn(node.turn, dependency.steps_back, dependency.epochs_back)
                parent = None if turn is None else self.find(turn, dependency.op)
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
        """For each node a bit set of the nodes that have surely ended before it starts.

        Nodes are visited in order, so a parent must come before its child: a dependency on a later op of the same turn
        makes a cycle with program order and is reported by the validator. An op that exists on some ranks only holds
        nothing back on the others, so what it waited for counts on its own ranks alone.
        """
        result: list[int] = []
        for index, parents in enumerate(self.parents):
            bits = 0
            for parent in parents:
                if parent < index:
                    bits |= (result[parent] if self.passes_on(parent, index) else 0) | (1 << parent)
            result.append(bits)
        return tuple(result)

    def passes_on(self, parent: int, child: int) -> bool:
        """Whether a parent exists wherever its child does: the child then waits for all that the parent waited for."""
        ranks = self.nodes[parent].op.ranks
        return ranks is None or ranks == self.nodes[child].op.ranks

    def ordered(self, first: int, second: int) -> bool:
        """Whether one of two nodes surely ends before the other starts."""
        early, late = min(first, second), max(first, second)
        return bool(self.ancestors[late] >> early & 1)

    def copy_of(self, node: Node, access: Access) -> tuple[str, int] | None:
        """The physical copy of a buffer that an access touches: (name, slot). None: a turn before the unrolled ones."""
        buffer = self.program.buffers[access.buffer]
        turn = self.earlier_turn(node.turn, access.steps_back, access.epochs_back)
        if turn is None:
            return None
        at = self.turns[turn]
        count = at.epoch if buffer.ring == "epoch" else at.epoch * self.program.calendar.steps + at.step
        return buffer.name, count % buffer.depth


def unroll(program: Program, turns: Sequence[Turn]) -> Unrolled:
    """Lay out the given consecutive turns."""
    return Unrolled(program, tuple(turns))


def windows(program: Program) -> list[Unrolled]:
    """Windows of consecutive turns that show every neighbourhood that a run can meet: the start of the run, and around
    each refresh. A window is deep enough for every ring to wrap around."""
    depth = max((buffer.depth for buffer in program.buffers.values()), default=1)
    back = max(
        (
            max(dependency.epochs_back, -(-dependency.steps_back // program.calendar.steps))
            for _, op in program.ops
            for dependency in op.after
        ),
        default=0,
    )
    calendar = program.calendar
    epochs = max(depth, back) + 2
    if calendar.steps > 1:
        return [_of_steps(program, depth)]
    result = [unroll(program, list(calendar.turns(epochs)))]
    if calendar.refresh is not None and calendar.refresh_interval > 1:
        middle = calendar.refresh_interval
        span = range(max(0, middle - epochs), middle + epochs)
        result.append(unroll(program, [Turn(epoch, 0, calendar.template(epoch)) for epoch in span]))
    return result


def _of_steps(program: Program, depth: int) -> Unrolled:
    """The first epochs of a run of several steps an epoch, cut to as few steps as show every neighbourhood: nothing
    looks further back than rings and dependencies, so that more steps in the middle of an epoch add nothing."""
    back = max((dependency.steps_back for _, op in program.ops for dependency in op.after), default=0)
    steps = min(program.calendar.steps, 2 * max(depth, back) + 3)
    laps = max((buffer.depth for buffer in program.buffers.values() if buffer.ring == "epoch"), default=1) + 1
    short = replace(program, calendar=replace(program.calendar, steps=steps))
    return unroll(short, list(short.calendar.turns(laps)))
