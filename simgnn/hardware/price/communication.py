"""Prices of messages and collectives among placed ranks."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from math import inf
from typing import NamedTuple, Protocol

from simgnn.hardware.price.collectives import (
    CollectivePrice,
    Flow,
    Relay,
    binomial_rounds,
    bus_seconds,
    choose_collective,
    divided,
    flow_bytes,
    flow_pairs,
    hops,
    joined,
    rails,
    steps,
)
from simgnn.hardware.profile.libraries import Backend, Collective
from simgnn.hardware.topology.routes import Link, Route


class Path(NamedTuple):
    """Positions in ``Machine.links`` that a message crosses, and the latency of all of them."""

    links: tuple[int, ...]
    latency_s: float


class PlacedRanks(Protocol):
    """What a price reads of a :class:`~simgnn.hardware.price.machine.Machine`."""

    @property
    def hosts(self) -> Sequence[int]:
        """Host number of each rank."""
        ...

    @property
    def links(self) -> Sequence[Link]:
        """Everything that flows share."""
        ...

    def backend(self, name: str) -> tuple[str, Backend]:
        """A communication library by name."""
        ...

    def route(self, i: int, j: int, backend: str) -> Route:
        """Route of a library's messages between two ranks, without their ports."""
        ...

    def path(self, i: int, j: int, backend: str) -> Path:
        """What a message from rank i to rank j crosses, ports included."""
        ...


class MessagePrice(NamedTuple):
    """Seconds before the bytes flow, and the most that this one flow reaches, alone, at this size."""

    latency_s: float
    rate_bytes_per_s: float
    extrapolated: bool


class CallPrice(NamedTuple):
    """What a group operation costs besides its bytes: ``floor_s`` once, ``hop_s`` for each peer or step."""

    floor_s: float
    hop_s: float
    spread: float | None
    extrapolated: bool


def price_message(machine: PlacedRanks, i: int, j: int, nbytes: float, backend: str) -> MessagePrice:
    """One message of ``nbytes`` from rank i to rank j, before it shares links with others."""
    _, described = machine.backend(backend)
    route = machine.route(i, j, backend)
    rate = min(_library_rate(described, nbytes), route.message_rate(nbytes))
    limits = [rate.range for link in route.types for rate in link.rates]
    if described.message.bandwidth is not None:
        limits.append(described.message.bandwidth.range)
    outside = any(_outside(limit, nbytes) for limit in limits)
    return MessagePrice(route.latency_s + described.message.floor.value, rate, outside)


def find_collective(
    machine: PlacedRanks, kind: str, backend: str, members: Sequence[int], nbytes: float = 0.0
) -> tuple[Collective, bool]:
    """The description that a call of ``members`` with a buffer of ``nbytes`` is priced by, and whether it was measured
    at just this many ranks."""
    name, described = machine.backend(backend)
    return choose_collective(described, name, kind, len(members), _across_hosts(machine, members), nbytes)


def price_call(machine: PlacedRanks, kind: str, backend: str, members: Sequence[int]) -> CallPrice:
    """Floor and hop of a collective, or of an ``exchange``, whose bytes are messages."""
    chosen, exact = find_collective(machine, kind, backend, members)
    hop = chosen.hop.value if chosen.hop is not None else _longest_hop(machine, members, backend)
    spread = chosen.floor.spread if chosen.hop is None else (chosen.hop.spread or chosen.floor.spread)
    return CallPrice(chosen.floor.value, hop, spread, not exact)


