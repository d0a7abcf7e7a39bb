"""Kinds of links: their rates, latencies and loads."""

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
    """While ``messages`` at once fill a link in one direction, ``size`` bytes of them wait in front of it."""

    messages: Annotated[StrictInt, Field(ge=1)]
    size: BytesOrNone


class Load(Strict):
    """How a link delays other messages while some fill it (bulk transfers over TCP), as measured.

    ``queues``: bytes that wait in front of the link, linear between two numbers of messages, constant beyond the last.
    ``processor``: seconds of a core that a byte costs at each of the link's two ends (None: not measured, taken as
    none). ``spread``: the largest standard deviation of these numbers from repeat to repeat, as a share (None:
    unknown).
    """

    source: Source
    queues: Annotated[tuple[Queue, ...], Field(min_length=1)]
    processor: Seconds | None = None
    spread: Spread | None = None
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(later.messages <= earlier.messages for earlier, later in pairwise(self.queues)):
            raise ValueError("queues: expected numbers of messages that ascend, none twice")
        return self

    def queued_bytes(self, messages: float) -> float:
        """Bytes that wait in front of the link while so many messages fill it."""
        before, size = 0.0, 0.0
        for queue in self.queues:
            if messages <= queue.messages:
                return size + (messages - before) / (queue.messages - before) * (queue.size - size)
            before, size = float(queue.messages), queue.size
        return size


class LinkType(Strict):
    """A link: ``bandwidth`` in each direction (half duplex: of both together), ``latency`` to cross it.

    ``message_bandwidth``: the highest rate of one message (None: the bandwidth). ``efficiency``: the share of it that a
    message of a given size reaches. ``burst``: bytes that pass at once after a pause in which they saved up at the
    link's rate (a token bucket; None: none). It is rejected on links of nodes where messages of any device go as copies
    through host memory. ``load``: how it delays others while messages fill it (None: not measured; they only share
    its bandwidth).
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
        """The numbers that limit one message."""
        return (self.bandwidth,) if self.message_bandwidth is None else (self.bandwidth, self.message_bandwidth)

    def message_rate(self, nbytes: float) -> float:
        """Bytes per second that one message of this size reaches on the link alone, after a pause; infinite for one
        that passes at once."""
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
    """What the library adds to each message: ``floor`` seconds before its bytes flow, and its own limits of rate."""

    floor: Duration
    bandwidth: Bandwidth | None = None
    efficiency: Points | None = None


class Ports(Strict):
    """The highest rate at which one rank sends and receives over all its messages together (its threads, copies)."""

    send: Bandwidth
    receive: Bandwidth


class Step(Strict):
    """From ``size`` bytes on, ``share`` holds, up to the next step."""

    size: BytesOrNone
    share: Factor


class SpreadStep(Step):
    """A :class:`Step` of a spread."""

    share: Spread


Spreads = Annotated[tuple[SpreadStep, ...], Field(min_length=1)]


def _check_ascending(name: str, steps: Sequence[Step]) -> None:
    if any(later.size <= earlier.size for earlier, later in pairwise(steps)):
        raise ValueError(f"{name}: expected sizes that ascend, none twice")


class Collective(Strict):
    """One collective: floor + hops x hop + bytes moved / bus bandwidth x (1 + fill / steps) x residual(bytes) seconds.

    ``floor`` is paid once a call, ``hop`` once a step of the algorithm (None: the latency of the longest hop).
    ``bus_bandwidth`` counts the bytes that each flow carries: 2(P-1)/P of the buffer for an all-reduce round a ring (as
    the NCCL tests count), all of it along each edge of a tree or in a broadcast, (P-1) rows of ranks in an all-gather
    (None: what the links give). ``scope``: groups inside one host, across hosts, or any. ``ranks``: measured group
    sizes. An ``exchange`` has a floor a call and a hop for each peer; its bytes are messages. In a ``binomial``
    broadcast (Gloo's) each rank forwards only the whole buffer, and leaves when its own part is done.

    ``chunk``: bytes of each rank's share (buffer / P) that go round a ring at once. More bytes need further rounds, and
    every round pays its steps and the first sending (None: one round, its steps only). ``ranks_per_rail``: the
    bandwidth is that of one rail (a network card), which so many ranks of a host share (None: no rails). ``inside``:
    bandwidth of what all rails of a host share, which the bytes also cross (None: it costs no time). ``fill``: the part
    of a step by which a pass is longer than its steps (None: none). ``sizes``: the regime of the buffer's bytes [from,
    to) that this entry is for, such as those of one ``protocol`` of NCCL. ``per``: the residual counts bytes of the
    buffer, or bytes that one rail moves with fill, which carries over to other group sizes. ``own_spread``,
    ``carried_spread``: the spread at ``ranks`` and at other group sizes, by size of the buffer (None: for ``ranks``
    that of the numbers; for others unknown).
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
        if self.kind in ("exchange", "barrier"):
            if self.bus_bandwidth or self.residual:
                raise ValueError(
                    f"bus_bandwidth and residual: a {self.kind} has none; its bytes are priced as messages"
                )
            if self.own_spread or self.carried_spread:
                raise ValueError(
                    f"own_spread and carried_spread: '{self.kind}' has none, as its call has no size; expected the "
                    "spread of floor and hop"
                )
        if self.sizes is not None and not self.sizes[0] < self.sizes[1]:
            raise ValueError("sizes: expected the smaller first, and two that differ")
        _check_ascending("own_spread", self.own_spread or ())
        _check_ascending("carried_spread", self.carried_spread or ())
        return self

    def spread_by_size(self, exact: bool) -> Spreads | None:
        """The spread of calls by size, at a group size of ``ranks`` (``exact``) or at another."""
        return self.own_spread if exact else self.carried_spread

    def spread_at(self, nbytes: float, exact: bool) -> float | None:
        """The spread of a call of ``nbytes``; sizes below the first step have its spread. None: unknown."""
        steps = self.spread_by_size(exact)
        if steps is None:
            return self.bus_bandwidth.spread if exact and self.bus_bandwidth is not None else None
        held = [step for step in steps if step.size <= nbytes]
        return (held[-1] if held else steps[0]).share


