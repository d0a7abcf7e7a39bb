"""What a policy is: a frozen value whose fields are its configuration, and what it does in the ops that it emits.

A policy of a user imports this module, :mod:`simgnn.emit` and the nouns of :mod:`simgnn.program`, nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simgnn.errors import ConfigError as ConfigError
from simgnn.errors import PolicyError as PolicyError
from simgnn.graph.graph import Graph as Graph
from simgnn.program.calendar import Epochs as Epochs
from simgnn.program.dispatch import Observed, Ready
from simgnn.program.ops import ITEM_BYTES, Dependency, Nature, Op, Space, Stream, Work
from simgnn.program.sizes import IntArray, Size, Terms

Moves = Literal["rows", "blocks", "batches", "chunks"]
"""What travels: rows of the full graph that lists name, whole blocks of its rows, input rows of mini-batches, or rows
of chunks of the full graph, between the memory of hosts and devices."""
Cut = Literal["edge-cut", "vertex-cut"]
Reorder = Literal["none", "rcm", "degree"]
Effect = Literal["decisions", "learning", "nothing"]
"""What changes in a run when an option gets another value: the recorded decisions, so that a record of the old value
cannot be replayed; only what the model learns; or neither."""
Array = Any
"""An array of the Python array API standard: a NumPy array, or a tensor of any device."""
Resource = TypeVar("Resource")


class RefusedRowsError(PolicyError):
    """Raised by a policy for rows that it cannot work on. ``row``: the first of them; -1: not known. It ends a run as
    bad input does."""

    exit_status = 2

    def __init__(self, message: str, row: int = -1) -> None:
        super().__init__(message)
        self.row = row


def derive(memo: dict[Any, Any], make: Callable[..., Resource], *arguments: Any, **given: Any) -> Resource:
    """Compute ``make(*arguments, **given)`` once for these very ``arguments``, and remember it in ``memo``."""
    key = (make, *map(id, arguments))
    if key not in memo:
        # the arguments are kept too, so that no other object gets their identity
        memo[key] = arguments, make(*arguments, **given)
    result: Resource = memo[key][1]
    return result


@dataclass(frozen=True, slots=True)
class Metrics:
    """Four float64 numbers of a set of rows, made to be summed over ranks. ``correct / count`` is the accuracy; where
    rows have several labels they are 2 TP and 2 TP + FP + FN, so that the quotient is the micro-averaged F1.
    ``nonfinite``: scores that are no number."""

    loss: float
    correct: float
    count: float
    nonfinite: float

    @classmethod
    def of(cls, row: Array) -> "Metrics":
        """The numbers of a program's buffer of metrics, float64 [1, METRICS]."""
        return cls(*array_namespace(row).reshape(row, (-1,)).tolist())

    @staticmethod
    def packed(*, loss: Array, correct: Array, count: Array, nonfinite: Array) -> Array:
        """The four numbers as one array, float64 [METRICS], as a program's buffer of metrics holds them."""
        return array_namespace(loss).stack((loss, correct, count, nonfinite))

    @staticmethod
    def loss_of(row: Array) -> Array:
        """A copy of the loss, [1]. It stays on its device, so that nobody waits for the device."""
        xp = array_namespace(row)
        return xp.asarray(xp.reshape(row, (-1,))[:1], copy=True)

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions; None: there are no training rows."""
        return self.correct / self.count if self.count else None


METRICS = len(fields(Metrics))
"""How many numbers :class:`Metrics` holds."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Where and when a policy is called. It is frozen and holds no state of the policy.

    ``phase``: the op's direction, "forward" or "backward". ``send``, ``receive``: rows of the op's route to and from
    each rank, [P] (empty where they differ from turn to turn). ``leaving``, ``arriving``: the local rows that the route
    names, int64. ``gathered``: the local rows that are sent, in the order of the wire (None: the buffer that is sent
    has this order already). ``width``, ``dtype``: of the buffer that the op writes first. ``options``: those of the op.
    ``rows_of``: the local rows that another route of the program names. ``resources``: what the executor holds for
    policies, by type; see :meth:`resource`. ``memo``: see :meth:`derived`. ``guards``: the decisions by which ops of
    this turn run or not. ``hosts`` [P]: the host of each rank. ``vertex_of``: the vertex in the graph of
    a row that is sent, by the name that :meth:`Codec.encode` gets, where the executor knows it. ``places_of``: of a
    route of chosen rows, their places among all rows that the whole route sends, int64.
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
    guards: frozenset[str] = frozenset()
    hosts: tuple[int, ...] = ()
    vertex_of: Callable[[int], int | None] | None = None
    places_of: Callable[[str], Array] | None = None

    def resource(self, kind: type[Resource]) -> Resource:
        """The object of this type that the executor holds for policies, such as the rank's table of rows."""
        found: Resource = self.resources[kind]
        return found

    def derived(self, make: Callable[..., Resource], *arguments: Any, **given: Any) -> Resource:
        """``make(*arguments, **given)``, computed once a run for these ``arguments``: for tables of routes."""
        return derive(self.memo, make, *arguments, **given)


