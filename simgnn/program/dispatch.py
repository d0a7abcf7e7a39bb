"""Decides which op each stream of a rank runs next. Both backends share it; it knows no clock, thread or tensor.

A communicating stream runs its ops in program order. For any other stream the schedule picks one of the ready ops, by
default the first in program order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from numbers import Integral
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from simgnn.errors import PolicyError
from simgnn.program.ops import Op, Stream
from simgnn.program.program import Program, Template
from simgnn.program.sizes import Decision

DONE = -1
"""In ``OpenTurn.waiting``: the op has ended."""


class Ready(NamedTuple):
    """An op whose dependencies have ended. Sequences of these are in program order, earlier turns first."""

    epoch: int
    step: int
    op_id: int
    name: str


class Observed(NamedTuple):
    """What a schedule may read: the guards and sizes of ops that have ended on this rank, by decision name, and how
    many ops of each stream have ended. Numbers that concern one peer are not among them."""

    decisions: Mapping[str, int]
    ended: Mapping[str, int]


class Picks(Protocol):
    """The methods of a schedule that choose ops while a program runs."""

    @property
    def picks(self) -> bool:
        """Whether the schedule chooses among ready ops; otherwise they run in program order."""

    def init_pick(self) -> Any:
        """Return the state of a stream before its first choice."""

    def pick(self, ready: Sequence[Ready], observed: Observed, state: Any) -> tuple[int, Any]:
        """Return the position in ``ready`` of the op that runs next, and the new state of the stream."""


@dataclass(frozen=True)
class Order:
    """The ops of a template that one rank runs, in program order.

    ``places``: the position of each op in the template. ``position``: op name -> position here. ``waits``: how many ops
    of the same turn each op waits for; ``followers``: the ops that wait for it. ``earlier``: (op, turns back, name) of
    the other ops that must have ended: in earlier turns, or on streams that a host's ranks share. ``decisions``: the
    decisions that guard and size each op, the guard first."""

    ops: tuple[Op, ...]
    op_ids: tuple[int, ...]
    places: tuple[int, ...]
    position: Mapping[str, int]
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    earlier: tuple[tuple[int, int, str], ...]
    decisions: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, program: Program, template: Template, runs: Sequence[bool]) -> "Order":
        """Return the order of a template on a rank. ``runs``: whether the rank runs each op of the template."""
        places = tuple(place for place, here in enumerate(runs) if here)
        ops = tuple(template.ops[place] for place in places)
        position = {op.name: index for index, op in enumerate(ops)}
        waits, followers = [0] * len(ops), [list[int]() for _ in ops]
        earlier: list[tuple[int, int, str]] = []
        for index, op in enumerate(ops):
            for dependency in op.after:
                back = dependency.steps_back + dependency.epochs_back * program.calendar.steps
                parent = template.ops[template.index[dependency.op]] if not back else None
                if parent is None or _shared(program, op) or _shared(program, parent):
                    earlier.append((index, back, dependency.op))
                elif parent.name in position:
                    followers[position[parent.name]].append(index)
                    waits[index] += 1
        return cls(
            ops=ops,
            op_ids=tuple(program.op_ids[template.name, op.name] for op in ops),
            places=places,
            position=position,
            waits=tuple(waits),
            followers=tuple(map(tuple, followers)),
            earlier=tuple(earlier),
            decisions=tuple(tuple(_decisions(program, op)) for op in ops),
        )


def _shared(program: Program, op: Op) -> bool:
    """Whether an op runs once for all ranks of a host."""
    return program.streams[op.stream].owner == "host"


def _decisions(program: Program, op: Op) -> Iterator[str]:
    if op.guard is not None:
        yield op.guard.decision
    for size in (*op.sizes, *(program.buffers[access.buffer].rows for access in op.writes)):
        if isinstance(size, Decision):
            yield size.name


What = TypeVar("What")


@dataclass(eq=False, slots=True)
class OpenTurn(Generic[What]):
    """A :class:`Turn` that a rank has begun and not ended. ``number`` orders turns; ``what``: the backend's own data.

    ``waiting``: how many predecessors of each op have not ended, or :data:`DONE`. ``left``: how many ops have not
    ended. ``late``: followers of an op in later turns or on other ranks. ``opened``: whether its ops are in streams."""

    on: "Dispatcher[What]"
    number: int
    epoch: int
    step: int
    order: Order
    what: What
    waiting: list[int] = field(init=False)
    left: int = field(init=False)
    late: dict[int, list["Job[What]"]] = field(default_factory=dict)
    opened: bool = False

    def __post_init__(self) -> None:
        self.waiting, self.left = list(self.order.waits), len(self.order.ops)


class Job(NamedTuple, Generic[What]):
    """One op of an open turn. Jobs of a stream sort in program order, earlier turns first."""

    number: int
    position: int
    turn: OpenTurn[What]

    @property
    def ready(self) -> Ready:
        turn = self.turn
        return Ready(turn.epoch, turn.step, turn.order.op_ids[self.position], turn.order.ops[self.position].name)


@dataclass(eq=False)
class Lane(Generic[What]):
    """A stream of one rank. ``queue``: its jobs in program order, if it communicates; ``ready``: a heap of the jobs
    that wait for nothing, if it does not. ``state``: the schedule's state; ``ended``: how many ops have ended."""

    stream: Stream
    queue: deque[Job[What]] = field(default_factory=deque)
    ready: list[Job[What]] = field(default_factory=list)
    state: Any = None
    ended: int = 0

    def __post_init__(self) -> None:
        self.ordered = self.stream.group is not None

    def wake(self) -> None:
        """Called when an op of the stream may be ready; backends whose streams sleep override it."""


