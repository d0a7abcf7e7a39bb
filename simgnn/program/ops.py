"""Buffers, streams, groups and ops of a program. They are immutable, and all ranks share them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from simgnn.program.kinds import Form, OpKind, Segment
from simgnn.program.sizes import NO_SCRATCH, Column, Decision, Scratch, Size

Space = Literal["device", "host", "host-mapped", "host-shared"]
"""Where a buffer lies: on the device of its rank; in the memory of the rank's host: as memory of its process, or in
mappings that are the rank's own, which count apart from what its process allocates; or, once, in memory that the ranks
of a host share."""
Ring = Literal["epoch", "step"]
Category = Literal["compute", "comm", "comm_overhead", "update", "check_cache", "pick_cache"]
ITEM_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of one width. ``persistent`` ones live for the whole run, others from first write to last read.

    A buffer with ``depth`` > 1 is a ring of copies, indexed by ``ring`` (the epoch or the step) modulo ``depth``.
    ``inner``: a module or the optimizer holds it; ops name it only for the memory that it takes. ``lasting``: allocated
    once before training, as large as its largest turn needs, so that peak memory does not depend on timing. So are
    buffers of the space "host-mapped"."""

    name: str
    rows: Size
    width: int
    dtype: str = "float32"
    space: Space = "device"
    depth: int = 1
    ring: Ring = "epoch"
    persistent: bool = False
    inner: bool = False
    lasting: bool = False

    @property
    def allocated_once(self) -> bool:
        """Whether it takes memory for the rows of its largest turn during the whole run."""
        return self.lasting or self.space == "host-mapped"

    @property
    def row_bytes(self) -> int:
        return self.width * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a buffer that an access touches: ``rows`` of them from ``first`` on; int or column of the op's turn.

    With ``places``, the name of an int64 buffer of width 1 in the same memory, these are the rows of
    that list, and the list says which rows of the buffer the access touches: none twice, but in what an ``add`` with a
    route writes, where peers come one after the other and a row may be named once for each. The op also reads the list
    (:attr:`Op.inputs` leaves it out). Ranges are views in the executor; listed rows are gathered and put back. Two
    accesses, one of them writing, need no order where columns prove that they never touch the same row
    (:mod:`simgnn.program.parts`). Listed rows are never proved apart.

    ``width``: elements of a row, where these are narrower than the buffer's and lie one after another from its begin
    on, so that one buffer serves rows of several widths in turn; 0: the buffer's. They are never proved apart."""

    rows: int | Column
    first: int | Column = 0
    places: str = ""
    width: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """An op's access to a buffer: to its copy of this turn, or of a turn some steps or epochs back.

    ``part``: the rows that it touches; None: all. A buffer of which ops write parts keeps its other rows; rows that no
    op has written are zeros. It has the same number of rows in every turn."""

    buffer: str
    steps_back: int = 0
    epochs_back: int = 0
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Dependency:
    """An op that must have ended, in this turn or in an earlier one. Turns before the run's first count as ended."""

    op: str
    steps_back: int = 0
    epochs_back: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of device work, priced by the curve of its ``primitive``.

    :data:`simgnn.hardware.primitives.PRIMITIVES` defines the primitives and their ``sizes``; all have ``item_bytes``,
    the size of an element. ``locality`` names the partition's table of how local the index stream is."""

    primitive: str
    sizes: Mapping[str, Size]
    locality: str | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """The payload of a communication op. With a route: ``row_bytes`` times the rows of each pair; without: ``rows``
    rows of each member. ``decision`` replaces the route's rows by the decided number, pair by pair; ``announced``:
    receivers know how many from masks or lists that were sent before; else counts are sent before. ``control`` bytes
    (masks, counts, flags) are counted apart from payload."""

    row_bytes: int
    rows: Size = 1
    decision: Decision | None = None
    control: bool = False
    announced: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on an op, which runs only if the named decision is not zero. ``agreed``: all ranks decide alike, so
    that the op may be a collective."""

    decision: str
    agreed: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue of ops. ``owner``: one per rank or one per host; ``servers``: how many ops may run at once.

    A communicating stream has one thread and one process ``group``, and issues in program order. ``in_turn``: each rank
    has a queue, but all ranks of a host share one server, which runs their ops in the order of arrival: an op arrives
    once it is ready and its rank's queue has come to it."""

    name: str
    owner: Literal["rank", "host"] = "rank"
    servers: int = 1
    group: str | None = None
    in_turn: bool = False


