"""What a policy is: a frozen value whose fields are its configuration, and what it does in the ops that it emits.

A policy of a user imports this module, :mod:`simgnn.emit` and the nouns of :mod:`simgnn.program`, nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from array_api_compat import array_namespace, device
from pydantic import BaseModel, ConfigDict

from simgnn.errors import BackendError
from simgnn.program.dispatch import Observed, Ready
from simgnn.program.ops import ITEM_BYTES, Dependency, Nature, Op, Stream, Work
from simgnn.program.sizes import Size

Moves = Literal["rows", "blocks"]
"""What travels at a sync point: rows that lists name, or all rows of a rank."""
Array = Any
"""An array of the Python array API standard: a NumPy array, or a tensor of any device."""
Resource = TypeVar("Resource")


class RefusedRowsError(BackendError):
    """Raised by a policy for rows that it cannot work on; the executor adds rank, epoch and op."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Where and when a policy is called. It is frozen and holds no state of the policy.

    ``phase``: the op's direction, "forward" or "backward". ``send``, ``receive``: rows of the op's route to and from
    each rank, [P] (empty where they differ from turn to turn). ``leaving``, ``arriving``: the local rows that the route
    names, int64. ``gathered``: the local rows that are sent, in the order of the wire (None: the rows that are sent
    have no other names). ``width``, ``dtype``: of the buffer that the op writes first. ``options``: those of the op.
    ``rows_of``: the local rows that another route of the program names. ``resources``: what the executor holds for
    policies, by type; see :meth:`resource`. ``memo``: see :meth:`derived`.
    """

    seed: int
    epoch: int
    step: int
    layer: int
    phase: str
    rank: int
    ranks: int
    send: tuple[int, ...] = ()
    receive: tuple[int, ...] = ()
    width: int = 0
    dtype: str = "float32"
    leaving: Array | None = None
    arriving: Array | None = None
    gathered: Array | None = None
    options: Mapping[str, str | int | float] = field(default_factory=dict)
    rows_of: Callable[[str], Array] | None = None
    resources: Mapping[type[Any], Any] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)

    def resource(self, kind: type[Resource]) -> Resource:
        """The object of this type that the executor holds for policies, such as the rank's table of rows."""
        found: Resource = self.resources[kind]
        return found

    def derived(self, make: Callable[..., Resource], *arguments: Any) -> Resource:
        """``make(*arguments)``, computed once a run for these very objects: for tables that follow from routes."""
        key = (make, *map(id, arguments))
        found = self.memo.get(key)
        if found is None:
            # the arguments are kept too, so that no other object gets their identity
            found = self.memo[key] = (arguments, make(*arguments))
        result: Resource = found[1]
        return result


class Policy(BaseModel):
    """A choice of one slot. Every concrete policy has a field ``kind`` with a ``Literal`` of its name in TOML.

    A policy never touches transport, clocks or globals. ``actions``: what its ops do at run time; an op names one of
    them by its label.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    slot: ClassVar[str]
    actions: ClassVar[tuple[type["Action[Any]"], ...]] = ()

    @property
    def label(self) -> str:
        """The value of ``kind``."""
        return str(type(self).model_fields["kind"].default)


Owner = TypeVar("Owner", bound=Policy)


class Action(ABC, Generic[Owner]):
    """What a policy does in one op at run time: arrays that the op reads become arrays that it writes.

    ``owner``: the policy that lists the action; ``codec``: the experiment's. State is a buffer that the op both reads
    and writes: it reads as zeros before its first write, is donated (``run`` may change it in place) and is returned.
    """

    label: ClassVar[str]
    """Name of the action in stored programs: by default that of the class."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "label" not in vars(cls):
            cls.label = cls.__name__

    def __init__(self, owner: Owner, codec: "Codec") -> None:
        self.owner, self.codec = owner, codec

    @abstractmethod
    def run(self, context: PolicyContext, *read: Any, **_: Any) -> tuple[Array, ...]:
        """What the op writes, in order, from what it reads, in order."""

    def decided(self, context: PolicyContext, *written: Array) -> Mapping[str, int]:
        """Decisions of this turn to record, by name, from what the op wrote."""
        return {}


class EncodeRows(Action["Codec"]):
    """Rows become bytes."""

    def run(self, context: PolicyContext, rows: Array) -> tuple[Array, ...]:
        """``rows`` [n, F] -> uint8 [n, row_bytes]."""
        xp, names = array_namespace(rows), context.gathered
        if names is None:
            names = xp.arange(rows.shape[0], dtype=xp.int64, device=device(rows))
        return (self.owner.encode(context, rows, names),)


class DecodeRows(Action["Codec"]):
    """Bytes become rows of the buffer that the op writes."""

    def run(self, context: PolicyContext, packed: Array) -> tuple[Array, ...]:
        """``packed`` uint8 [n, row_bytes] -> rows [n, F]."""
        return (self.owner.decode(context, packed, context.width, context.dtype),)


