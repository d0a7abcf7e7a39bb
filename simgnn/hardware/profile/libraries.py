"""Communication libraries as measured: what each adds to messages, and the prices of its collectives."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations, pairwise
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, StrictStr, field_validator, model_validator

from simgnn.hardware.profile.quantities import (
    Bandwidth,
    Bytes,
    BytesOrNone,
    Duration,
    Factor,
    Points,
    Ratio,
    Source,
    Spread,
    Strict,
)
from simgnn.units import format_quantity

CollectiveKind = Literal["allreduce", "broadcast", "allgather", "barrier", "exchange"]
Algorithm = Literal["ring", "tree", "binomial", "pairwise"]
Protocol = Literal["ll", "ll128", "simple"]
Ranks = Annotated[StrictInt, Field(ge=1)]


class Message(Strict):
    """What the library adds to each message: ``floor`` seconds before its bytes flow, and its own limits of rate."""

    floor: Duration
    bandwidth: Bandwidth | None = None
    efficiency: Points | None = None


class Ports(Strict):
    """The most that one rank sends and receives over all its messages together (its threads, its copies)."""

    send: Bandwidth
    receive: Bandwidth


class Step(Strict):
    """From ``size`` bytes on, ``share`` holds, up to the next step."""

    size: BytesOrNone
    share: Factor


class SpreadStep(Step):
    """The same of a spread."""

    share: Spread


Spreads = Annotated[tuple[SpreadStep, ...], Field(min_length=1)]


class Collective(Strict):
    """One collective: floor + hops x hop + bytes moved / bus bandwidth x (1 + fill / steps) x residual(bytes) seconds.

    ``floor`` is paid once a call, ``hop`` once a step of the algorithm (None: the latency of the longest hop).
    ``bus_bandwidth`` counts the bytes that each flow of the algorithm carries, so that it is the links' own where they
    limit: an all-reduce moves 2(P-1)/P of the buffer round a ring (as the NCCL tests count) and all of it along each
    edge of a tree, a broadcast all of it, an all-gather (P-1) rows of ranks (None: what the links give). ``scope``:
    groups inside one host, across hosts, or any. ``ranks``: group sizes at which it was measured. An ``exchange`` has a
    floor a call and a hop for each peer; its bytes are messages. Rings and trees pass on what has arrived of a buffer;
    of a ``binomial`` broadcast (Gloo's) each rank sends it on when all of it has, and leaves when its own part is done.

    ``chunk``: bytes of each rank's share (buffer / P) that go round a ring at once; more of them go in further rounds,
    and every round pays its steps and the first sending (None: one round, its steps only). ``ranks_per_rail``: the
    bandwidth is that of one rail (a network card), which so many ranks of a host share (None: no rails). ``inside``:
    bandwidth of what all rails of a host share, which the bytes cross besides (None: they take no time of their own).
    ``fill``: the part of a step by which a pass is longer than its steps (None: none). ``sizes``: the regime of bytes
    of the buffer, from the first up to but not with the second, that this entry is for, such as those of one
    ``protocol`` of NCCL. ``per`` says what the residual counts: bytes of the buffer, or bytes that one rail moves, fill
    included, which carries over to other group sizes. ``own_spread``, ``carried_spread``: the spread at ``ranks`` and
    at other group sizes, by size of the buffer (None: that of the numbers for all sizes; not known).
    """

    kind: CollectiveKind
    scope: Literal["any", "host", "cluster"] = "any"
    algorithm: Algorithm = "ring"
    floor: Duration
    hop: Duration | None = None
    bus_bandwidth: Bandwidth | None = None
    residual: Points | None = None
    protocol: Protocol | None = None
    sizes: tuple[BytesOrNone, BytesOrNone] | None = None
    per: Literal["buffer", "moved"] = "buffer"
    chunk: Bytes | None = None
    ranks_per_rail: Ranks | None = None
    inside: Bandwidth | None = None
    fill: Ratio | None = None
    own_spread: Spreads | None = None
    carried_spread: Spreads | None = None
    ranks: Annotated[tuple[Ranks, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if (self.kind == "exchange") != (self.algorithm == "pairwise"):
            raise ValueError(
                "algorithm: 'pairwise' belongs to 'exchange' and to nothing else; expected 'ring' or 'tree'"
            )
        if self.algorithm == "binomial" and self.kind != "broadcast":
            raise ValueError(f"algorithm: 'binomial' is one of broadcasts; got {self.kind}, expected 'ring' or 'tree'")
        if self.kind in ("exchange", "barrier") and (self.bus_bandwidth or self.residual):
            raise ValueError(f"bus_bandwidth and residual: a {self.kind} has none; its bytes are priced as messages")
        if self.kind in ("exchange", "barrier") and (self.own_spread or self.carried_spread):
            raise ValueError(
                f"own_spread and carried_spread: '{self.kind}' has none, as its call has no size; expected the spread "
                "of floor and hop"
            )
        if self.sizes is not None and not self.sizes[0] < self.sizes[1]:
            raise ValueError("sizes: expected the smaller first, and two that differ")
        for name, steps in (("own_spread", self.own_spread), ("carried_spread", self.carried_spread)):
            if any(later.size <= earlier.size for earlier, later in pairwise(steps or ())):
                raise ValueError(f"{name}: expected sizes that ascend, none twice")
        return self

    def spread_by_size(self, exact: bool) -> Spreads | None:
        """The spread of whole calls by size, at a group size of ``ranks`` (``exact``) or at another."""
        return self.own_spread if exact else self.carried_spread

    def spread_at(self, nbytes: float, exact: bool) -> float | None:
        """The spread of a call: ``exact``, at a group size of ``ranks``, or at another; below the first step that of
        the first. None where nobody has told it."""
        steps = self.spread_by_size(exact)
        if steps is None:
            return self.bus_bandwidth.spread if exact and self.bus_bandwidth is not None else None
        held = [step for step in steps if step.size <= nbytes]
        return (held[-1] if held else steps[0]).share


class Choice(Strict):
    """How a library picks the algorithm of an all-reduce: the one that it expects to pass more of the buffer a second.

    Of a ring of bandwidth b it expects b x P / 2(P-1), of a tree b x ``tree_over_ring`` x the share of the buffer's
    size; below the first of the ``shares`` it takes the ring. What it expects need not be what it gets.
    """

    scope: Literal["host", "cluster"]
    source: Source
    tree_over_ring: Factor
    shares: Annotated[tuple[Step, ...], Field(min_length=1)]
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(later.size <= earlier.size for earlier, later in pairwise(self.shares)):
            raise ValueError("shares: expected sizes that ascend, none twice")
        return self

    def algorithm(self, ranks: int, nbytes: float) -> Algorithm:
        """What a group of this size takes for a buffer of this size."""
        share = max((step for step in self.shares if step.size <= nbytes), key=lambda step: step.size, default=None)
        if ranks < 2 or share is None:
            return "ring"
        return "tree" if self.tree_over_ring * share.share > ranks / (2 * (ranks - 1)) else "ring"


class Backend(Strict):
    """A communication library as measured: ``collectives``, which of their algorithms it takes, where it has several
    (``choices``, one a scope), and what it adds to messages.

    Of a kind and scope there may be entries of several rank counts (the exact, the nearest, or of those that share it
    the one measured at fewest), regimes of sizes that meet but do not overlap, and algorithms that a choice tells
    apart. What nothing tells apart is refused: no order in a file decides a price.

    ``memory``: where what it sends and receives must lie. With "host" the ranks of GPUs copy it to their host's memory
    before a call and back after it, and messages go from memory to memory: Gloo knows no other.
    """

    message: Message
    memory: Literal["device", "host"] = "device"
    ports: Ports | None = None
    collectives: tuple[Collective, ...] = ()
    choices: tuple[Choice, ...] = ()

    @field_validator("collectives", mode="before")
    @classmethod
    def _is_list(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError("expected tables, each headed [[backends.NAME.collectives]]")
        return value

    @model_validator(mode="after")
    def _decided(self) -> Self:
        faults = _undecided(self.collectives, self.choices)
        if faults:
            raise ValueError("\n".join(faults))
        return self


def _undecided(collectives: Sequence[Collective], choices: Sequence[Choice]) -> list[str]:
    """Pairs of entries that :func:`simgnn.hardware.price.collectives.choose_collective` has no rule to tell apart, and
    scopes of several choices, in sentences."""
    scopes = Counter(choice.scope for choice in choices)
    faults = [f"choices: {times} for scope '{scope}'; expected one" for scope, times in scopes.items() if times > 1]
    for (first, one), (second, other) in combinations(enumerate(collectives), 2):
        sizes = _sizes_of_both(one, other)
        if (one.kind, one.scope) != (other.kind, other.scope) or sizes is None:
            continue
        asked = [scope for scope in ("host", "cluster") if _asked(one, scope, collectives)]
        if _chosen(one, other, asked, scopes):
            continue
        ways = " and ".join(dict.fromkeys((one.algorithm, other.algorithm)))
        shared = ", ".join(map(str, sorted({*(one.ranks or ())} & {*(other.ranks or ())})))
        ranks = f"{shared} ranks" if shared else "any rank count"
        regime = "" if sizes == (0.0, inf) else f", sizes from {format_quantity(sizes[0], 'bytes')}"
        regime += "" if sizes[1] == inf else f" to {format_quantity(sizes[1], 'bytes')}"
        remedy = "" if one.algorithm == other.algorithm or one.kind != "allreduce" else ", or choices of each scope"
        faults.append(
            f"collectives: {first} and {second} both tell {one.kind} (scope '{one.scope}', {ways}) of {ranks}{regime}; "
            f"expected one{remedy}"
        )
    return faults


def _sizes_of_both(one: Collective, other: Collective) -> tuple[float, float] | None:
    """Sizes that two entries are both for, where no rank count tells them apart: both are for any, or each was measured
    at as many, of them one at both. None: there are none."""
    mine, theirs = set(one.ranks or ()), set(other.ranks or ())
    if len(mine) != len(theirs) or (mine and not mine & theirs):
        return None
    (low, high), (lower, higher) = one.sizes or (0.0, inf), other.sizes or (0.0, inf)
    return (max(low, lower), min(high, higher)) if max(low, lower) < min(high, higher) else None


def _asked(entry: Collective, scope: str, collectives: Sequence[Collective]) -> bool:
    """Whether an entry is looked at for groups of a scope: one for any only where none is of that scope itself."""
    own = any((other.kind, other.scope) == (entry.kind, scope) for other in collectives)
    return entry.scope == scope or (entry.scope == "any" and not own)


def _chosen(one: Collective, other: Collective, asked: Sequence[str], scopes: Collection[str]) -> bool:
    """Whether choices of these scopes tell two all-reduces apart in every scope in which they are looked at."""
    differ = one.kind == "allreduce" and one.algorithm != other.algorithm
    return all(differ and scope in scopes for scope in asked)
