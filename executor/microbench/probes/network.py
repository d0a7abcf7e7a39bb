"""Probes of communication: one sender, all pairs at once, collectives, barrier. Sizes in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.handlers.wire import all_to_all
from executor.microbench.timing import Probe, Run, Scope
from executor.microbench.world import World
from executor.state.context import GroupHandle

ITEM_BYTES = 4  # payload is float32, as in training
UNEVEN_FROM_BYTES = 1 << 14
UNEVENNESS = 0.7
"""Standard deviation of the logarithm of bytes a pair in an uneven exchange."""


@dataclass(frozen=True)
class Circle:
    """``ranks`` ranks that communicate with each other. ``group``: theirs, on its members; None elsewhere.

    ``scope`` "host": several circles may run a probe at once, one a host, and each is timed by itself.
    """

    ranks: int
    group: GroupHandle | None
    scope: Scope


def _items(nbytes: float) -> int:
    return max(1, int(nbytes) // ITEM_BYTES)


def send_probes(circle: Circle, sizes: Sequence[int], source: int = 0, target: int = 1) -> list[Probe]:
    """Member ``source`` of the circle sends ``bytes`` to member ``target``. ``last_s``: until they have arrived."""

    def build(nbytes: int) -> Probe:
        def make(world: World) -> Run | None:
            group = circle.group
            me = -1 if group is None else group.members.index(world.rank)
            if group is None or me not in (source, target):
                return None
            payload = torch.ones(_items(nbytes), device=world.device)
            if me == source:
                return lambda: dist.send(payload, group_dst=target, group=group.process_group)
            return lambda: dist.recv(payload, group_src=source, group=group.process_group)

        return Probe("send", "one-way", {"bytes": nbytes}, make, group=True, scope=circle.scope)

    return [build(nbytes) for nbytes in sizes]


def exchange_probes(circle: Circle, sizes: Sequence[int], seed: int) -> list[Probe]:
    """All ranks send to all others at once: evenly, and log-normally unevenly with ``bytes`` a pair on average."""
    probes = []
    for number, nbytes in enumerate(sizes):
        probes.append(_exchange_probe(circle, "even", nbytes, np.ones((circle.ranks, circle.ranks))))
        if circle.ranks > 2 and nbytes >= UNEVEN_FROM_BYTES:
            drawn = np.random.default_rng(seed + number).normal(0.0, UNEVENNESS, (circle.ranks, circle.ranks))
            probes.append(_exchange_probe(circle, "uneven", nbytes, np.exp(drawn)))
    return probes


def pair_exchange_probes(circle: Circle, sizes: Sequence[int], hosts: Sequence[int]) -> list[Probe]:
    """All ranks of one host send to all of the other, both ways at once. ``hosts``: host of each member of the circle.
    ``way_bytes``: bytes that go one way.
    """
    at = np.array(hosts)
    apart = (at[:, None] != at).astype(np.float64)
    ways = float(np.count_nonzero(apart)) / 2
    return [
        _exchange_probe(circle, "between", nbytes, apart, way_bytes=ways * _items(nbytes) * ITEM_BYTES)
        for nbytes in sizes
    ]


def _exchange_probe(circle: Circle, form: str, nbytes: int, weights: NDArray[np.float64], **more: float) -> Probe:
    """Pairs of ranks exchange ``nbytes`` on average, each according to its weight. ``rank_bytes``: the most that any
    rank sends or receives; ``total_bytes``: over all pairs."""
    weights = weights.copy()
    np.fill_diagonal(weights, 0.0)
    items = np.rint(weights / weights.sum() * np.count_nonzero(weights) * _items(nbytes)).astype(np.int64)
    sent = items * ITEM_BYTES

    def make(world: World) -> Run | None:
        group = circle.group
        if group is None:
            return None
        me = group.members.index(world.rank)
        outgoing, incoming = items[me].tolist(), items[:, me].tolist()
        payload = torch.ones(sum(outgoing), device=world.device)
        return lambda: all_to_all(payload, outgoing, incoming, group)

    sizes = {
        "bytes": nbytes,
        "rank_bytes": float(max(sent.sum(0).max(), sent.sum(1).max())),
        "total_bytes": float(sent.sum()),
        **more,
    }
    return Probe("exchange", form, sizes, make, group=True, amid_work=True, scope=circle.scope)


def collective_probes(circle: Circle, sizes: Sequence[int]) -> list[Probe]:
    """``allreduce``, ``broadcast`` (from the first member), ``allgather`` (``bytes`` a rank) and ``barrier``."""
    kinds = ("allreduce", "broadcast", "allgather")
    probes = [_collective_probe(circle, kind, nbytes) for kind in kinds for nbytes in sizes]
    return [*probes, _collective_probe(circle, "barrier", 0)]


def _collective_probe(circle: Circle, kind: str, nbytes: int) -> Probe:
    def make(world: World) -> Run | None:
        if circle.group is None:
            return None
        group = circle.group.process_group
        payload = torch.ones(_items(nbytes), device=world.device)
        if kind == "allreduce":
            return lambda: dist.all_reduce(payload, group=group)
        if kind == "broadcast":
            return lambda: dist.broadcast(payload, group=group, group_src=0)
        if kind == "allgather":
            parts = [torch.zeros_like(payload) for _ in range(circle.ranks)]
            return lambda: dist.all_gather(parts, payload, group=group)
        return lambda: dist.barrier(group=group)

    return Probe(kind, kind, {"bytes": nbytes}, make, group=True, amid_work=True, scope=circle.scope)
