"""Communication tables of a profile: kinds of links; what libraries (Gloo, NCCL) add to messages and collectives."""

from collections import Counter
from collections.abc import Sequence
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
    Seconds,
    Size,
    Source,
    Spread,
    Strict,
)
from simgnn.units import format_quantity

LinkKind = Literal["pcie", "nvlink", "infiniband", "ethernet", "shared-memory", "qpi", "loopback"]


class Queue(Strict):
    """A queue in front of a link: with ``messages`` at once in one direction, ``size`` bytes of them wait there."""

    messages: Annotated[StrictInt, Field(ge=1)]
    size: BytesOrNone


class Load(Strict):
    """How a link delays other messages while some fill it (bulk transfers over TCP), as measured.

    ``queues``: bytes that wait in front of the link, linear between two numbers of messages, constant beyond the last.
    ``processor``: CPU core seconds per byte at each of the two ends of the link (None: not measured, counted as zero).
    ``spread``: the largest relative standard deviation of these numbers between repeats (None: unknown).
    """

    source: Source
    queues: Annotated[tuple[Queue, ...], Field(min_length=1)]
    processor: Seconds | None = None
    spread: Spread | None = None
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(later.messages <= earlier.messages for earlier, later in pairwise(self.queues)):
            raise ValueError("queues: expected strictly ascending numbers of messages")
        return self

    def queued_bytes(self, messages: float) -> float:
        """Return the bytes that wait in front of the link while this number of messages fills it."""
        before, size = 0.0, 0.0
        for queue in self.queues:
            if messages <= queue.messages:
                return size + (messages - before) / (queue.messages - before) * (queue.size - size)
            before, size = float(queue.messages), queue.size
        return size


class LinkType(Strict):
    """A kind of link: ``bandwidth`` of each direction (half duplex: of both together), ``latency`` to cross it.

    ``message_bandwidth``: the highest rate of one message (None: the bandwidth). ``efficiency``: the fraction of that
    rate by message size. ``burst``: bytes that pass at once after a pause, in which they accumulate at the rate of the
    link (a token bucket; None: none). A profile with bursts is rejected if its GPUs' messages are copied through host
    memory. ``load``: how messages that fill the link delay others (None: not measured; they only share its bandwidth).
    """

    kind: LinkKind
    bandwidth: Bandwidth
    latency: Duration
    duplex: Literal["full", "half"] = "full"
    message_bandwidth: Bandwidth | None = None
    efficiency: Points | None = None
    burst: Size | None = None
    load: Load | None = None

    @property
    def rates(self) -> tuple[Bandwidth, ...]:
        """The bandwidths that limit one message."""
        return (self.bandwidth,) if self.message_bandwidth is None else (self.bandwidth, self.message_bandwidth)

    def message_rate(self, nbytes: float) -> float:
        """Bytes per second of one message of this size alone on the link after a pause; infinite for a burst."""
        rate = min(limit.value for limit in self.rates)
        if self.efficiency is not None:
            rate *= self.efficiency.at(nbytes)
        if self.burst is None:
            return rate
        return rate * nbytes / (nbytes - self.burst.value) if nbytes > self.burst.value else inf


CollectiveKind = Literal["allreduce", "broadcast", "allgather", "barrier", "exchange"]
Algorithm = Literal["ring", "tree", "binomial", "pairwise"]
Protocol = Literal["ll", "ll128", "simple"]
Ranks = Annotated[StrictInt, Field(ge=1)]


class Message(Strict):
    """Costs that the library adds to each message: ``floor`` seconds before the bytes flow, and limits of the rate."""

    floor: Duration
    bandwidth: Bandwidth | None = None
    efficiency: Points | None = None


class Ports(Strict):
    """The highest rates at which one rank sends and receives over all messages together (limited by the library)."""

    send: Bandwidth
    receive: Bandwidth


class Step(Strict):
    """One step of a step function over size: ``share`` is valid from ``size`` bytes up to the next step."""

    size: BytesOrNone
    share: Factor


class SpreadStep(Step):
    """A :class:`Step` whose value is a relative standard deviation."""

    share: Spread


Spreads = Annotated[tuple[SpreadStep, ...], Field(min_length=1)]


def check_ascending(name: str, steps: Sequence[Step]) -> None:
    """Raise ValueError if the sizes of the steps of ``name`` do not ascend."""
    if any(later.size <= earlier.size for earlier, later in pairwise(steps)):
        raise ValueError(f"{name}: expected strictly ascending sizes")