class Policy(BaseModel):
    """A choice of one slot: a value whose fields are the options of the slot's table in an experiment.

    It never touches transport, clocks or globals. ``kind``: its name in TOML. A shipped policy declares it as a
    ``Literal``; that of a policy of the user's own is "package.module:Class", or the name of its entry point.
    ``actions``: what its ops do at run time; an op names one of them by its label. ``effect``: the :data:`Effect` of
    changing its kind or options; ``effects``: that of options for which it differs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    slot: ClassVar[str]
    actions: ClassVar[tuple[type["Action[Any]"], ...]] = ()
    effect: ClassVar[Effect] = "nothing"
    effects: ClassVar[Mapping[str, Effect]] = {}

    kind: str = ""

    def model_post_init(self, _: Any, /) -> None:
        """Name the class where a policy of the user's own was made in Python, without a ``kind``."""
        if not self.kind:
            object.__setattr__(self, "kind", f"{type(self).__module__}:{type(self).__name__}")

    @property
    def label(self) -> str:
        """The value of ``kind``."""
        return self.kind

    @property
    def acts(self) -> bool:
        """Whether ranks call it while they train."""
        return bool(self.actions)

    @property
    def evaluates_apart(self) -> bool:
        """Whether evaluations read other rows than training because of it, so that they add transfers to a run."""
        return False

    def refuses(self, choices: "Choices") -> Iterator["Refusal"]:
        """Yield the combinations with other choices that have no meaning, judged by the traits of those choices."""
        yield from ()

    def idle(self, choices: "Choices") -> Iterator["Idle"]:
        """Yield the options of this policy that were changed from their default but have no effect."""
        yield from ()


Owner = TypeVar("Owner", bound=Policy)


class Action(ABC, Generic[Owner]):
    """What a policy does in one op at run time: arrays that the op reads become arrays that it writes.

    ``owner``: the policy that lists the action; ``codec``: the experiment's. State is a buffer that the op both reads
    and writes: it is donated (``run`` may change it in place) and returned.
    """

    label: ClassVar[str]
    """Name of the action in stored programs: by default that of the class."""
    starts_from_zeros: ClassVar[bool] = True
    """Whether state reads as zeros, allocated before the run, until its first write. Otherwise it reads as None."""
    calls: ClassVar[str] = ""
    """The method of the policy whose values ranks compare, for messages; "" if that is ``run`` of the action."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "label" not in vars(cls):
            cls.label = cls.__name__

    def __init__(self, owner: Owner, codec: "Codec") -> None:
        self.owner, self.codec = owner, codec

    @abstractmethod
    def run(self, context: PolicyContext, *read: Any, **_: Any) -> tuple[Array, ...]:
        """Compute the arrays that the op writes from the arrays that it reads; both are in the order of the op."""

    def decided(self, context: PolicyContext, read: Sequence[Array], written: Sequence[Array]) -> Mapping[str, int]:
        """The decisions of this turn to record, by name, from the arrays that the op read and wrote."""
        return {}

    def shared(self, context: PolicyContext, read: Sequence[Array], written: Sequence[Array]) -> Mapping[str, float]:
        """Numbers that must be the same on all ranks, by name. The executor compares those of a user's policy."""
        return {}


class EncodeRows(Action["Codec"]):
    """Encode the rows of a transfer as the bytes to send."""

    def run(self, context: PolicyContext, rows: Array, listed: Array | None = None) -> tuple[Array, ...]:
        """Encode ``rows`` [n, F] as bytes, uint8 [n, row_bytes]. ``listed`` int64 [n]: the local rows that are sent,
        where they differ by turn."""
        xp, names = array_namespace(rows), context.gathered if listed is None else listed
        if names is None:
            names = xp.arange(rows.shape[0], dtype=xp.int64, device=device(rows))
        return (encoded(self.owner, context, rows, names),)


