"""Time of collectives: steps and bytes by algorithm, a floor, and a measured residual (Thakur et al., IJHPCA 2005, for
the steps; bus bandwidth as the NCCL tests define it)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log, log1p, log2

from simgnn.errors import HardwareError
from simgnn.hardware.profile.libraries import Backend, Collective
from simgnn.spelling import nearest

TOUCHING = 1e-12
"""A regime that ends just where a size lies is farther from it than the one that begins there."""

FIRST_ROUND = 0.5
"""By how much of a round the first takes longer than those after it, whose hops hide in part behind its bytes: a chunk
goes as two slices, and nothing moves on before the first of them has arrived."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes from one rank to another. ``rate_bytes_per_s``: the most that it reaches when nothing else flows."""

    source: int
    target: int
    nbytes: float
    rate_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Relay:
    """How a collective goes whose members send on only whole buffers, each by itself: a member pays ``call_s`` when it
    comes; a message begins ``hop_s`` after its sender has the buffer and its receiver is there; a member leaves with
    its last message. ``rounds``: a member has received in an earlier round than it sends in."""

    call_s: float
    hop_s: float
    rounds: tuple[tuple[Flow, ...], ...]


@dataclass(frozen=True, slots=True)
class CollectivePrice:
    """First ``latency_s``, of which ``floor_s`` belongs to no hop, paid before anything flows; then all ``flows`` at
    once, as ``steps`` messages one after the other. Alone, all of it takes ``seconds_alone``; other traffic on the
    flows' links makes it longer.

    With a ``relay`` members come and go one by one instead, and ``latency_s`` is paid by the last on the way. Then
    ``seconds_alone`` is that of rounds of which each is over before the next begins, as inside a host they are; across
    hosts a message that begins earlier may hide behind others, or hold them up, which only a simulation tells.
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


def steps(kind: str, algorithm: str, ranks: int) -> int:
    """Messages that follow one another: hops on the critical path."""
    if ranks < 2:
        return 0
    tree = ceil(log2(ranks))
    if kind == "exchange":
        return ranks - 1
    if kind == "barrier":
        return tree if algorithm == "tree" else 2 * (ranks - 1)
    if kind == "allreduce":
        return 2 * tree if algorithm == "tree" else 2 * (ranks - 1)
    return tree if algorithm in ("tree", "binomial") else ranks - 1


def bytes_moved(kind: str, ranks: int, nbytes: float) -> float:
    """Bytes that pass each rank of a ring; ``nbytes``: the buffer (all-gather: one rank's part)."""
    if ranks < 2:
        return 0.0
    shares = {"allreduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "allgather": ranks - 1.0}
    return shares.get(kind, 0.0) * nbytes


def flow_pairs(kind: str, algorithm: str, members: Sequence[int], root: int) -> list[tuple[int, int]]:
    """Who sends to whom while the bytes stream: neighbours on the ring, parents and children of the binary tree.

    ``members`` are in ring order. A pipelined algorithm keeps all of them busy at once, so they are one set of flows.
    An all-gather has no tree; its steps may be those of one (recursive doubling), its bytes go round the ring.
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
    """Who sends to whom in a broadcast that sends on only what has arrived whole: a round holds what can start when the
    one before is over.

    ``ranks`` as the library numbers them, ascending. Counted from the root, number v has the buffer from v without its
    highest bit (Gloo, ``gloo/broadcast.cc``), so that it comes in round popcount(v). Wherever ranks are placed, the
    same ones send to one another: many of them may cross the same link.
    """
    count = len(ranks)
    start = ranks.index(root)
    order = [*ranks[start:], *ranks[:start]]
    rounds: list[list[tuple[int, int]]] = [[] for _ in range(steps("broadcast", "binomial", count))]
    for child in range(1, count):
        parent = child - (1 << (child.bit_length() - 1))
        rounds[child.bit_count() - 1].append((order[parent], order[child]))
    return [pairs for pairs in rounds if pairs]


def divided(seconds: float, rounds: Sequence[Sequence[tuple[int, int]]]) -> list[float]:
    """A library's own seconds, round by round: each takes as long as the rank that sends most in it has to send."""
    most = [max(Counter(source for source, _ in pairs).values()) for pairs in rounds]
    return [seconds * count / sum(most) for count in most]


def flow_bytes(kind: str, algorithm: str, ranks: int, nbytes: float) -> float:
    """Bytes that one flow of :func:`flow_pairs` carries."""
    both_ways = kind == "allreduce" and algorithm == "tree"
    return nbytes if both_ways else bytes_moved(kind, ranks, nbytes)


def hops(entry: Collective, ranks: int, nbytes: float) -> float:
    """Messages that follow one another in one call: the steps of the algorithm, in chunks those of every round."""
    count = steps(entry.kind, entry.algorithm, ranks)
    if entry.chunk is None or ranks < 2:
        return count
    return (count + 1) * (max(ceil(nbytes / ranks / entry.chunk), 1) + FIRST_ROUND)


def rails(entry: Collective, ranks_per_host: int) -> int:
    """Rails of a group whose smallest host has so many of its ranks."""
    return 1 if entry.ranks_per_rail is None else ceil(ranks_per_host / entry.ranks_per_rail)


def bus_seconds(entry: Collective, ranks: int, ranks_per_host: int, nbytes: float) -> float:
    """Seconds in which the bytes of a collective flow, by its own bus bandwidth and residual."""
    assert entry.bus_bandwidth is not None
    passed = _passed(entry, ranks, ranks_per_host, nbytes)
    seconds = passed / entry.bus_bandwidth.value
    if entry.residual is not None:
        seconds *= entry.residual.at(nbytes if entry.per == "buffer" else passed)
    if entry.inside is not None:
        seconds += flow_bytes(entry.kind, entry.algorithm, ranks, nbytes) / entry.inside.value
    return seconds


def _passed(entry: Collective, ranks: int, ranks_per_host: int, nbytes: float) -> float:
    """Bytes that one rail (without rails: one rank) moves, those included that only fill the pipeline."""
    longer = 1.0 + (entry.fill or 0.0) / max(steps(entry.kind, entry.algorithm, ranks), 1)
    return flow_bytes(entry.kind, entry.algorithm, ranks, nbytes) * longer / rails(entry, ranks_per_host)


def choose_collective(
    backend: Backend, name: str, kind: str, ranks: int, across_hosts: bool, nbytes: float = 0.0
) -> tuple[Collective, bool]:
    """The description of a collective for a group, and whether it was measured at just this many ranks.

    Rule: one for the group's own scope before one for any; of several algorithms the one that the library picks; then
    the exact rank count, else the nearest by ratio (of two equally near the larger); of several at that rank count the
    one measured at fewest others, for a rank count that was not measured the one measured at most; of several regimes
    of size the one that holds ``nbytes``, else the nearest. Of what this leaves no backend holds two. Raises
    :class:`HardwareError` when there is none.
    """
    scope = "cluster" if across_hosts else "host"
    fitting = [entry for entry in backend.collectives if entry.kind == kind and entry.scope == scope]
    fitting = fitting or [entry for entry in backend.collectives if entry.kind == kind and entry.scope == "any"]
    if not fitting:
        known = sorted({f"{entry.kind} ({entry.scope})" for entry in backend.collectives})
        raise HardwareError(
            f"backends.{name}.collectives: no '{kind}' for groups {'across hosts' if across_hosts else 'inside a host'}"
            f"{nearest(kind, [entry.kind for entry in backend.collectives])}; it has: "
            f"{', '.join(known) or 'none'}; measure it with `simgnn calibrate` or add it"
        )
    if kind == "allreduce":
        taken = {choice.algorithm(ranks, nbytes) for choice in backend.choices if choice.scope == scope}
        fitting = [entry for entry in fitting if entry.algorithm in taken] or fitting

    def distance(entry: Collective) -> tuple[float, int, float, float]:
        measured_at = entry.ranks or (ranks,)
        near = min(measured_at, key=lambda count: (abs(log(count / ranks)), -count))
        others = inf if entry.ranks is None else float(len(entry.ranks))
        low, high = entry.sizes or (0.0, inf)
        beside = 0.0 if low <= nbytes < high else abs(log1p(low if nbytes < low else high) - log1p(nbytes)) + TOUCHING
        return round(abs(log(near / ranks)), 9), -near, others if near == ranks else -others, beside

    chosen = min(fitting, key=distance)
    return chosen, chosen.ranks is None or ranks in chosen.ranks


def joined(backend: Backend, chosen: Collective, exact: bool, nbytes: float) -> tuple[tuple[Collective, float], ...]:
    """What a call of ``nbytes`` is priced by, and the share of each in its seconds: ``chosen`` alone, or, at a rank
    count that was not measured, in the last octave of its regime also the next, more of it as bytes grow.

    Regimes were measured to meet at the tables' own rank counts. Hops of the next one come in with bytes, not at once:
    4 A100 take as long as 2 at 2 MiB, and all of the further hops of a larger ring longer at 4 MiB.
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
