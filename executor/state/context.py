"""What handlers work with on one rank: buffers, routes, groups, model and policies, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from executor.policies.accelerated import accelerated_class
from executor.state.buffers import BufferStore, Now, Value
from simgnn.errors import BackendError
from simgnn.policy import Action, PolicyContext
from simgnn.program.ops import Access, Op
from simgnn.program.program import Program, Template

if TYPE_CHECKING:
    from executor.layers.blocks import BlockAdjacency
    from executor.state.model import Network
    from executor.state.optimizer import FlatOptimizer
    from executor.state.task import Task


class Sent(NamedTuple):
    """How much an op sent through ``torch.distributed``, counted from the tensors themselves."""

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
    """Which rows one rank exchanges with each peer. ``gather``: local rows to send, peers ascending (None: the buffer
    to send is in that order already). ``scatter``: local rows that arriving rows belong to, peers ascending (None: they
    are stored as they arrive). ``send``, ``receive``: rows to and from each rank, [P]. ``empty``: no rank sends.
    ``sent``: of a route of chosen rows, their places among all rows that the whole route sends. ``sent_slots``,
    ``received_slots``: the places of these rows in memory that ranks of a host share, if they have some."""

    gather: torch.Tensor | None
    scatter: torch.Tensor | None
    send: tuple[int, ...]
    receive: tuple[int, ...]
    empty: bool = False
    sent: torch.Tensor | None = None
    sent_slots: torch.Tensor | None = None
    received_slots: torch.Tensor | None = None

    @property
    def leaving(self) -> torch.Tensor | None:
        """The local rows that are sent; if only ``scatter`` is given, these rows."""
        return self.scatter if self.gather is None else self.gather

    @property
    def arriving(self) -> torch.Tensor | None:
        """The local rows that arriving rows belong to; if only ``gather`` is given, these rows."""
        return self.gather if self.scatter is None else self.scatter

    @property
    def arriving_counts(self) -> tuple[int, ...]:
        """How many of the rows :attr:`arriving` come from each rank, [P]."""
        return self.send if self.scatter is None else self.receive

    def reversed(self) -> "LocalRoute":
        return LocalRoute(self.scatter, self.gather, self.receive, self.send, self.empty)


@dataclass(frozen=True)
class GroupHandle:
    """A process group as a member sees it. ``process_group`` None: a group of one, nothing is sent."""

    process_group: Any
    members: tuple[int, ...]
    device: torch.device


class Reversible(Protocol):
    """The saved state of a forward op, with which its backward op computes gradients."""

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Return gradients of the inputs that need one, from the gradients of the outputs; None: no gradient."""


class Turns(Protocol):
    """A server that the ranks of a host share, see :class:`executor.store.host_turns.HostTurns`."""

    def arrive(self, clock: Callable[[], Any]) -> Any:
        """Queue up; return the time at which the rank did, by ``clock``."""

    def wait(self) -> None:
        """Return when the rank's turn has come."""

    def leave(self) -> None:
        """Let the next rank go on."""


Kept = dict[int, Reversible]
"""The saved states of one forward op, by training step."""
Pairs = dict[tuple[int, int], list[int]]


@dataclass(frozen=True)
class Apart:
    """Payload sent in the training steps of some ``epochs``, by (op id, target): [messages, bytes]."""

    epochs: range
    pairs: Pairs = field(default_factory=dict)


NoteRows = Callable[[int, int, str, int, int], None]
"""Records how many rows moved: (epoch, step, place or route, peer, rows)."""


def unrecorded(*_: object) -> None:
    """Record nothing: the default of the functions that record decisions, losses and moved rows."""


@dataclass(frozen=True)
class Vertices:
    """The vertices in the graph of a rank's own rows, and of its halo rows by owner. ``received`` [P]: halo rows of
    each owner. ``drawn(epoch)``: places in the halo of the rows that arrive in an epoch, where these are drawn anew."""

    own: NDArray[np.int64]
    halo: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    received: tuple[int, ...] = ()
    drawn: Callable[[int], NDArray[np.int64]] | None = None

    def of_halo(self, place: int, send: Sequence[int]) -> int | None:
        """The vertex of a halo row by its place among rows that go back to their owners: ``send`` [P] to each, all of
        an owner or none. None: not known."""
        first = 0
        for back, received in zip(send, self.received, strict=False):
            if place < back:
                return int(self.halo[first + place]) if back == received else None
            place, first = place - back, first + received
        return None


