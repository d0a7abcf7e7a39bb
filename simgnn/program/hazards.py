"""Uses of buffers that must be ordered: two uses of a copy, one of them writing, that may touch the same row."""

from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

from simgnn.program.dependencies import Node, Unrolled
from simgnn.program.kinds import CALLED_KINDS, WRITES_OWN_ROWS, Form
from simgnn.program.ops import Access
from simgnn.program.parts import Overlaps, Use


class Needed(NamedTuple):
    """The earlier nodes, a bit set, with which a node must be ordered because of its uses of a buffer's copy."""

    buffer: str
    node: int
    earlier: int


def orders_needed(graph: Unrolled, overlaps: Overlaps) -> Iterator[Needed]:
    """Yield, for each copy of a buffer and each node that uses it, the earlier nodes that it must be ordered with.

    ``overlaps`` knows the whole program, of which ``graph`` may show shorter epochs."""
    for (name, _), users in _uses(graph).items():
        yield from _needed(graph, overlaps, name, users)


def _uses(graph: Unrolled) -> dict[tuple[str, int], list[tuple[int, list[Use]]]]:
    """Return the uses of each copy of a buffer by node, in program order."""
    found: dict[tuple[str, int], list[tuple[int, list[Use]]]] = {}
    for index, node in enumerate(graph.nodes):
        touched: dict[tuple[str, int], list[Use]] = {}
        for access, writes in [(a, False) for a in node.op.reads] + [(a, True) for a in node.op.writes]:
            copy = graph.copy_of(node, access)
            if copy is not None:
                touched.setdefault(copy, []).append(use_of(graph, node, access, writes))
        for copy, uses in touched.items():
            found.setdefault(copy, []).append((index, list(dict.fromkeys(uses))))
    return found


def use_of(graph: Unrolled, node: Node, access: Access, writes: bool) -> Use:
    """Return how a node touches a buffer. What may touch every row is the same use in all templates and steps."""
    if access.part is None or access.part.places or access.part.width:
        return Use("", -1, None, writes)
    turn = graph.turns[node.turn]
    return Use(turn.template, graph.program.calendar.stretch_of[turn.step], access.part, writes)


def _needed(graph: Unrolled, overlaps: Overlaps, name: str, users: Sequence[tuple[int, list[Use]]]) -> Iterator[Needed]:
    every: dict[Use, int] = {}
    of_epoch: dict[tuple[Use, int], int] = {}
    of_turn: dict[tuple[Use, int], int] = {}
    for index, uses in users:
        turn = graph.nodes[index].turn
        epoch, earlier = graph.turns[turn].epoch, 0
        for use in uses:
            for other, before in every.items():
                if not (use.writes or other.writes):
                    continue
                if use.part is None or other.part is None:
                    earlier |= before
                    continue
                here, now = of_epoch.get((other, epoch), 0), of_turn.get((other, turn), 0)
                alike = use.stretch == other.stretch
                if overlaps.anywhere(name, use, other):
                    earlier |= before & ~here if alike else before
                if alike and here & ~now and overlaps.in_other_steps(name, use, other):
                    earlier |= here & ~now
                if alike and now and overlaps.in_one_turn(name, use, other):
                    earlier |= now
        bit = 1 << index
        for use in uses:
            every[use] = every.get(use, 0) | bit
            of_epoch[use, epoch] = of_epoch.get((use, epoch), 0) | bit
            of_turn[use, turn] = of_turn.get((use, turn), 0) | bit
        if earlier:
            yield Needed(name, index, earlier)


def between_ranks(graph: Unrolled) -> Callable[[int], int]:
    """Return a function of a node: the earlier nodes, a bit set, that have ended on all ranks when it starts on any.
    Between the two lies a call of all ranks, or one of them is such a call."""
    called = [node.op.kind in CALLED_KINDS for node in graph.nodes]
    calls = sum(1 << index for index, call in enumerate(called) if call)
    own, views = (
        sum(1 << index for index, node in enumerate(graph.nodes) if node.op.form in forms)
        for forms in (WRITES_OWN_ROWS, (Form.OWN_VIEWS,))
    )
    passed: list[int] = []
    for index, parents in enumerate(graph.parents):
        bits = 0
        for parent in parents:
            if parent < index:
                ranks = graph.nodes[parent].op.ranks
                whole = ranks is None or ranks == graph.nodes[index].op.ranks
                bits |= passed[parent] if whole else 0
                if called[parent]:
                    bits |= graph.ended_with(parent, index, graph.ancestors)
        passed.append(bits)

    def ended_everywhere(index: int) -> int:
        if called[index]:
            return graph.ancestors[index]
        # each rank touches only its own rows of the buffer; it alone waits for its view of them, as what other ranks do
        # before that is ordered apart
        return passed[index] | calls | views | (own if graph.nodes[index].op.form in WRITES_OWN_ROWS else 0)

    return ended_everywhere


def met_by_ranks(before: Unrolled, after: Unrolled) -> Iterator[tuple[str, Node, Node]]:
    """Yield (buffer, use, later use) for buffers that ranks of a host share and one of the uses writes, if another rank
    may still run the first use when a rank runs the second: each rank begins ``after`` when its own ops of ``before``
    have ended, and no call of all ranks lies behind the first use or ahead of the second."""
    ended = _ended_everywhere(before)
    begun = _called(after)
    shared = {name for name, buffer in before.program.buffers.items() if buffer.space == "host-shared"}
    later: dict[str, list[tuple[Node, bool]]] = {}
    for index, node in enumerate(after.nodes):
        if not after.ancestors[index] & begun and node.op.kind not in CALLED_KINDS:
            for name, writes in _touched(node, shared):
                later.setdefault(name, []).append((node, writes))
    for index, node in enumerate(before.nodes):
        for name, writes in _touched(node, shared) if not ended >> index & 1 else ():
            for other, other_writes in later.get(name, ()):
                own = {node.op.form, other.op.form} <= WRITES_OWN_ROWS
                if (writes or other_writes) and not own and Form.OWN_VIEWS not in (node.op.form, other.op.form):
                    yield name, node, other


def _touched(node: Node, names: Set[str]) -> Iterator[tuple[str, bool]]:
    """Yield the buffers among ``names`` that a node uses, and whether it writes them."""
    written = {access.buffer for access in node.op.writes}
    for name in sorted({access.buffer for access in node.op.reads + node.op.writes} & names):
        yield name, name in written


def _called(graph: Unrolled) -> int:
    """Return a bit set of the calls of all ranks, which every rank waits for."""
    calls = (n for n, node in enumerate(graph.nodes) if node.op.kind in CALLED_KINDS and node.op.guard is None)
    return sum(1 << index for index in calls)


def _ended_everywhere(graph: Unrolled) -> int:
    """Return a bit set of the nodes that have ended on all ranks when one rank has ended all of its nodes."""
    ended = calls = _called(graph)
    while calls:
        ended |= graph.ancestors[(calls & -calls).bit_length() - 1]
        calls &= calls - 1
    return ended