Before = Callable[[OpenTurn[What], int, int, str], Iterable[OpenTurn[What]]]
"""(turn, op, turns back, name) -> the turns in flight in which an op of that name must end first."""


class Dispatcher(Generic[What]):
    """The streams of one rank. ``schedule`` None: ready ops run in program order. ``decided`` returns the value
    of a policy's decision in a turn on this rank, or None; it is called only if the schedule picks the next op."""

    def __init__(
        self, rank: int, lanes: Mapping[str, Lane[What]], schedule: Picks | None,
        decided: Callable[[OpenTurn[What], str], int | None],
    ) -> None:  # fmt: skip
        self.rank, self.lanes = rank, lanes
        self.schedule = schedule if schedule is not None and schedule.picks else None
        self.decisions: dict[str, int] = {}
        self._decided = decided
        if self.schedule is not None:
            for lane in lanes.values():
                lane.state = self.schedule.init_pick()

    def open(self, turn: OpenTurn[What], before: Before[What]) -> None:
        """Put the ops of a turn into their streams; turns are opened in order."""
        waiting, order = turn.waiting, turn.order
        turn.opened = True
        for index, back, name in order.earlier:
            for other in before(turn, index, back, name):
                place = other.order.position.get(name)
                if place is not None and other.waiting[place] != DONE:
                    other.late.setdefault(place, []).append(Job(turn.number, index, turn))
                    waiting[index] += 1
        for index, op in enumerate(order.ops):
            lane = self.lanes[op.stream]
            if lane.ordered:
                lane.queue.append(Job(turn.number, index, turn))
            if not waiting[index]:
                self._release(Job(turn.number, index, turn))

    def take(self, lane: Lane[What]) -> Job[What] | None:
        """Return the op that a stream with a free server (:class:`Stream`) runs next; None: no op is ready."""
        if lane.ordered:
            if lane.queue and not lane.queue[0].turn.waiting[lane.queue[0].position]:
                return lane.queue.popleft()
            return None
        if not lane.ready:
            return None
        if self.schedule is None:
            return heappop(lane.ready)
        lane.ready.sort()
        choices = [job.ready for job in lane.ready]
        seen = Observed(self.decisions, {name: other.ended for name, other in self.lanes.items()})
        found = self.schedule.pick(choices, seen, lane.state)
        two = isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Integral)
        if not two or not 0 <= found[0] < len(choices):
            expected = f"a position 0 to {len(choices) - 1} and the state"
            raise PolicyError.returned(self.schedule, "pick", repr(found), expected)
        choice, lane.state = found
        return lane.ready.pop(choice)

    def finish(self, turn: OpenTurn[What], index: int, ran: bool) -> None:
        """Mark an op as ended, or as skipped by its guard; ops that wait for nothing else become ready."""
        op = turn.order.ops[index]
        self.lanes[op.stream].ended += 1
        if self.schedule is not None:
            for name in turn.order.decisions[index][: None if ran else 1]:
                value = self._decided(turn, name)
                if value is not None:
                    self.decisions[name] = value
        turn.waiting[index] = DONE
        turn.left -= 1
        for follower in self.followers(turn, index):
            waiting = follower.turn.waiting
            waiting[follower.position] -= 1
            if not waiting[follower.position]:
                self._release(follower)

    def followers(self, turn: OpenTurn[What], index: int) -> Iterator[Job[What]]:
        """Yield the jobs that wait for an op."""
        for position in turn.order.followers[index]:
            yield Job(turn.number, position, turn)
        yield from turn.late.get(index, ())

    def _release(self, job: Job[What]) -> None:
        """Put a job that waits for nothing into its stream, which may belong to another rank on the same host."""
        turn = job.turn
        lane = turn.on.lanes[turn.order.ops[job.position].stream]
        if not lane.ordered:
            heappush(lane.ready, job)
        elif lane.queue[0] != job:
            return
        lane.wake()
