"""Rings step by step, where links have loads: each message waits there by itself, and so each rank comes and goes.

Without loads all members of a ring are one fluid, which takes exactly what was measured of it.
"""

from dataclasses import dataclass
from math import ceil

from simgnn.hardware.price.collectives import CollectivePrice, Flow, Relay
from simgnn.hardware.price.machine import Machine
from simgnn.program.kinds import OpKind
from simgnn.sim.engine.message_rounds import WORD_BYTES

PARTS = 2
"""Gloo hands over the share of a rank in two (``gloo/allreduce.cc``), so that one is summed while the other comes."""


@dataclass(frozen=True)
class Ring:
    """A ring as rounds of messages. ``partial``: only some ranks have a share, so that whoever waits for one of these
    has told long ago that it is there; else what has just come goes on, and every receiver tells anew."""

    relay: Relay
    partial: bool


def queued_ring(
    machine: Machine, kind: OpKind, backend: str, members: tuple[int, ...], price: CollectivePrice
) -> "Ring | None":
    """The rounds of a collective, where it is a ring that crosses links with loads; None: it is none.

    In each round every rank sends its neighbour what it got in the one before: the share of one rank. A buffer of fewer
    words than ``PARTS`` a rank has the shares of the first ranks only.
    """
    flows, count = price.flows, len(members)
    closed = len(flows) == count and {flow.source for flow in flows} == {flow.target for flow in flows}
    crossing = (link for flow in flows for link in machine.path(flow.source, flow.target, backend).links)
    if price.steps < 2 or not closed or not any(machine.links[link].load is not None for link in crossing):
        return None
    each, filled = flows[0].nbytes / price.steps, count
    if kind is OpKind.ALLREDUCE:
        filled = min(count, ceil(count * each / (PARTS * WORD_BYTES)))
    rounds = tuple(
        tuple(
            Flow(flow.source, flow.target, each * count / filled, flow.rate_bytes_per_s)
            for place, flow in enumerate(flows)
            if (place - number) % count < filled
        )
        for number in range(price.steps)
    )
    hop = (price.latency_s - price.floor_s) / price.steps
    return Ring(Relay(price.floor_s, hop, rounds), filled < count)