def placed(error: RefusedRowsError, context: PolicyContext, names: Array) -> RefusedRowsError:
    """Return the error with the rank, the layer and the vertex of the row. ``names`` int64 [n]: of all rows that were
    to be encoded, see :meth:`Codec.encode`."""
    find = context.vertex_of
    vertex = None if error.row < 0 or find is None else find(int(names[error.row]))
    of = "a row" if vertex is None else f"the row of vertex {vertex}"
    what = "gradients" if context.phase == "backward" else "values"
    return RefusedRowsError(
        f"rank {context.rank}, layer {context.layer}: {of} ({what}) has no code: {error}", error.row
    )


class DecodeRows(Action["Codec"]):
    """Decode received bytes to rows of the buffer that the op writes."""

    def run(self, context: PolicyContext, packed: Array) -> tuple[Array, ...]:
        """Decode ``packed``, uint8 [n, row_bytes], to rows [n, F]."""
        return (decoded(self.owner, context, packed, context.width, context.dtype),)


class Serving(Policy):
    """A policy that works with some kinds of transfers only. ``serves``: what they may move, such as rows or blocks."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows",)


class CodecTraits(Serving):
    """The properties of a codec that other choices may ask for.

    ``encodes``: whether rows travel as bytes that ops encode and decode, not as they are. ``relative``: each element is
    off by a share of itself, however small it is beside others of its row. ``repeatable``: encoding again what was
    decoded changes nothing, so that rows may pass through other ranks and be the same on all.
    """

    slot: ClassVar[str] = "codec"
    effect: ClassVar[Effect] = "decisions"
    relative: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False
    encodes: ClassVar[bool] = True

    @property
    def epochs(self) -> Epochs:
        """The epochs in which it does something else than usual, by name; by default none."""
        return Epochs()

    @property
    def acts(self) -> bool:
        """Always true, since every action holds the codec."""
        return True

    @property
    def evaluates_apart(self) -> bool:
        """Rows of evaluations travel as they are."""
        return self.encodes

    @property
    def keeps_exact_rows(self) -> bool:
        """Whether a sender's cache holds the rows themselves, not what receivers decode."""
        return False


class Codec(CodecTraits, ABC):
    """A choice of slot ``codec``: the form of rows on the wire."""

    actions: ClassVar[tuple[type[Action[Any]], ...]] = (EncodeRows, DecodeRows)

    @abstractmethod
    def row_bytes(self, width: int, dtype: str) -> int:
        """Bytes of one encoded row of ``width`` elements of ``dtype``."""

    @abstractmethod
    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        """Bytes that travel for rows [n, F] of a floating-point type: uint8 [n, row_bytes]. ``names`` int64 [n] tell
        rows apart on this rank: its local rows, or the places in wire order of rows that are not its own. Raises
        :class:`RefusedRowsError` for rows that have no code."""

    @abstractmethod
    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        """Rows [n, width] of ``dtype`` from their bytes: a function of the bytes alone, so the same on all ranks."""

    def in_epochs(self, names: tuple[str, ...]) -> "Codec":
        """The codec of epochs with these names of :attr:`epochs` (none: an ordinary epoch): by default the same one.
        Both ends ask by the epoch, so that they encode and decode alike."""
        return self

    def emit_beside(self, builder: Any, sync: Any, stage: Any) -> None:
        """Emit ops of its own beside the transfer of a stage: ops that trace its rows, which are packed in wire order
        (``stage.packed``), for example. It gets a ``ProgramBuilder``, a ``Sync`` and a ``Stage`` of simgnn.emit."""

    def emit_epoch_end(self, builder: Any, templates: tuple[str, ...]) -> None:
        """Emit ops after the update of each epoch, with a ``ProgramBuilder`` of simgnn.emit."""

    def emit_transfer(self, builder: Any, sync: Any, stage: Any, receive: str, version: str | None) -> bool:
        """Emit all ops from the packed rows of a stage to decoded ones in the buffer ``receive``, for rows that have no
        one length; arguments as in :meth:`emit_beside`, ``version`` is that of the exchange. False: emit none here, and
        let rows be encoded by :meth:`encode`."""
        return False

    @property
    def decides(self) -> str:
        """The option that can state how much is sent, where values of the run decide it; "" if they do not."""
        return ""

    def problems(self, program: Any) -> list[str]:
        """Messages about options that have no effect in a program."""
        return []

    def scheduled(self, program: Any, epochs: int) -> Mapping[str, IntArray]:
        """Decisions of a run of so many epochs that the codec alone determines, in the form of :meth:`assumed`; a
        simulation needs no record of them. By default none."""
        return {}

    def assumed(self, program: Any, epochs: int) -> Mapping[str, IntArray]:
        """Decisions of a run as options state them, for simulations without a record: int64 [P, epochs, 1], or by pair
        of ranks [P, P, epochs, 1], by name. Empty: no option states them."""
        return {}

    def encode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """Work of encoding ``rows`` rows, for prices: here one pass that reads and writes."""
        return (Work("elementwise", {"rows": rows, "width": width, "passes": 2, "item_bytes": ITEM_BYTES[dtype]}),)

    def encode_scratch(self, rows: Size, width: int, dtype: str) -> Terms:
        """Memory that encoding them takes beside rows and bytes: here none."""
        return ()

    def decode_work(self, rows: Size, width: int, dtype: str) -> tuple[Work, ...]:
        """Work of decoding ``rows`` rows, for prices."""
        return self.encode_work(rows, width, dtype)