def price_collective(
    machine: PlacedRanks, kind: str, backend: str, nbytes: float, members: Sequence[int], root: int | None
) -> CollectivePrice:
    """A collective of ``members``, in ring order by host and number; ``root`` of a broadcast: default the first."""
    count = len(members)
    least = _ranks_per_host(machine, members)
    chosen, exact = find_collective(machine, kind, backend, members, nbytes)
    parts = joined(machine.backend(backend)[1], chosen, exact, nbytes)
    hop = _longest_hop(machine, members, backend) if any(entry.hop is None for entry, _ in parts) else 0.0
    hopping = sum(
        share * hops(entry, count, nbytes) * (hop if entry.hop is None else entry.hop.value) for entry, share in parts
    )
    floor = sum(share * entry.floor.value for entry, share in parts)
    latency = floor + hopping
    start = members[0] if root is None else root
    relays = chosen.algorithm == "binomial"
    if relays:
        rounds = binomial_rounds(sorted(members), start)
    else:
        rounds = [flow_pairs(kind, chosen.algorithm, _ring(machine, members), start)]
    each = flow_bytes(kind, chosen.algorithm, count, nbytes)
    source, spread = chosen.floor.source, chosen.floor.spread
    if chosen.spread_by_size(exact) is not None:
        spread = chosen.spread_at(nbytes, exact)
    if not any(rounds) or each == 0:
        beyond = chosen.bus_bandwidth is not None and _outside(chosen.bus_bandwidth.range, nbytes)
        return CollectivePrice(latency, (), latency, spread, not exact or beyond, source, floor_s=floor)
    on_links = _seconds_on_links(machine, rounds, each, backend)
    extrapolated = not exact
    rates: list[list[float]] | None = None
    if chosen.bus_bandwidth is None:
        rates = [[price_message(machine, i, j, each, backend).rate_bytes_per_s for i, j in pairs] for pairs in rounds]
        library = [each / min(found) for found in rates]
        seconds = [max(pair) for pair in zip(on_links, library, strict=True)]
    else:
        # it may use several messages at once on a link, so only the link itself limits it further
        busy = sum(share * bus_seconds(entry, count, least, nbytes) for entry, share in parts)
        library = divided(busy, rounds)
        measured_so = exact and chosen.ranks is not None and chosen.bus_bandwidth.source == "measured"
        # with rails each host's bytes leave it by several ways, of which the flows below show but one
        beside = [0.0 if measured_so else taken / rails(chosen, least) for taken in on_links]
        seconds = [max(pair) for pair in zip(beside, library, strict=True)]
        source, spread = chosen.bus_bandwidth.source, chosen.spread_at(nbytes, exact)
        extrapolated = extrapolated or _outside(chosen.bus_bandwidth.range, nbytes)
    flows = []
    for number, pairs in enumerate(rounds):
        # measured faster than flows of all bytes would be: they are lighter
        moved = each * min(1.0, seconds[number] / on_links[number]) if on_links[number] else each
        # a relayed message is as fast as the library and its own way allow, others keep step with the busiest link;
        # bytes that links let through at once take no time of their own
        takes = library[number] if relays else seconds[number]
        reached = moved / takes if takes else inf
        limits = rates[number] if relays and rates is not None else [reached] * len(pairs)
        flows.append(tuple(Flow(i, j, moved, limit) for (i, j), limit in zip(pairs, limits, strict=True)))
    relay = Relay(chosen.floor.value, hopping / len(rounds), tuple(flows)) if relays else None
    alone = latency + sum(seconds)
    following = steps(kind, chosen.algorithm, count)
    return CollectivePrice(latency, tuple(chain(*flows)), alone, spread, extrapolated, source, relay, following, floor)


def _library_rate(described: Backend, nbytes: float) -> float:
    """The most that the library lets one message of this size reach."""
    rate = inf if described.message.bandwidth is None else described.message.bandwidth.value
    if described.ports is not None:
        rate = min(rate, described.ports.send.value, described.ports.receive.value)
    return rate if described.message.efficiency is None else rate * described.message.efficiency.at(nbytes)


def _seconds_on_links(
    machine: PlacedRanks, rounds: Sequence[Sequence[tuple[int, int]]], each: float, backend: str
) -> list[float]:
    """Seconds that equal flows of each round take after a pause, round after round: its busiest link decides. A link
    lets its burst through in the first of the rounds that cross it."""
    seconds, crossed_before = [], set[int]()
    for pairs in rounds:
        load: Counter[int] = Counter()
        for i, j in pairs:
            load.update(machine.path(i, j, backend).links)
        times = [
            max(flows * each - (0.0 if link in crossed_before else machine.links[link].burst_bytes), 0.0)
            / machine.links[link].capacity_bytes_per_s
            for link, flows in load.items()
        ]
        seconds.append(max(times, default=0.0))
        crossed_before.update(load)
    return seconds


def _ring(machine: PlacedRanks, members: Sequence[int]) -> list[int]:
    """Members in an order that leaves each host once."""
    return sorted(members, key=lambda rank: (machine.hosts[rank], rank))


def _longest_hop(machine: PlacedRanks, members: Sequence[int], backend: str) -> float:
    """Latency of the longest hop of the ring, with the library's floor of a message."""
    if len(members) < 2:
        return 0.0
    ring = _ring(machine, members)
    hops = [machine.route(i, j, backend).latency_s for i, j in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return machine.backend(backend)[1].message.floor.value + max(hops)


def _across_hosts(machine: PlacedRanks, members: Sequence[int]) -> bool:
    return len({machine.hosts[rank] for rank in members}) > 1


def _ranks_per_host(machine: PlacedRanks, members: Sequence[int]) -> int:
    """Ranks on the host that has the fewest of the group."""
    return min(Counter(machine.hosts[rank] for rank in members).values(), default=1)


def _outside(limits: tuple[float, float] | None, nbytes: float) -> bool:
    return limits is not None and not limits[0] <= nbytes <= limits[1]
