"""Kinds of links, and what a communication library adds to them."""

from itertools import pairwise
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, StrictStr, field_validator, model_validator

from simgnn.hardware.profile.ambiguous_backends import undecided
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

LinkKind = Literal["pcie", "nvlink", "infiniband", "ethernet", "shared-memory", "qpi", "loopback"]
CollectiveKind = Literal["allreduce", "broadcast", "allgather", "barrier", "exchange"]
Algorithm = Literal["ring", "tree", "binomial", "pairwise"]
Protocol = Literal["ll", "ll128", "simple"]
Ranks = Annotated[StrictInt, Field(ge=1)]


class Queue(Strict):
    """While ``messages`` fill a link at once, in each direction, ``size`` bytes of theirs wait in front of it."""

    messages: Annotated[StrictInt, Field(ge=1)]
    size: BytesOrNone


class Load(Strict):
    """What a link does to others while messages fill it, as measured under several at once (bulk transfers over TCP).

    ``queues``: what arrives at it waits behind so many bytes; between two numbers of messages linear, beyond the last
    as there. ``processor``: seconds of a core that a byte across it costs each of its two ends (None: not measured, and
    taken as none), which their work lacks. ``spread``: the largest standard deviation of these numbers from repeat to
    repeat, as a share (None: not known, as where a number cannot be told from none).
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
        earlier_messages, earlier_size = 0.0, 0.0
        for queue in self.queues:
            if messages <= queue.messages:
                part = (messages - earlier_messages) / (queue.messages - earlier_messages)
                return earlier_size + part * (queue.size - earlier_size)
            earlier_messages, earlier_size = float(queue.messages), queue.size
        return earlier_size


class LinkType(Strict):
    """A link: ``bandwidth`` in each direction (half duplex: of both together), ``latency`` to cross it.

    ``message_bandwidth``: the most that one message reaches, however large (None: all of it). ``efficiency``: which
    share of that a message of a given size reaches. ``burst``: bytes that pass at once, whatever the bandwidth, after a
    pause in which they saved up at its rate (a token bucket; None: none; refused on every link of two nodes where
    messages of any device go as copies through host memory). ``load``: what it does to others while messages fill it
    (None: not measured; they share its bandwidth, and that is all).
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
        """What limits one message: numbers whose measured sizes and spreads are its own."""
        return (self.bandwidth,) if self.message_bandwidth is None else (self.bandwidth, self.message_bandwidth)

    def message_rate(self, nbytes: float) -> float:
        """Bytes per second that one message of this size reaches on the link alone, after a pause; infinite for one
        that passes at once."""
        rate = self.bandwidth.value
        if self.message_bandwidth is not None:
            rate = min(rate, self.message_bandwidth.value)
        if self.efficiency is not None:
            rate *= self.efficiency.at(nbytes)
        if self.burst is None:
            return rate
        return rate * nbytes / (nbytes - self.burst.value) if nbytes > self.burst.value else inf


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
        faults = undecided(self.collectives, self.choices)
        if faults:
            raise ValueError("\n".join(faults))
        return self