def row_bytes_of(codec: Codec, width: int, dtype: str) -> int:
    """Bytes of one row that ``codec`` encodes. Raises :class:`PolicyError` for what is no number of bytes."""
    return expect_whole(codec, "row_bytes", codec.row_bytes(width, dtype), 0)


def expect_whole(owner: object, method: str, found: Any, least: int, most: int = 1 << 40) -> int:
    """Return what a method returned as a whole number from ``least`` to ``most``, or raise :class:`PolicyError`."""
    if isinstance(found, bool) or not isinstance(found, Integral) or not least <= int(found) <= most:
        raise wrong(owner, method, found, f"a whole number from {least} to {most:,}")
    return int(found)


def encoded(codec: Codec, context: PolicyContext, rows: Array, names: Array) -> Array:
    """Encode rows with ``codec``. Raises :class:`PolicyError` for a result of another shape or type, and
    :class:`RefusedRowsError`, with the place of the row, for rows that have no code."""
    codec = codec.in_epochs(codec.epochs.names(context.epoch))
    row_bytes = row_bytes_of(codec, rows.shape[1], _dtype(rows))
    try:
        packed = codec.encode(context, rows, names)
    except RefusedRowsError as error:
        raise placed(error, context, names) from error
    return expect(codec, "encode", packed, (rows.shape[0], row_bytes), "uint8", rows)