class Nature(StrEnum):
    """The purpose of an op. A schedule maps it to a stream; by default the stream named after it.

    ``SUMMING``: the sums over ranks of gradients and metrics, where rows that nobody waits for travel beside them; by
    default on the stream of all other communication. ``SHARING``: the ranks of a host wait for one another.
    ``MERGING``: rows are put into memory that the ranks of a host share, which do so in turn.

    In mini-batch plans: batches are drawn, with requests to other hosts; rows are staged, and fetched from hosts;
    embeddings are learned, and their gradients pushed to hosts."""

    COMPUTE = "compute"
    COMMUNICATION = "comm"
    SUMMING = "gradients"
    SHARING = "shared"
    MERGING = "host_merge"
    DRAWING = "sampling"
    REQUESTING = "requests"
    STAGING = "staging"
    FETCHING = "fetch"
    LEARNING = "embeddings"
    PUSHING = "push"

    @property
    def stream(self) -> Stream:
        """The default stream of ops of this nature."""
        if self in (Nature.COMMUNICATION, Nature.SUMMING):
            return Stream(Nature.COMMUNICATION.value, group=WORLD)
        if self is Nature.SHARING:
            return Stream(self.value, group=HOST)
        if self is Nature.MERGING:
            return Stream(self.value, in_turn=True)
        communicates = self in (Nature.REQUESTING, Nature.FETCHING, Nature.PUSHING)
        return Stream(self.value, group=self.value if communicates else None)


WORLD = "world"
"""The process group with the fastest backend. Others go through the memory of hosts, so that they may run beside it:
NCCL allows one group in flight at a time."""
HOST = "host"
"""The process groups of the ranks of each host, through its memory."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: ``members`` = "world", "host" (one per host) or the column with each rank's group id."""

    name: str
    members: str = "world"
    backend: Literal["default", "gloo", "nccl"] = "default"


@dataclass(frozen=True, slots=True)
class Op:
    """One op of a template. Handlers see buffers, routes and modules by name, never a system.

    ``stream``: the name of its stream; while a plan is written, its :class:`Nature`. ``name`` is unique in its
    template. ``reverses`` names the forward op whose autograd segment this op runs backward. ``gradients`` then maps
    each gradient buffer that is read (the output's) or written (the inputs') to its forward buffer. ``segment``: the
    part of ``layer`` that the op computes. ``module``: the slot of the policy that acts, and ``action`` the label of
    its action, see :class:`simgnn.policy.Action`. ``ranks`` names a column that is 1 where the op exists (None:
    everywhere). ``category``: where reports count the time; ``check_cache`` and ``pick_cache``: the age of cached rows
    is checked, rows are copied out of a cache or into it. ``scratch``: memory that the op holds beside its buffers.

    What the kinds mean to the executor: ``transform`` and ``aggregate`` call their module's segment on the buffers that
    they read, in order, without parameters; ``copy`` with a route gathers the route's rows into a send buffer, peers
    ascending; ``exchange`` sends such a buffer and writes the rows that arrive, peers ascending; ``peer_read`` does so
    with messages between the pairs of its route alone (:data:`simgnn.program.kinds.GROUP_KINDS`); ``add`` with a route
    adds received rows to the rows that the route names, peers ascending; ``add`` without a route adds the first buffer
    that it reads to the one that it writes. ``form`` names a variant of the kind, see
    :class:`simgnn.program.kinds.Form`."""

    name: str
    kind: OpKind
    stream: str
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    after: tuple[Dependency, ...] = ()
    work: tuple[Work, ...] = ()
    transfer: Transfer | None = None
    route: str | None = None
    root: int | None = None
    module: str | None = None
    action: str | None = None
    reverses: str | None = None
    gradients: Mapping[str, str] = field(default_factory=dict)
    guard: Guard | None = None
    ranks: str | None = None
    layer: int = 0
    phase: Literal["forward", "backward", "update", "setup", "evaluate"] = "forward"
    category: Category = "compute"
    form: Form | None = None
    segment: Segment | None = None
    options: Mapping[str, str | int | float] = field(default_factory=dict)
    scratch: Scratch = NO_SCRATCH

    @property
    def inputs(self) -> tuple[Access, ...]:
        """What the op reads, without the lists of the rows that it touches."""
        lists = {access.part.places for access in self.reads + self.writes if access.part is not None}
        return tuple(access for access in self.reads if access.buffer not in lists)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """All sizes that the op states: of its work, and of its transfer."""
        found = [size for work in self.work for size in work.sizes.values()]
        moved = () if self.transfer is None else (self.transfer.rows, self.transfer.decision)
        return (*found, *(size for size in moved if size is not None))