@dataclass
class RankContext:
    """Everything that handlers of one rank share.

    ``decisions``: the latest value of each decision of a policy, by name. ``pairs``: payload by (op id, target) as
    [messages, bytes]; ``apart``: the same for some epochs alone, by a name. ``note(now, decision, peer, value)``
    records a decision, ``note_loss`` a mini-batch's metrics before they are summed over ranks, ``note_rows`` how many
    rows arrive on routes whose counts differ by step. ``written`` returns memory shared by ranks of a host that this
    rank changes while it trains, by name: two such buffers may change places. ``rate_of``: the learning rate by epoch;
    None: it stays as the optimizer has it. ``resources``, ``memo``: see :class:`simgnn.policy.PolicyContext`.
    ``control``: a group of all ranks, through host memory, for messages that are not part of the program.
    ``vertices``: names of rows for messages to users. ``turns``: servers that the ranks of a host share, by stream.
    """

    program: Program
    rank: int
    device: torch.device
    store: BufferStore
    seed: int = 0
    routes: Mapping[str, LocalRoute] = field(default_factory=dict)
    groups: Mapping[str, GroupHandle] = field(default_factory=dict)
    network: "Network | None" = None
    task: "Task | None" = None
    optimizer: "FlatOptimizer | None" = None
    rate_of: Callable[[int], float] | None = None
    blocks: "BlockAdjacency | None" = None
    policies: Mapping[str, Any] = field(default_factory=dict)
    decisions: dict[str, int] = field(default_factory=dict)
    pairs: Pairs = field(default_factory=dict)
    apart: Mapping[str, Apart] = field(default_factory=dict)
    kept: dict[tuple[str, str], Kept] = field(default_factory=dict)
    note: Callable[[Now, str, int, int], None] = unrecorded
    note_loss: Callable[[Now, torch.Tensor], None] = unrecorded
    note_rows: NoteRows = unrecorded
    written: Callable[[], Mapping[str, torch.Tensor]] = dict
    resources: Mapping[type[Any], Any] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    control: GroupHandle | None = None
    vertices: Vertices | None = None
    turns: Mapping[str, Turns] = field(default_factory=dict)

    def decide(self, now: Now, name: str, value: int, peer: int = NOBODY) -> None:
        """Record a policy's decision; guards and schedules read it by name unless it concerns a single peer."""
        if peer == NOBODY:
            self.decisions[name] = value
        self.note(now, name, peer, value)

    def reads(self, op: Op) -> list[Callable[[Now], Any]]:
        """Return getters of the buffers that an op reads, except those that modules hold."""
        return [self.store.getter(access) for access in self.handed_over(op.inputs)]

    def writes(self, op: Op) -> list[Callable[[Now, Value], None]]:
        """Return setters of the buffers that an op writes, except those that modules hold."""
        return [self.store.setter(access) for access in self.handed_over(op.writes)]

    def handed_over(self, accesses: Sequence[Access]) -> list[Access]:
        """Return the accesses to buffers in the store, without those that modules or the optimizer hold."""
        return [access for access in accesses if not self.program.buffers[access.buffer].inner]

    def route(self, op: Op) -> LocalRoute:
        assert op.route is not None
        return self.routes[op.route]

    def scheduled(self, op: Op) -> bool:
        """Return whether the numbers of rows on an op's route differ by step; the program then lists them all."""
        route = self.program.sizes.routes.get(op.route or "")
        return route is not None and route.rows.ndim > 1

    def rows_of_turn(self, op: Op, arriving: bool) -> Callable[[Now], torch.Tensor]:
        """Return a function of the turn that gives the local rows which an op's route names: those that leave, or those
        that arriving rows belong to. The program names the buffer that lists them where they differ by turn."""
        assert op.route is not None
        listed = self.program.sizes.routes[op.route].listed
        if listed:
            return self.store.getter(Access(listed))
        route = self.route(op)
        rows = route.arriving if arriving else route.leaving
        assert rows is not None, "the route names local rows"
        return lambda now: rows

    def arriving_counts(self, op: Op) -> Callable[[Now], tuple[int, ...]]:
        """Return a function of the turn that gives the number of rows that arrive from each rank, [P]."""
        assert op.route is not None
        route, rank, ranks = self.program.sizes.routes[op.route], self.rank, self.program.ranks
        if self.scheduled(op):  # rows that left along the op's route come back along its reverse
            return lambda now: tuple(route.matrix(ranks, now.epoch, now.step)[rank].tolist())
        counts = self.route(op).arriving_counts
        return lambda now: counts

    def group(self, op: Op) -> GroupHandle:
        name = self.program.streams[op.stream].group
        assert name is not None
        return self.groups[name]

    def action(self, op: Op) -> Action[Any]:
        """Return the policy's action that an op names, with the executor's faster kernels."""
        policy = self.policies.get(op.module or "")
        actions = () if policy is None else policy.actions
        for kind in actions:
            if kind.label == op.action:
                action: Action[Any] = accelerated_class(kind)(policy, self.policies["codec"])
                return action
        raise BackendError(
            f"op '{op.name}' ({op.kind}) needs the action '{op.action}', which the policy '{op.module}' does not have; "
            f"it has: {', '.join(kind.label for kind in actions) or 'none'}; prepare the run again"
        )

    def arrived(self, op: Op, now: Now, members: Sequence[int], rows: Sequence[int]) -> None:
        """Record how many rows were received from each member along an op's route."""
        for member, count in zip(members, rows, strict=True):
            if op.route is not None and count:
                self.note_rows(now.epoch, now.step, op.route, member, count)

    def segment_of(self, template: Template, op: str) -> Kept:
        """Return the saved states of a forward op of a template, for its backward op."""
        return self.kept.setdefault((template.name, op), {})

    def pair_counters(self, now: Now, op_id: int, target: int) -> list[list[int]]:
        """Return the counters [messages, bytes] to which a message is added: of the run, and of epochs in ``apart``."""
        books = [self.pairs]
        if now.step >= 0:  # an evaluation is no part of its epoch
            books += [apart.pairs for apart in self.apart.values() if now.epoch in apart.epochs]
        return [book.setdefault((op_id, target), [0, 0]) for book in books]