def decoded(codec: Codec, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
    """Decode rows with ``codec``, with the checks of :func:`encoded`."""
    codec = codec.in_epochs(codec.epochs.names(context.epoch))
    found = codec.decode(context, packed, width, dtype)
    return expect(codec, "decode", found, (packed.shape[0], width), dtype, packed)


def expect(owner: object, method: str, found: Array, shape: tuple[int, ...], dtype: str, like: Array) -> Array:
    """Return ``found``, which a method of a policy or action returned. Raises :class:`PolicyError` if it has another
    shape or type, or is no array of the kind and device of ``like``."""
    # the device of a NumPy array is a word (and NumPy 1 has none), so it differs from that of a tensor
    place, there = (getattr(array, "device", "cpu") for array in (found, like))
    if getattr(found, "shape", None) == shape and _dtype(found) == dtype and place == there:
        return found
    raise wrong(owner, method, found, f"{dtype} {list(shape)} ({type(like).__name__}, {there})")


def expect_numbers(owner: object, method: str, found: Any, count: int, what: str = "numbers") -> tuple[float, ...]:
    """Return what a method returned as ``count`` numbers, or raise :class:`PolicyError`."""
    try:
        given = tuple(map(float, found))
    except (TypeError, ValueError):
        given = None
    if given is None or len(given) != count:
        raise wrong(owner, method, found, f"{count} {what}")
    return given


def wrong(owner: object, method: str, found: Any, expected: str) -> PolicyError:
    """Return the error for what a method of a policy or action returned, with its class and file."""
    got = " ".join(repr(found).split())[:100]
    if hasattr(found, "shape") and hasattr(found, "dtype"):
        got = f"{_dtype(found)} {list(found.shape)} ({type(found).__name__}, {getattr(found, 'device', 'cpu')})"
    return PolicyError.returned(owner, method, got, expected)


def _dtype(found: Array) -> str:
    """Return an array's element type as programs write it, such as "float32"."""
    return str(found.dtype).removeprefix("torch.")


class Refusal(NamedTuple):
    """A combination of choices that has no meaning. ``section``, ``option``: the key that the user should change.
    ``message``: the value found, the value expected, and why."""

    section: str
    option: str
    message: str


class Idle(NamedTuple):
    """An option that has no effect because of another choice. ``option``: its name in the reporting policy or section.
    ``choice``: the other choice, such as "cluster.hosts = 1". ``why``: the reason, and what to do."""

    option: str
    choice: str
    why: str


@dataclass(frozen=True, slots=True)
class DroppedHalo:
    """Halo rows that ranks of an edge-cut do without: their sums lack the edges from these rows.

    ``rank``, ``vertex`` int [d]: rank ``rank[k]`` drops the row of ``vertex[k]``; sorted by both, no pair twice.
    ``renormalised``: rows of a GCN are scaled by their in-degree over that of the edges that are kept. ``status``: how
    the choice of rows ended, in a word; ``notes``: what users must know of it, repeated in results."""

    rank: NDArray[np.integer]
    vertex: NDArray[np.integer]
    renormalised: bool = False
    status: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a partitioner decides. ``owner`` int [V]: the rank that owns each vertex; in a vertex-cut that of its master
    copy. ``edge_part`` int [E_u], of a vertex-cut only: the rank of each undirected edge, in the order of
    :func:`simgnn.partition.edges.undirected_edges`. ``dropped``: halo rows that ranks do without (None: they have
    all). ``counted``: numbers that the partitioner counted while it divided, by name, which reports show; ``notes``:
    what users must know of the partition, repeated in results."""

    owner: NDArray[np.integer]
    edge_part: NDArray[np.integer] | None = None
    dropped: DroppedHalo | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Partitioner(Policy, ABC):
    """A choice of slot ``partition``: which rank gets which part of the graph.

    ``cut``: an edge-cut divides vertices, so that a rank holds all in-edges of its rows; a vertex-cut divides edges, so
    that a rank holds parts of sums. ``reorder`` changes speed, never values.
    """

    slot: ClassVar[str] = "partition"
    cut: ClassVar[Cut] = "edge-cut"
    fits_devices: ClassVar[bool] = False
    """Whether it is a :class:`simgnn.partition.device_fit.FittedPartitioner`, which the planner asks to suit the
    devices of the ranks."""
    chunked: ClassVar[bool] = False
    """Whether it is a :class:`simgnn.partition.chunks.partitioner.ChunkedPartitioner`, which divides each partition
    into chunks, too."""
    around_labels: ClassVar[bool] = False
    """Whether parts are made around labelled vertices, so that reports show these by part, and what samples need."""

    reorder: Reorder = Field(default="rcm", description="order of a rank's own rows; changes speed, never values")

    def resolved(self, seed: int) -> Self:
        """A copy in which every default that depends on the experiment, such as its ``seed``, is filled in."""
        return self

    def for_layers(self, layers: int) -> Self:
        """A copy in which what depends on the number of the model's ``layers`` is filled in."""
        return self

    def weighed(self, weights: Callable[[], Mapping[str, float]]) -> Self:
        """A copy in which what depends on the work of an epoch is filled in. ``weights()``: the work of a vertex and of
        each in-edge or training label, by name: "vertices", "edges", "train"."""
        return self

    def alternatives(self) -> Iterator[tuple[str, "Partitioner"]]:
        """Yield this choice, then others that balance something else, each with a short name for a table."""
        yield self.label, self

    def stated(self) -> dict[str, Any]:
        """Kind and every option, as a table that an experiment or a ``stats:`` file may hold."""
        return self.model_dump(mode="json", exclude_none=True)

    def filled(self) -> dict[str, Any]:
        """Options that were filled in from the devices of the ranks, by name, for ``plan/resolved.toml``."""
        return {}

    @property
    def holds_own_rows(self) -> bool:
        """Whether the rows that a chunk needs include those of its own vertices."""
        return True

    @property
    def drops_between_hosts(self) -> bool:
        """Whether ranks do without all halo rows that ranks of other hosts own."""
        return False

    @abstractmethod
    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        """Divide ``graph`` among P = len(hosts) ranks; a pure function of its arguments and the fields.

        ``hosts`` int64 [P]: the host of each rank. ``spill``: folder for what a partitioner keeps on disk meanwhile
        (None: the system's for temporary files).
        """


class CommunicationTraits(Policy):
    """The properties of a communication that other choices may ask for.

    ``cut``: the kind of partition that it serves. ``moves``: what travels: listed rows or whole blocks of the full
    graph, or input rows of mini-batches. ``dense_inputs``: it takes sparse features as dense rows.
    ``transforms_copies``: ranks hold copies of input rows, which they can transform themselves. ``sums_drawn_rows``:
    halo rows travel along the route "halo", and sums can run over some of them, others in each epoch.
    ``stores_halo``: halo rows travel along the route "halo" and are stored in the order in which they arrive, so that
    some of them can stay from earlier epochs.
    """

    slot: ClassVar[str] = "communication"
    effect: ClassVar[Effect] = "decisions"
    cut: ClassVar[Cut]
    moves: ClassVar[Moves] = "rows"
    dense_inputs: ClassVar[bool] = False
    transforms_copies: ClassVar[bool] = True
    sums_drawn_rows: ClassVar[bool] = False
    stores_halo: ClassVar[bool] = False

    def input_rows(self) -> str:
        """What layer 1 exchanges: "input" rows, "transformed" ones, or "auto"."""
        return "input"

    def resends_inputs(self) -> bool:
        """Whether input rows travel in every epoch."""
        return False

    @property
    def sends_unasked(self) -> bool:
        """Whether owners send the rows of batches that they know ahead, without being asked."""
        return False


class BatchingTraits(Policy):
    """The properties of a batching that other choices may ask for. ``mini_batches``: a step trains on some vertices
    only. ``known_ahead``: all batches of a run are known before it begins."""

    slot: ClassVar[str] = "batching"
    effect: ClassVar[Effect] = "decisions"
    mini_batches: ClassVar[bool] = False
    known_ahead: ClassVar[bool] = False

    @property
    def asks_hosts(self) -> bool:
        """Whether hosts hold a part of the structure each, and draw batches for one another."""
        return False


class FreshnessTraits(Serving):
    """The properties of a freshness that other choices may ask for.

    ``exact``: every row that a rank computes with is of this step.
    ``sends_differences``: both ends keep the rows as last sent, and what travels is the difference from them.
    ``hands_on``: rows that pass through other ranks are encoded once and handed on as they came.
    ``late``: rows and gradients that travel in an epoch are used in a later one, so that no op of their own epoch waits
    for them. Input rows do not change; they are sent once, and used at once.
    ``draws_rows``: in each epoch a rank sums over other halo rows, so that sums of input rows are not constant either.
    ``caches_halo``: halo rows stay in use for several epochs, in caches whose sizes the placement states.
    """

    slot: ClassVar[str] = "freshness"
    effect: ClassVar[Effect] = "decisions"
    exact: ClassVar[bool] = False
    sends_differences: ClassVar[bool] = False
    hands_on: ClassVar[bool] = False
    late: ClassVar[bool] = False
    draws_rows: ClassVar[bool] = False
    caches_halo: ClassVar[bool] = False

    @property
    def evaluates_apart(self) -> bool:
        """Evaluations read exact rows, so they differ from training where it does not."""
        return not self.exact

    @property
    def acts(self) -> bool:
        """Also true where results of a run must say what an evaluation costs."""
        return self.evaluates_apart or super().acts

    @property
    def holds_inputs(self) -> bool:
        """Whether ranks hold the input features of all halo rows, so that layer 1 takes its rows from these."""
        return False

    @property
    def epochs(self) -> Epochs:
        """The epochs in which it does something else than usual, by name; by default none."""
        return Epochs()


Capacity = int | float | str | tuple[int, ...]
"""How many halo rows a cache holds, as an experiment states it."""


class PlacementTraits(Serving):
    """The properties of a placement that other choices may ask for.

    ``device_bytes``: the budget of every rank, of all that its device holds. An experiment that needs more, by the
    prediction of its memory, is refused before it trains. A rank on a CPU holds whatever it allocates, except memory
    that the ranks of its host share."""

    slot: ClassVar[str] = "placement"

    device_bytes: int = Field(
        default=0, ge=0, le=2**62, description="bytes that each rank may hold on its device; 0: all that the device has"
    )

    @property
    def host_space(self) -> Space:
        """The space of buffers that a rank keeps in its host's memory. "host-mapped": in mappings of its own, which do
        not count as its device's; on a CPU, ``device_bytes`` then limits what the rank allocates beside them."""
        return "host"

    def device_capacities(self, halo_rows: IntArray) -> IntArray:
        """The number of halo rows that the device of each rank may cache, int64 [P], of the ``halo_rows`` that each
        has, int64 [P]: by default none."""
        return np.zeros_like(halo_rows)

    def host_capacities(self, halo_vertices: IntArray) -> IntArray:
        """The number of rows that the memory of each host may hold for all its ranks, int64 [hosts], of the vertices
        that these have in their halos, int64 [hosts]: by default none."""
        return np.zeros_like(halo_vertices)

    @property
    def halo_caches(self) -> Mapping[str, Capacity]:
        """The options that state how many halo rows are cached, with their values: a number, a share, a number for each
        rank or host, or words that say how the planner chooses these; by default there are none."""
        return {}

    @property
    def reserved_shares(self) -> Mapping[str, float]:
        """By option of :attr:`halo_caches`, the share of a memory that a cache of chosen size leaves free."""
        return {}

    @property
    def shares_halo(self) -> bool:
        """Whether the memory of hosts may hold halo rows for several ranks."""
        return False

    @property
    def learns_rows(self) -> str:
        """The option that makes input rows trainable, such as "placement.sparse_embedding = 8"; "" if there is none."""
        return ""


class Schedule(Serving):
    """A choice of slot ``schedule``: on which stream each op runs, what it waits for, and which ready op runs next.

    A subclass overrides what it changes; as it is, ops of one nature share a stream, wait for what their buffers demand
    and run in program order.
    """

    slot: ClassVar[str] = "schedule"
    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")

    def refuses(self, choices: "Choices") -> Iterator["Refusal"]:
        """Reject :attr:`sums_own_first` with a communication that brings no halo rows for a layer to sum."""
        moved = choices.communication
        if self.sums_own_first and moved.moves in self.serves and (moved.cut, moved.moves) != ("edge-cut", "rows"):
            sent = "sums" if moved.cut == "vertex-cut" else moved.moves
            got = f"got '{self.label}' with communication.kind = '{moved.label}', expected 'bsp'"
            why = f"it sums own rows while halo rows travel, but ranks exchange {sent}, with nothing to sum meanwhile"
            yield Refusal("schedule", "kind", f"{got}: {why}")

    @property
    def sums_own_first(self) -> bool:
        """Whether a layer sums the rows of its own rank before halo rows have arrived, in an op of its own, so that
        their exchange may run beside it. Sums are the same to the last bit, with attention but for rounding. A user's
        own layer reads all rows at once."""
        return False

    @property
    def queues_copies(self) -> bool:
        """Whether rows on their way to memory that the ranks of a host share are first copied out of the device, into
        memory of their rank, and then merged there by the host's one server, so that computing waits for neither.
        Otherwise one op copies them there."""
        return False

    @property
    def mini_batches(self) -> "MiniBatchSchedule | None":
        """The schedule of mini-batches; None if it serves only the full graph."""
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

    @property
    def acts(self) -> bool:
        """Also true for a schedule that only overrides :meth:`pick`."""
        return self.picks or super().acts

    def init_pick(self) -> Any:
        """The state of a stream before its first choice; each stream of a rank has its own."""
        return None

    def pick(self, ready: Sequence[Ready], observed: Observed, state: Any) -> tuple[int, Any]:
        """Position among ``ready`` of the op that runs next, and the new state of the stream. Simulator and executor
        ask whenever a stream that does not communicate is free and has ops whose dependencies have ended."""
        return 0, state


@dataclass(frozen=True)
class StepEnds:
    """Names of the ops that end the parts of a step. ``staged``: the last op that brings rows; ``released``: the last
    op that reads the batch; ``trained``: the last op."""

    staged: str
    released: str
    trained: str


class MiniBatchSchedule(Schedule):
    """A schedule that serves mini-batches too: how many are drawn and staged ahead of the one in training.

    By default none: a step begins when the one before has ended.
    """

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks", "batches")

    @property
    def mini_batches(self) -> "MiniBatchSchedule":
        """Return the schedule itself, which serves mini-batches."""
        return self

    def stream(self, nature: Nature, op: Op) -> Stream:
        """The stream of the op's nature; that of drawing runs as many ops at once as batches are drawn at once."""
        found = super().stream(nature, op)
        if nature is not Nature.DRAWING:
            return found
        return replace(found, servers=expect_whole(self, "drawing_threads", self.drawing_threads, 1))

    def fitted(self, batches: int) -> "MiniBatchSchedule":
        """A copy for a run of ``batches`` batches, which keeps no memory for more of them."""
        return self

    @property
    def drawing_threads(self) -> int:
        """The number of mini-batches that can be drawn at the same time."""
        return 1

    @property
    def drawn_batches(self) -> int:
        """The number of mini-batches whose blocks are held at the same time, including the one in training."""
        return 1

    def staged_batches(self, steps: int) -> int:
        """The number of mini-batches whose input rows are held on the device at the same time, including the one in
        training. ``steps``: of an epoch."""
        return 1

    @property
    def pushes_beside(self) -> bool:
        """Whether the embedding gradients that a step pushes may travel while the next step runs."""
        return False

    def before_draw(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """The ops that drawing a batch waits for: here the end of the step before."""
        return tuple(Dependency(op, steps_back=1) for op in dict.fromkeys((ends.trained, ends.staged)))

    def before_rows(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """The ops that bringing a batch's rows waits for, besides its drawing: here the end of the step before."""
        return tuple(Dependency(op, steps_back=1) for op in dict.fromkeys((ends.trained, ends.staged)))

    def before_epoch(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """The further ops that the rows of an epoch's first batch wait for; by default none."""
        return ()


SLOTS: Mapping[str, type[Policy]] = MappingProxyType(
    {
        each.slot: each
        for each in (
            Partitioner, CommunicationTraits, BatchingTraits, FreshnessTraits, Codec, PlacementTraits, Schedule,
        )
    }
)  # fmt: skip
"""Slot -> base class of its choices, in the order of an experiment file."""


class ModelChoices(Protocol):
    """What policies may ask of ``[model]``."""

    @property
    def kind(self) -> str: ...

    @property
    def layers(self) -> int: ...

    @property
    def built_in(self) -> bool:
        """Whether its layers are simgnn's own, not a class of the user's."""

    @property
    def attends(self) -> bool:
        """Whether edges are weighed by attention."""

    @property
    def nonlinear(self) -> bool:
        """Whether a layer applies more than one matrix to its sums."""

    @property
    def aggregates_first(self) -> str:
        """The choice by which every layer sums rows before it transforms them, such as "model.kind = 'gin'"."""

    @property
    def transforms_first(self) -> str:
        """The choice by which every layer transforms its rows before it sums them; "" where there is none."""


class TrainChoices(Protocol):
    """What policies may ask of ``[train]``."""

    @property
    def epochs(self) -> int: ...

    @property
    def eval_every(self) -> int: ...

    @property
    def clip_norm(self) -> float: ...

    @property
    def needs_validation(self) -> str:
        """The key of an option that depends on the validation accuracy; "" if there is none."""

    def chosen(self, *options: str) -> list[str]:
        """The options among these whose value differs from their default."""


class GraphChoices(Protocol):
    """What policies may ask of ``[graph]``."""

    @property
    def source(self) -> str: ...


class ClusterChoices(Protocol):
    """What policies may ask of ``[cluster]``; None: the hardware profile decides."""

    @property
    def hosts(self) -> int | None: ...

    @property
    def ranks_per_host(self) -> int | None: ...


SlotPolicy = TypeVar("SlotPolicy", bound=Policy)


@dataclass(frozen=True)
class Choices:
    """All choices of an experiment. A policy may ask for the traits of other slots, never for their class or kind.

    ``trains``: whether the partition is to be trained on, so that all slots must suit one another. ``kinds``: the
    choices that a slot has, by kind.
    """

    partition: Partitioner
    communication: CommunicationTraits
    batching: BatchingTraits
    freshness: FreshnessTraits
    codec: CodecTraits
    placement: PlacementTraits
    schedule: Schedule
    model: ModelChoices
    train: TrainChoices
    graph: GraphChoices
    cluster: ClusterChoices
    trains: bool
    kinds: Callable[[str], Mapping[str, type[Policy]]]

    def fitting(self, slot: type[SlotPolicy], suits: Callable[[type[SlotPolicy]], bool]) -> str:
        """The kinds of a slot for which ``suits`` holds, as words of a message: "'halo'", or "one of 'ebv', 'hdrf'"."""
        known = self.kinds(slot.slot).items()
        fitting = [f"'{kind}'" for kind, found in known if issubclass(found, slot) and suits(found)]
        return fitting[0] if len(fitting) == 1 else f"one of {', '.join(fitting)}"


def chosen(options: BaseModel, names: Iterable[str]) -> list[str]:
    """The fields among ``names`` whose value differs from their default.

    Experiments that are read back from a run directory state every field, so stating a default is not a choice.
    """
    fields = type(options).model_fields
    return [name for name in names if getattr(options, name) != fields[name].default]
