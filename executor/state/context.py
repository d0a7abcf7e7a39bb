"""What handlers work with on one rank: buffers, routes, groups, modules and policies by name; never a system's name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from executor.policies.accelerated import accelerated_class
from executor.state.buffers import BufferStore, Now, Value
from simgnn.errors import BackendError
from simgnn.policy import Action, PolicyContext
from simgnn.program.kinds import Segment
from simgnn.program.ops import Access, Op
from simgnn.program.program import Program, Template

if TYPE_CHECKING:
    from executor.layers.blocks import BlockAdjacency
    from executor.state.optimizer import FlatOptimizer
    from executor.state.task import Task


class Sent(NamedTuple):
    """What an op handed to ``torch.distributed``, counted from the tensors themselves."""

    bytes_sent: int = 0
    collective_bytes: int = 0
    control_bytes: int = 0
    messages: int = 0


NOTHING = Sent()
NOBODY = -1
"""Stands for the peer of a decision that concerns no single other rank."""
Handler = Callable[[Now], Sent | None]


@dataclass(frozen=True)
class LocalRoute:
    """A named list of rows as one rank sees it.

    ``gather``: local rows to send, peers ascending (None: the sent buffer lies in that order already). ``scatter``:
    local rows that arriving rows belong to, peers ascending (None: they are stored as they arrive). ``send``,
    ``receive``: rows to and from each rank, [P]. ``empty``: no rank sends anything.
    """

    gather: torch.Tensor | None
    scatter: torch.Tensor | None
    send: tuple[int, ...]
    receive: tuple[int, ...]
    empty: bool = False

    @property
    def leaving(self) -> torch.Tensor | None:
        """The local rows that are sent; those that arrive where the route names only these."""
        return self.scatter if self.gather is None else self.gather

    @property
    def arriving(self) -> torch.Tensor | None:
        """The local rows that arriving rows belong to; those that are sent where the route names only these."""
        return self.gather if self.scatter is None else self.scatter

    @property
    def arriving_counts(self) -> tuple[int, ...]:
        """How many of :attr:`arriving` belong to each rank, [P]."""
        return self.send if self.scatter is None else self.receive

    def reversed(self) -> "LocalRoute":
        """The same rows the other way round."""
        return LocalRoute(self.scatter, self.gather, self.receive, self.send, self.empty)


@dataclass(frozen=True)
class GroupHandle:
    """A process group as a member sees it. ``process_group`` None: a group of one, nothing is sent."""

    process_group: Any
    members: tuple[int, ...]
    device: torch.device


class Network(Protocol):
    """The layers of a model, by their number from 1."""

    def segment(self, layer: int, segment: Segment) -> Callable[..., Any]:
        """A function on the tensors that the segment's op reads."""
        ...

    def on_tape(self, layer: int) -> bool:
        """Whether functions of a layer take ``call=``, see :data:`executor.layers.tape.Call`."""
        ...

    def set_training(self, training: bool) -> None:
        """Layers behave as in training, or as in an evaluation."""
        ...

    def state(self) -> list[dict[str, torch.Tensor]]:
        """What training changes in the modules besides parameters, by layer."""
        ...

    def load_state(self, state: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Put back what :meth:`state` returned."""
        ...


class Reversible(Protocol):
    """What a forward op leaves for its backward op."""

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Gradients of the inputs that learn, from those of the outputs; None: no gradient."""
        ...


class Kept:
    """What one forward op leaves for its backward op, by turn, until that takes it."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: dict[int, Reversible] = {}

    def put(self, now: Now, reversible: Reversible) -> None:
        """Keep how a segment is reversed."""
        self._turns[now.count] = reversible

    def take(self, now: Now) -> Reversible:
        """That of this turn, once."""
        return self._turns.pop(now.count)


Pairs = dict[tuple[int, int], list[int]]


@dataclass(frozen=True)
class Apart:
    """Payload of the training turns of some epochs."""

    epochs: range
    pairs: Pairs = field(default_factory=dict)


Note = Callable[[Now, str, int, int], None]
"""Where decisions are written down: (turn, decision, peer, value)."""


def _unrecorded(now: Now, decision: str, peer: int, value: int) -> None:
    """Nobody writes decisions down."""


NoteLoss = Callable[[Now, torch.Tensor], None]
"""Where the metrics of a mini-batch on this rank alone are written down."""


def _unnoted(now: Now, metrics: torch.Tensor) -> None:
    """Nobody writes losses down."""


NoteRows = Callable[[int, int, str, int, int], None]
"""Where is written down how many rows moved: (epoch, step, place or route, peer, rows)."""


def uncounted(epoch: int, step: int, place: str, peer: int, rows: int) -> None:
    """Nobody counts rows."""


@dataclass
class RankContext:
    """Everything that handlers of one rank share. ``decisions``: named integers that policies have decided so far;
    ``pairs``: payload by (op id, target) as [messages, bytes]; ``apart``: the same of some epochs alone, each with a
    name; ``note``: where decisions are written down; ``note_loss``: a mini-batch's metrics, before they are summed over
    ranks; ``note_rows``: rows that arrive along routes which bring others in every turn; ``written``: memory that ranks
    of a host share and this one changes while it trains, by name; ``resources`` and ``memo``: see
    :class:`simgnn.policy.PolicyContext`; ``control``: a group of all ranks on the host for messages that are not part
    of the program."""

    program: Program
    rank: int
    device: torch.device
    store: BufferStore
    seed: int = 0
    routes: Mapping[str, LocalRoute] = field(default_factory=dict)
    groups: Mapping[str, GroupHandle] = field(default_factory=dict)
    network: Network | None = None
    task: "Task | None" = None
    optimizer: "FlatOptimizer | None" = None
    blocks: "BlockAdjacency | None" = None
    policies: Mapping[str, Any] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    pairs: Pairs = field(default_factory=dict)
    apart: Mapping[str, Apart] = field(default_factory=dict)
    kept: dict[tuple[str, str], Kept] = field(default_factory=dict)
    note: Note = _unrecorded
    note_loss: NoteLoss = _unnoted
    note_rows: NoteRows = uncounted
    written: Mapping[str, torch.Tensor] = field(default_factory=dict)
    resources: Mapping[type[Any], Any] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    control: GroupHandle | None = None

    def decide(self, now: Now, name: str, value: int, peer: int = NOBODY) -> None:
        """A policy has decided: guards and schedules see it (unless it concerns one peer), the activity has it."""
        if peer == NOBODY:
            self.decisions[name] = value
        self.note(now, name, peer, value)

    def reads(self, op: Op) -> list[Callable[[Now], Any]]:
        """Getters of what an op reads, but for what modules hold."""
        return [self.store.getter(access) for access in self.handed_over(op.reads)]

    def writes(self, op: Op) -> list[Callable[[Now, Value], None]]:
        """Setters of what an op writes, but for what modules hold."""
        return [self.store.setter(access) for access in self.handed_over(op.writes)]

    def handed_over(self, accesses: Sequence[Access]) -> list[Access]:
        """Those of buffers that modules and the optimizer do not hold themselves."""
        return [access for access in accesses if not self.program.buffers[access.buffer].inner]

    def route(self, op: Op) -> LocalRoute:
        """The route of an op."""
        if op.route is None or op.route not in self.routes:
            raise BackendError(
                f"op '{op.name}' names the route '{op.route}'; this run has: {', '.join(sorted(self.routes)) or 'none'}"
            )
        return self.routes[op.route]

    def scheduled(self, op: Op) -> bool:
        """Whether the rows of an op's route differ by turn: the program tells them, no rank keeps lists."""
        route = self.program.sizes.routes.get(op.route or "")
        return route is not None and route.rows.ndim > 1

    def group(self, op: Op) -> GroupHandle:
        """The process group of an op: its stream's."""
        name = self.program.streams[op.stream].group
        if name is None or name not in self.groups:
            raise BackendError(f"op '{op.name}' communicates, but its stream '{op.stream}' has no process group")
        return self.groups[name]

    def policy(self, op: Op) -> Any:
        """The policy that an op names."""
        if op.module is None or op.module not in self.policies:
            raise BackendError(
                f"op '{op.name}' ({op.kind}) needs the policy '{op.module}', which this executor does not have; "
                f"it has: {', '.join(sorted(self.policies)) or 'none'}"
            )
        return self.policies[op.module]

    def action(self, op: Op) -> Action[Any]:
        """What the policy of an op's slot does in it, with the executor's faster kernels."""
        policy = self.policy(op)
        for kind in policy.actions:
            if kind.label == op.action:
                action: Action[Any] = accelerated_class(kind)(policy, self.policies["codec"])
                return action
        raise BackendError(
            f"op '{op.name}' needs the action '{op.action}' of the policy '{policy.label}', whose actions are: "
            f"{', '.join(kind.label for kind in policy.actions) or 'none'}; prepare the run again"
        )

    def leaving_rows(self, route: str) -> torch.Tensor:
        """The local rows that a route names."""
        rows = self.routes[route].leaving
        assert rows is not None, "rows of a policy's route lie in no order of the wire"
        return rows

    def arrived(self, op: Op, now: Now, members: Sequence[int], rows: Sequence[int]) -> None:
        """So many rows have been received from each member along an op's route: the sizes of the receives."""
        if op.route is not None:
            for member, count in zip(members, rows, strict=True):
                if count:
                    self.note_rows(now.epoch, now.step, op.route, member, count)

    def segment_of(self, template: Template, op: str) -> Kept:
        """Where a forward op of a template keeps its graph."""
        return self.kept.setdefault((template.name, op), Kept())

    def op_id(self, template: Template, op: Op) -> int:
        """Id of an op in the program."""
        return self.program.op_ids[template.name, op.name]

    def pair_counters(self, now: Now, op_id: int, target: int) -> list[list[int]]:
        """The running [messages, bytes] of an op towards a rank: of the run, and of epochs that are told apart."""
        books = [self.pairs]
        if now.step >= 0:  # an evaluation is no part of its epoch
            books += [apart.pairs for apart in self.apart.values() if now.epoch in apart.epochs]
        return [book.setdefault((op_id, target), [0, 0]) for book in books]


def policy_context(context: RankContext, op: Op, template: Template | None = None) -> Callable[[Now], PolicyContext]:
    """A function that makes the context in which an op of a template calls its policy."""
    rank, ranks = context.rank, context.program.ranks
    route = None if op.route is None or context.scheduled(op) else context.route(op)
    send, receive = ((), ()) if route is None else (route.send, route.receive)
    leaving, arriving, gathered = (None, None, None) if route is None else (route.leaving, route.arriving, route.gather)
    written = [context.program.buffers[access.buffer] for access in op.writes[:1]]
    width, dtype = (written[0].width, written[0].dtype) if written else (0, "float32")
    ops = () if template is None else template.ops
    guards = frozenset(other.guard.decision for other in ops if other.guard is not None)
    return lambda now: PolicyContext(
        context.seed, now.epoch, now.step, op.layer, op.phase, rank, ranks, send, receive, width, dtype,
        leaving, arriving, gathered, op.options, context.leaving_rows, context.resources, context.memo, guards,
    )  # fmt: skip


Factory = Callable[[Op, Template, RankContext], Handler]
