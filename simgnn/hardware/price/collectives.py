"""Prices of collectives: latency from the number of steps, transfer time from the bytes, and a measured correction.

Sources: Thakur et al., IJHPCA 2005, for steps of algorithms; the NCCL tests for the definition of bus bandwidth.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import ceil, inf, log, log1p, log2
from typing import NamedTuple

from simgnn.errors import HardwareError
from simgnn.hardware.price.messages import PlacedRanks, outside, price_message
from simgnn.hardware.profile.communication import Backend, Collective
from simgnn.spelling import nearest

TOUCHING = 1e-12
"""Added to the distance of a size from a regime that does not contain it. A size at the boundary of two regimes is thus
nearest to the regime that begins there."""

FIRST_ROUND = 0.5
"""Extra length of the first round of a chunked ring, in rounds. A chunk is sent as two slices, and no rank forwards
anything before the first slice has arrived. Later rounds partly hide their hops behind bytes."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes that travel from one rank to another, with the highest rate that they reach without other traffic."""

    source: int
    target: int
    nbytes: float
    rate_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Relay:
    """Timing of a collective in which each member forwards only whole buffers (a binomial tree).

    A member pays ``call_s`` when it enters the call. A message begins ``hop_s`` after its sender holds the buffer and
    its receiver has entered. A member leaves after its last message, and in ``rounds`` receives before it sends.
    """

    call_s: float
    hop_s: float
    rounds: tuple[tuple[Flow, ...], ...]


@dataclass(frozen=True, slots=True)
class CollectivePrice:
    """Price of one collective call: ``latency_s`` first, then all ``flows`` at once, as ``steps`` messages one after
    the other. ``floor_s`` is the part of the latency that does not belong to hops. ``seconds_alone``: the total without
    other traffic on the links.

    With a ``relay``, members enter and leave one by one, and ``latency_s`` is the total latency to the last member.
    ``seconds_alone`` then assumes that each round ends before the next begins, which holds inside a host. Across hosts
    rounds overlap, and only a simulation gives the time.
    """

    latency_s: float
    flows: tuple[Flow, ...]
    seconds_alone: float
    spread: float | None
    extrapolated: bool
    source: str
    relay: Relay | None = None
    steps: int = 1
    floor_s: float = 0.0


class CallPrice(NamedTuple):
    """Cost of a group operation without its bytes: ``floor_s`` once, and ``hop_s`` for each peer or step."""

    floor_s: float
    hop_s: float
    spread: float | None
    extrapolated: bool


def steps(kind: str, algorithm: str, ranks: int) -> int:
    """Return the number of messages on the critical path of a collective, one after the other."""
    if ranks < 2:
        return 0
    ring, tree = ranks - 1, ceil(log2(ranks))
    if kind == "exchange":
        return ring
    if kind in ("allreduce", "barrier") and algorithm != "tree":
        return 2 * ring
    if kind == "allreduce":
        return 2 * tree
    return tree if algorithm in ("tree", "binomial") else ring


def bytes_moved(kind: str, ranks: int, nbytes: float) -> float:
    """The bytes that pass each rank of a ring. ``nbytes``: size of the buffer (all-gather: the part of one rank)."""
    if ranks < 2:
        return 0.0
    once = {"broadcast": 1.0, "barrier": 0.0, "exchange": 0.0}  # an exchange is priced by its messages
    return {**once, "allreduce": 2 * (ranks - 1) / ranks, "allgather": ranks - 1.0}[kind] * nbytes


def flow_bytes(kind: str, algorithm: str, ranks: int, nbytes: float) -> float:
    """Return the bytes that each flow of :func:`flow_pairs` carries."""
    both_ways = kind == "allreduce" and algorithm == "tree"
    return nbytes if both_ways else bytes_moved(kind, ranks, nbytes)


