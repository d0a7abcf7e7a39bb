"""Kinds of links, and what a communication library adds to them."""

from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictInt, field_validator, model_validator

from simgnn.hardware.quantities import Bandwidth, BytesOrNone, Duration, Points, Ratio, Size, Strict

LinkKind = Literal["pcie", "nvlink", "infiniband", "ethernet", "shared-memory", "qpi", "loopback"]
CollectiveKind = Literal["allreduce", "broadcast", "allgather", "barrier", "exchange"]
Algorithm = Literal["ring", "tree", "pairwise"]
Protocol = Literal["ll", "ll128", "simple"]
Ranks = Annotated[StrictInt, Field(ge=1)]


class LinkType(Strict):
    """A link: ``bandwidth`` in each direction (half duplex: of both together), ``latency`` to cross it.

    ``message_bandwidth``: the most that one message reaches, however large (None: all of it). ``efficiency``: which
    share of that a message of a given size reaches. ``burst``: bytes that pass at once, whatever the bandwidth, after a
    pause in which they saved up at its rate (a token bucket; None: none).
    """

    kind: LinkKind
    bandwidth: Bandwidth
    latency: Duration
    duplex: Literal["full", "half"] = "full"
    message_bandwidth: Bandwidth | None = None
    efficiency: Points | None = None
    burst: Size | None = None

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


class Collective(Strict):
    """One collective: floor + steps x hop + bytes moved / bus bandwidth x (1 + fill / steps) x residual(bytes) seconds.

    ``floor`` is paid once a call, ``hop`` once a step of the algorithm (None: the latency of the longest hop).
    ``bus_bandwidth`` counts bytes as the NCCL tests do, so that it is the links' own where they limit: all-reduce moves
    2(P-1)/P of the buffer, broadcast all of it, all-gather (P-1) rows of ranks (None: what the links give). ``scope``:
    groups inside one host, across hosts, or any. ``ranks``: group sizes at which it was measured. An ``exchange`` has a
    floor a call and a hop for each peer; its bytes are messages.

    ``rails``: the bandwidth is that of one rail, and a group has as many as its smallest host has ranks (a network card
    each); ``inside``: bandwidth of the links inside hosts, which a rank's bytes cross besides (None: they take no time
    of their own). ``fill``: the part of a step by which a pass is longer than its steps (None: none). ``sizes``: the
    regime of sizes, from the first up to but not with the second, that this entry is for, such as those of one
    ``protocol`` of NCCL. ``per`` says what sizes and residual count: bytes of the buffer, or bytes that one rail moves,
    fill included, which carries over to other group sizes: ``carried_spread`` is the spread at those.
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
    rails: StrictBool = False
    inside: Bandwidth | None = None
    fill: Ratio | None = None
    carried_spread: Ratio | None = None
    ranks: Annotated[tuple[Ranks, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if (self.kind == "exchange") != (self.algorithm == "pairwise"):
            raise ValueError(
                "algorithm: 'pairwise' belongs to 'exchange' and to nothing else; expected 'ring' or 'tree'"
            )
        if self.kind in ("exchange", "barrier") and (self.bus_bandwidth or self.residual):
            raise ValueError(f"bus_bandwidth and residual: a {self.kind} has none; its bytes are priced as messages")
        if self.sizes is not None and not self.sizes[0] < self.sizes[1]:
            raise ValueError("sizes: expected the smaller first, and two that differ")
        return self


class Backend(Strict):
    """A communication library as measured: ``collectives``, and what it adds to messages."""

    message: Message
    ports: Ports | None = None
    collectives: tuple[Collective, ...] = ()

    @field_validator("collectives", mode="before")
    @classmethod
    def _is_list(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError("expected tables, each headed [[backends.NAME.collectives]]")
        return value