class Choice(Strict):
    """How a library picks the algorithm of an all-reduce: the one that it expects to pass more of the buffer a second.

    With bandwidth b it expects b x P / 2(P-1) from a ring, and b x ``tree_over_ring`` x the share of the buffer's size
    from a tree. Below the first of the ``shares`` it takes the ring. Its expectations may be wrong.
    """

    scope: Literal["host", "cluster"]
    source: Source
    tree_over_ring: Factor
    shares: Annotated[tuple[Step, ...], Field(min_length=1)]
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        _check_ascending("shares", self.shares)
        return self

    def algorithm(self, ranks: int, nbytes: float) -> Algorithm:
        """The algorithm for a group and a buffer of these sizes."""
        share = max((step for step in self.shares if step.size <= nbytes), key=lambda step: step.size, default=None)
        if ranks < 2 or share is None:
            return "ring"
        return "tree" if self.tree_over_ring * share.share > ranks / (2 * (ranks - 1)) else "ring"


class Backend(Strict):
    """A communication library as measured: its collectives, which algorithm it takes (``choices``, one a scope), and
    what it adds to messages.

    A kind and scope may have entries of several rank counts, of several regimes of sizes, and of several algorithms
    that a choice tells apart. Two entries that fit the same call are rejected: no order in a file decides a price.

    ``memory``: where what it sends and receives must lie. With "host" (Gloo's only way) the ranks of GPUs copy to their
    host's memory before a call and back after it.
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
        ways = " and ".join(dict.fromkeys((one.algorithm, other.algorithm)))
        shared = ", ".join(map(str, sorted({*(one.ranks or ())} & {*(other.ranks or ())})))
        ranks = f"{shared} ranks" if shared else "any rank count"
        regime = "" if sizes == (0.0, inf) else f", sizes from {format_quantity(sizes[0], 'bytes')}"
        regime += "" if sizes[1] == inf else f" to {format_quantity(sizes[1], 'bytes')}"
        remedy = ", or choices of each scope" if differ else ""
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