def flow_pairs(kind: str, algorithm: str, members: Sequence[int], root: int) -> list[tuple[int, int]]:
    """Return (sender, receiver) of every flow: neighbours on the ring, or parents and children of the binary tree.

    ``members`` are in ring order. A pipelined algorithm keeps all flows busy at once. The flows of an all-gather are
    always those of a ring, even if its number of steps is that of a tree (recursive doubling).
    """
    count = len(members)
    if count < 2 or kind in ("barrier", "exchange"):
        return []
    start = members.index(root)
    order = [*members[start:], *members[:start]]
    if algorithm == "tree" and kind != "allgather":
        down = [(order[(child - 1) // 2], order[child]) for child in range(1, count)]
        return down if kind != "allreduce" else down + [(child, parent) for parent, child in down]
    if kind == "broadcast":
        return list(pairwise(order))
    return list(zip(order, [*order[1:], order[0]], strict=True))


def binomial_rounds(ranks: Sequence[int], root: int) -> list[list[tuple[int, int]]]:
    """Return (sender, receiver) pairs by round of a binomial broadcast, in which ranks forward only whole buffers.

    ``ranks`` ascend. Counted from the root, number v receives from the number that is v without its highest bit, in
    round popcount(v) (Gloo, ``gloo/broadcast.cc``). The pairs do not depend on the placement of ranks, so many of them
    may cross one link.
    """
    count = len(ranks)
    start = ranks.index(root)
    order = [*ranks[start:], *ranks[:start]]
    rounds: list[list[tuple[int, int]]] = [[] for _ in range(steps("broadcast", "binomial", count))]
    for child in range(1, count):
        parent = child - (1 << (child.bit_length() - 1))
        rounds[child.bit_count() - 1].append((order[parent], order[child]))
    return [pairs for pairs in rounds if pairs]


def hops(entry: Collective, ranks: int, nbytes: float) -> float:
    """The number of messages one after the other in a call: the steps of the algorithm, for every round of chunks."""
    count = steps(entry.kind, entry.algorithm, ranks)
    if entry.chunk is None or ranks < 2:
        return count
    return (count + 1) * (max(ceil(nbytes / ranks / entry.chunk), 1) + FIRST_ROUND)


def rails(entry: Collective, ranks_per_host: int) -> int:
    """Return the number of rails (network cards) of a group whose smallest host has ``ranks_per_host`` of the ranks."""
    return 1 if entry.ranks_per_rail is None else ceil(ranks_per_host / entry.ranks_per_rail)


def bus_seconds(entry: Collective, ranks: int, ranks_per_host: int, nbytes: float) -> float:
    """Return the seconds that the bytes of a collective take at its bus bandwidth, with pipeline fill and residual."""
    assert entry.bus_bandwidth is not None
    longer = 1.0 + (entry.fill or 0.0) / max(steps(entry.kind, entry.algorithm, ranks), 1)
    each = flow_bytes(entry.kind, entry.algorithm, ranks, nbytes)
    moved = each * longer / rails(entry, ranks_per_host)
    seconds = moved / entry.bus_bandwidth.value
    if entry.residual is not None:
        seconds *= entry.residual.at(nbytes if entry.per == "buffer" else moved)
    if entry.inside is not None:
        seconds += each / entry.inside.value
    return seconds


def choose_collective(
    backend: Backend, name: str, kind: str, ranks: int, across_hosts: bool, nbytes: float = 0.0
) -> tuple[Collective, bool]:
    """Return the profile entry that prices a collective, and whether it was measured at exactly this rank count.

    Rules, in order: an entry of the scope of the group before one for any scope; the algorithm that the library
    chooses; the exact rank count, else the nearest by ratio (of two equally near, the larger). Among entries with that
    count: the entry with the fewest other counts, or, if the count is not exact, with the most; then the range of sizes
    that holds ``nbytes``, else the nearest. Profiles in which these rules leave two entries are rejected. Raises
    :class:`HardwareError` when the library has no entry of the kind.
    """
    scope = "cluster" if across_hosts else "host"
    fitting = [entry for entry in backend.collectives if entry.kind == kind and entry.scope == scope]
    fitting = fitting or [entry for entry in backend.collectives if entry.kind == kind and entry.scope == "any"]
    if not fitting:
        known = sorted({f"{entry.kind} ({entry.scope})" for entry in backend.collectives})
        raise HardwareError(
            f"backends.{name}.collectives: no '{kind}' for groups {'across hosts' if across_hosts else 'inside a host'}"
            f"{nearest(kind, [entry.kind for entry in backend.collectives])}; it has: "
            f"{', '.join(known) or 'none'}. Measure it with `simgnn calibrate`, or add it to the profile."
        )
    if kind == "allreduce":
        algorithms = {choice.algorithm(ranks, nbytes) for choice in backend.choices if choice.scope == scope}
        fitting = [entry for entry in fitting if entry.algorithm in algorithms] or fitting

    def distance(entry: Collective) -> tuple[float, int, float, float]:
        measured_at = entry.ranks or (ranks,)
        near = min(measured_at, key=lambda count: (abs(log(count / ranks)), -count))
        others = inf if entry.ranks is None else float(len(entry.ranks))
        low, high = entry.sizes or (0.0, inf)
        beside = 0.0 if low <= nbytes < high else abs(log1p(low if nbytes < low else high) - log1p(nbytes)) + TOUCHING
        return round(abs(log(near / ranks)), 9), -near, others if near == ranks else -others, beside

    chosen = min(fitting, key=distance)
    return chosen, chosen.ranks is None or ranks in chosen.ranks


def find_collective(
    machine: PlacedRanks, kind: str, backend: str, members: Sequence[int], nbytes: float = 0.0
) -> tuple[Collective, bool]:
    """Return the entry of :func:`choose_collective` for a call of ``members`` with a buffer of ``nbytes``."""
    name, library = machine.backend(backend)
    across_hosts = len({machine.hosts[rank] for rank in members}) > 1
    return choose_collective(library, name, kind, len(members), across_hosts, nbytes)


def joined(backend: Backend, chosen: Collective, exact: bool, nbytes: float) -> tuple[tuple[Collective, float], ...]:
    """Return the entries that price a call of ``nbytes``, each with the weight of its seconds.

    This is ``chosen`` alone, except at a rank count that was not measured, in the upper half of the entry's range of
    sizes. There the weight of the entry for the next range grows from 0 to 1 with the bytes, because the two agree at
    the end of the range only at measured rank counts, and further hops cost time gradually: at 2 MiB, 4 A100 take as
    long as 2; at 4 MiB, they take longer by all the hops of the larger ring.
    """
    alone = ((chosen, 1.0),)
    if exact or chosen.sizes is None or chosen.bus_bandwidth is None:
        return alone
    ends = chosen.sizes[1]
    share = min(2.0 * nbytes / ends - 1.0, 1.0)
    if share <= 0.0:
        return alone
    for entry in backend.collectives:
        same = all(getattr(entry, key) == getattr(chosen, key) for key in ("kind", "scope", "algorithm", "ranks"))
        if same and entry.sizes is not None and entry.sizes[0] == ends and entry.bus_bandwidth:
            return ((chosen, 1.0 - share), (entry, share))
    return alone


def price_call(machine: PlacedRanks, kind: str, backend: str, members: Sequence[int]) -> CallPrice:
    """Return the floor and hop of a collective, or of an ``exchange``, whose bytes are priced as messages."""
    chosen, exact = find_collective(machine, kind, backend, members)
    if chosen.hop is None:
        return CallPrice(chosen.floor.value, _longest_hop(machine, members, backend), chosen.floor.spread, not exact)
    return CallPrice(chosen.floor.value, chosen.hop.value, chosen.hop.spread or chosen.floor.spread, not exact)


def price_collective(
    machine: PlacedRanks, kind: str, backend: str, nbytes: float, members: Sequence[int], root: int | None = None
) -> CollectivePrice:
    """Return the price of a collective of ``members``. ``nbytes``: size of the buffer (all-gather: the part of one
    rank).

    ``root`` of a broadcast: the first member by default. Flows follow a ring of the members ordered by host and rank.
    """
    count = len(members)
    least = min(Counter(machine.hosts[rank] for rank in members).values(), default=1)  # ranks on the smallest host
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
        rounds = [flow_pairs(kind, chosen.algorithm, ring_order(machine, members), start)]
    each = flow_bytes(kind, chosen.algorithm, count, nbytes)
    source, spread = chosen.floor.source, chosen.floor.spread
    if chosen.spread_by_size(exact) is not None:
        spread = chosen.spread_at(nbytes, exact)
    extrapolated = not exact
    if chosen.bus_bandwidth is not None:
        extrapolated = extrapolated or bool(outside(chosen.bus_bandwidth.range, nbytes))
    if not any(rounds) or each == 0:
        return CollectivePrice(latency, (), latency, spread, extrapolated, source, floor_s=floor)
    on_links = _seconds_on_links(machine, rounds, each, backend)
    rates: list[list[float]] | None = None
    if chosen.bus_bandwidth is None:
        rates = [[price_message(machine, i, j, each, backend).rate_bytes_per_s for i, j in pairs] for pairs in rounds]
        library = [each / min(found) for found in rates]
        seconds = [max(pair) for pair in zip(on_links, library, strict=True)]
    else:
        # the library may send several messages at once over a link, so only the link itself limits it further;
        # each round takes as long as the rank that sends most in it
        busy = sum(share * bus_seconds(entry, count, least, nbytes) for entry, share in parts)
        most = [max(Counter(sender for sender, _ in pairs).values()) for pairs in rounds]
        library = [busy * sends / sum(most) for sends in most]
        measured_at = exact and chosen.ranks is not None and chosen.bus_bandwidth.source == "measured"
        # with rails each host's bytes leave it by several ways, of which the flows below show but one
        beside = [0.0 if measured_at else link_s / rails(chosen, least) for link_s in on_links]
        seconds = [max(pair) for pair in zip(beside, library, strict=True)]
        source, spread = chosen.bus_bandwidth.source, chosen.spread_at(nbytes, exact)
    flows = []
    for number, pairs in enumerate(rounds):
        # where the measured time is shorter than all bytes would take on the links, the flows carry fewer bytes
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


def _seconds_on_links(
    machine: PlacedRanks, rounds: Sequence[Sequence[tuple[int, int]]], each: float, backend: str
) -> list[float]:
    """Seconds that the equal flows of each round take on the links after a pause. The busiest link of a round decides.
    A link passes its burst at once in the first round that crosses it."""
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


def ring_order(machine: PlacedRanks, members: Sequence[int]) -> list[int]:
    """Order members by host and rank, so that the ring leaves each host only once."""
    return sorted(members, key=lambda rank: (machine.hosts[rank], rank))


def _longest_hop(machine: PlacedRanks, members: Sequence[int], backend: str) -> float:
    """Latency of the longest hop of the ring, plus the floor that the library adds to each message."""
    if len(members) < 2:
        return 0.0
    ring = ring_order(machine, members)
    latencies = [machine.route(i, j, backend).latency_s for i, j in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return machine.backend(backend)[1].message.floor.value + max(latencies)