class Collective(Strict):
    """One collective: floor + hops x hop + bytes moved / bus bandwidth x (1 + fill / steps) x residual(bytes) seconds.

    ``floor`` is paid once per call, ``hop`` once per step of the algorithm (None: the latency of the longest hop).
    ``bus_bandwidth`` counts the bytes of each flow: 2(P-1)/P of the buffer for an all-reduce on a ring (as the NCCL
    tests count), the whole buffer along each edge of a tree or in a broadcast, P-1 times the part of one rank in an
    all-gather (None: the links limit it). ``scope``: groups inside one host, across hosts, or any. ``ranks``: measured
    group sizes. An ``exchange`` has a floor per call and a hop per peer; its bytes are priced as messages. In a
    ``binomial`` broadcast (of Gloo) each rank forwards only whole buffers, and leaves when its own part is done.

    ``chunk``: bytes of the part of one rank (buffer / P) that go round a ring at once. More bytes need further rounds,
    and every round pays a hop per step and one more (None: one round, only its steps). ``ranks_per_rail``: the
    bandwidth is that of one rail (network card), which this number of ranks of a host share (None: no rails).
    ``inside``: bandwidth of what all rails of a host share, which the bytes also cross (None: no cost). ``fill``:
    pipeline fill, as a fraction of a step (None: none). ``sizes``: the range of buffer bytes [from, to) of this entry,
    such as that of one ``protocol`` of NCCL. ``ranks_per_host``: numbers of ranks a host of these measurements across
    hosts (None: not stated). ``per``: whether the residual depends on the bytes of the buffer, or on
    the bytes that one rail moves with fill, which are comparable between group sizes. ``own_spread``,
    ``carried_spread``: spread by buffer size at ``ranks`` and at other group sizes (None: at ``ranks`` that of the
    numbers, elsewhere unknown).
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
    ranks_per_host: Annotated[tuple[Ranks, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if (self.kind == "exchange") != (self.algorithm == "pairwise"):
            raise ValueError(
                "algorithm: 'pairwise' and kind 'exchange' require each other; otherwise use 'ring' or 'tree'"
            )
        if self.algorithm == "binomial" and self.kind != "broadcast":
            raise ValueError(
                f"algorithm: 'binomial' is only for broadcasts; got kind '{self.kind}', expected 'ring' or 'tree'"
            )
        if self.kind in ("exchange", "barrier"):
            if self.bus_bandwidth or self.residual:
                raise ValueError(
                    f"bus_bandwidth and residual: not allowed for '{self.kind}', whose bytes are priced as messages"
                )
            if self.own_spread or self.carried_spread:
                raise ValueError(
                    f"own_spread and carried_spread: not allowed for '{self.kind}', whose call has no size; state the "
                    "spread of floor and hop"
                )
        if self.sizes is not None and not self.sizes[0] < self.sizes[1]:
            raise ValueError("sizes: expected two different sizes, the smaller first")
        check_ascending("own_spread", self.own_spread or ())
        check_ascending("carried_spread", self.carried_spread or ())
        return self

    def spread_by_size(self, exact: bool) -> Spreads | None:
        """Return the spread of calls by size, at a group size in ``ranks`` (``exact``) or at another."""
        return self.own_spread if exact else self.carried_spread

    def spread_at(self, nbytes: float, exact: bool) -> float | None:
        """Return the spread of a call of ``nbytes`` (None: unknown). Sizes below the first step have its spread."""
        steps = self.spread_by_size(exact)
        if steps is None:
            return self.bus_bandwidth.spread if exact and self.bus_bandwidth is not None else None
        reached = [step for step in steps if step.size <= nbytes]
        return (reached[-1] if reached else steps[0]).share


class Choice(Strict):
    """How a library chooses the algorithm of an all-reduce: the one with the higher expected rate.

    With bandwidth b, the expected rate of a ring is b x P / 2(P-1), and that of a tree is b x ``tree_over_ring`` x the
    share at the buffer size. Below the first of the ``shares`` a ring is used. Expectations may be wrong.
    """

    scope: Literal["host", "cluster"]
    source: Source
    tree_over_ring: Factor
    shares: Annotated[tuple[Step, ...], Field(min_length=1)]
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        check_ascending("shares", self.shares)
        return self

    def algorithm(self, ranks: int, nbytes: float) -> Algorithm:
        """Return the algorithm for a group of this number of ranks and a buffer of this size."""
        share = max((step for step in self.shares if step.size <= nbytes), key=lambda step: step.size, default=None)
        if ranks < 2 or share is None:
            return "ring"
        return "tree" if self.tree_over_ring * share.share > ranks / (2 * (ranks - 1)) else "ring"


class Backend(Strict):
    """A communication library as measured: costs of messages and collectives, and how it chooses algorithms
    (``choices``, one per scope).

    A kind and scope may have entries for several rank counts, several ranges of sizes, and several algorithms that a
    choice distinguishes. Two entries that fit the same call are rejected, so the order in a file does not matter.

    ``memory``: where buffers must be for sending and receiving. With "host" (always for Gloo), ranks on GPUs copy to
    host memory before a call and back after it. ``staging``: how a message of a device passes host memory if the device
    has no access to the memory of others: ``whole``, one copy after the other, or in ``chunks``, so that a message is
    as fast as the slowest link of all its copies.
    """

    message: Message
    memory: Literal["device", "host"] = "device"
    staging: Literal["whole", "chunks"] = "whole"
    ports: Ports | None = None
    collectives: tuple[Collective, ...] = ()
    choices: tuple[Choice, ...] = ()

    @field_validator("collectives", mode="before")
    @classmethod
    def _is_list(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError("expected a list of tables, each headed [[backends.NAME.collectives]]")
        return value

    @model_validator(mode="after")
    def _decided(self) -> Self:
        if self.memory == "host" and self.staging != "whole":
            raise ValueError(
                f"staging: got '{self.staging}' with memory = 'host', expected none: ranks copy whole buffers before "
                "and after a call; remove it"
            )
        faults = _undecided(self.collectives, self.choices)
        if faults:
            raise ValueError("\n".join(faults))
        return self


def _undecided(collectives: Sequence[Collective], choices: Sequence[Choice]) -> list[str]:
    """Describe pairs of entries that no rule of :func:`simgnn.hardware.price.collectives.choose_collective`
    distinguishes, and scopes with several choices."""
    scopes = Counter(choice.scope for choice in choices)
    faults = [
        f"choices: {times} entries for scope '{scope}'; expected one" for scope, times in scopes.items() if times > 1
    ]
    own = {(entry.kind, entry.scope) for entry in collectives}
    for (first, one), (second, other) in combinations(enumerate(collectives), 2):
        sizes = _sizes_of_both(one, other)
        if (one.kind, one.scope) != (other.kind, other.scope) or sizes is None:
            continue
        # an entry for any scope is used only where the scope has none of its own
        asked = [one.scope] if one.scope != "any" else [s for s in ("host", "cluster") if (one.kind, s) not in own]
        differ = one.kind == "allreduce" and one.algorithm != other.algorithm
        if all(differ and scope in scopes for scope in asked):
            continue
        algorithms = " and ".join(dict.fromkeys((one.algorithm, other.algorithm)))
        shared = ", ".join(map(str, sorted({*(one.ranks or ())} & {*(other.ranks or ())})))
        ranks = f"{shared} ranks" if shared else "any rank count"
        regime = "" if sizes == (0.0, inf) else f", sizes from {format_quantity(sizes[0], 'bytes')}"
        regime += "" if sizes[1] == inf else f" to {format_quantity(sizes[1], 'bytes')}"
        remedy = ", or a choice for each scope" if differ else ""
        faults.append(
            f"collectives: {first} and {second} both describe {one.kind} (scope '{one.scope}', {algorithms}) of "
            f"{ranks}{regime}; expected one{remedy}"
        )
    return faults


def _sizes_of_both(one: Collective, other: Collective) -> tuple[float, float] | None:
    """Range of sizes for which two entries compete because rank counts do not distinguish them: both are for any rank
    count, or both have the same number of counts and share one. None: they do not compete."""
    mine, theirs = set(one.ranks or ()), set(other.ranks or ())
    if len(mine) != len(theirs) or (mine and not mine & theirs):
        return None
    (low, high), (lower, higher) = one.sizes or (0.0, inf), other.sizes or (0.0, inf)
    return (max(low, lower), min(high, higher)) if max(low, lower) < min(high, higher) else None
