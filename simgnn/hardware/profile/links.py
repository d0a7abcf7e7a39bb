"""Kinds of links: their rates, latencies and loads."""

from itertools import pairwise
from math import inf
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, StrictStr, model_validator

from simgnn.hardware.profile.quantities import (
    Bandwidth,
    BytesOrNone,
    Duration,
    Points,
    Seconds,
    Size,
    Source,
    Spread,
    Strict,
)

LinkKind = Literal["pcie", "nvlink", "infiniband", "ethernet", "shared-memory", "qpi", "loopback"]


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