def policy_context(context: RankContext, op: Op, template: Template | None = None) -> Callable[[Now], PolicyContext]:
    """Return a function that makes the :class:`PolicyContext` with which an op calls its policy in a turn."""
    rank, ranks = context.rank, context.program.ranks
    route = None if op.route is None or context.scheduled(op) else context.route(op)
    send, receive = ((), ()) if route is None else (route.send, route.receive)
    leaving, arriving, gathered = (None, None, None) if route is None else (route.leaving, route.arriving, route.gather)
    written = [context.program.buffers[access.buffer] for access in op.writes[:1]]
    width, dtype = (written[0].width, written[0].dtype) if written else (0, "float32")
    ops = () if template is None else template.ops
    guards = frozenset(other.guard.decision for other in ops if other.guard is not None)

    def rows_of(route: str) -> Any:
        return context.routes[route].leaving

    def places_of(route: str) -> Any:
        return context.routes[route].sent

    vertex_of = vertices_sent(context, op, route)
    return lambda now: PolicyContext(
        context.seed, now.epoch, now.step, op.layer, op.phase, rank, ranks, send, receive, width, dtype,
        leaving, arriving, gathered, op.options, rows_of, context.resources, context.memo, guards,
        context.program.hosts, partial(vertex_of, now.epoch), places_of,
    )  # fmt: skip


def vertices_sent(context: RankContext, op: Op, route: LocalRoute | None) -> Callable[[int, int], int | None]:
    """Return a function of an epoch and the name of a row that an op sends: its vertex in the graph. None: not known.

    Names are local rows (without a route those of all own rows, in order), or places in wire order of halo rows."""
    known = context.vertices
    if known is None:
        return lambda epoch, name: None
    listed = op.route is not None and bool(context.program.sizes.routes[op.route].listed)
    back = op.route is not None and context.program.sizes.is_reverse(op.route)
    chosen = route is not None and route.gather is not None and route.gather is route.sent
    if op.route is None or (listed and not back) or (route is not None and route.gather is not None and not chosen):
        return lambda epoch, name: int(known.own[name])
    if chosen:  # named by their places in the whole halo
        return lambda epoch, name: int(known.halo[name])
    if listed and known.drawn is not None:
        drawn = known.drawn
        return lambda epoch, name: int(known.halo[drawn(epoch)[name]])
    send = route.send if back and route is not None and not listed else ()
    return lambda epoch, name: known.of_halo(name, send)


Factory = Callable[[Op, Template, RankContext], Handler]