class Codec(Policy, ABC):
    """A choice of slot ``codec``: the form of rows on the wire.

    ``serves``: what it can encode, listed rows or whole blocks. ``encodes``: whether rows travel as bytes that ops
    encode and decode, not as they are. ``relative``: each element is off by a share of itself, however small it is
    beside others of its row. ``repeatable``: encoding again what was decoded changes nothing, so that rows may pass
    through other ranks and be the same on all.
    """

    slot: ClassVar[str] = "codec"
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (EncodeRows, DecodeRows)
    serves: ClassVar[tuple[Moves, ...]] = ("rows",)
    relative: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False
    encodes: ClassVar[bool] = True

    @property
    def keeps_exact_rows(self) -> bool:
        """Whether a sender's cache holds the rows themselves, not what receivers decode."""
        return False

    @abstractmethod
    def row_bytes(self, width: int, dtype: str) -> int:
        """Bytes of one encoded row of ``width`` elements of ``dtype``."""

    @abstractmethod
    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        """Bytes that travel for rows [n, F] of a floating-point type: uint8 [n, row_bytes]. ``names`` int64 [n] tell
        rows apart on this rank. Raises :class:`RefusedRowsError` for rows that have no code."""

    @abstractmethod
    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        """Rows [n, width] of ``dtype`` from their bytes: a function of the bytes alone, so the same on all ranks."""

    def encode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """Work of encoding ``rows`` rows, for prices: here one pass that reads and writes."""
        return (Work("elementwise", {"rows": rows, "width": width, "passes": 2, "item_bytes": ITEM_BYTES[dtype]}),)

    def decode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """Work of decoding ``rows`` rows, for prices."""
        return self.encode_work(rows, width, dtype)


class Schedule(Policy):
    """A choice of slot ``schedule``: on which stream each op runs, what it waits for, and which ready op runs next.

    A subclass overrides what it changes; as it is, ops of one nature share a stream, wait for what their buffers demand
    and run in program order. ``full_graph``: whether it serves training on the full graph.
    """

    slot: ClassVar[str] = "schedule"
    full_graph: ClassVar[bool] = True

    @property
    def mini_batches(self) -> "MiniBatchSchedule | None":
        """How far ahead batches are staged; None: it serves the full graph alone."""
        return None

    def stream(self, nature: Nature, op: Op) -> Stream:
        """The stream of an op of a plan. Streams beside :attr:`Nature.stream` are made as ops need them: one with a
        ``group`` has a process group of its own, which no other stream may use, and issues its ops in program order."""
        return nature.stream

    def after(self, nature: Nature, op: Op, before: Sequence[Op]) -> Sequence[Dependency]:
        """What an op waits for besides what its buffers demand. ``before``: the ops before it in its turn."""
        return ()

    @property
    def picks(self) -> bool:
        """Whether :meth:`pick` is overridden. Otherwise a rank whose ops form one chain runs them in one thread."""
        return type(self).pick is not Schedule.pick

    def init_pick(self) -> Any:
        """The state of a stream before its first choice; each stream of a rank has its own."""
        return None

    def pick(self, ready: Sequence[Ready], observed: Observed, state: Any) -> tuple[int, Any]:
        """Position among ``ready`` of the op that runs next, and the new state of the stream. Simulator and executor
        ask whenever a stream that does not communicate is free and has ops whose dependencies have ended."""
        return 0, state


@dataclass(frozen=True)
class StepEnds:
    """Ops of a step by name. ``staged``: the last that brings rows; ``released``: the last that reads a batch;
    ``trained``: the last of all."""

    staged: str
    released: str
    trained: str


class MiniBatchSchedule(Schedule, ABC):
    """A schedule that serves mini-batches too: how many are drawn and staged ahead of the one in training."""

    @property
    def mini_batches(self) -> "MiniBatchSchedule":
        """The schedule itself."""
        return self

    def stream(self, nature: Nature, op: Op) -> Stream:
        """The stream of the op's nature; that of drawing runs as many ops at once as batches are drawn at once."""
        found = super().stream(nature, op)
        return replace(found, servers=self.drawing_threads) if nature is Nature.DRAWING else found

    @abstractmethod
    def fitted(self, batches: int) -> "MiniBatchSchedule":
        """The same for a run of so many batches: it neither waits for more nor keeps memory for them."""

    @property
    @abstractmethod
    def drawing_threads(self) -> int:
        """Batches that are drawn at once."""

    @property
    @abstractmethod
    def drawn_batches(self) -> int:
        """Batches whose blocks are held at once, the one in training included."""

    @abstractmethod
    def staged_batches(self, steps: int) -> int:
        """Batches whose input rows are held on the device at once, the one in training included, where an epoch has so
        many ``steps``."""

    @property
    @abstractmethod
    def pushes_beside(self) -> bool:
        """Whether what a step pushes may travel while the next step runs."""

    @abstractmethod
    def before_draw(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """What a batch's blocks wait for."""

    @abstractmethod
    def before_rows(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """What a batch's rows wait for, besides its blocks."""

    @abstractmethod
    def before_epoch(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """What the rows of an epoch's first batch wait for besides; nothing where epochs are like steps."""


def chosen(options: BaseModel, names: Iterable[str]) -> list[str]:
    """Those of the fields ``names`` that hold another value than their default, in their order.

    What is read back from a run directory states every field, so a default is not taken for a choice.
    """
    fields = type(options).model_fields
    return [name for name in names if getattr(options, name) != fields[name].default]
