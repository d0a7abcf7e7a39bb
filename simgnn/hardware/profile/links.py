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
