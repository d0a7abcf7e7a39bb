"""Probes of communication: one sender, all pairs at once, collectives, barrier. Sizes in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.handlers.wire import all_to_all
from executor.microbench.timing import Make, Probe, Run, Scope
from executor.microbench.world import World
from executor.state.context import GroupHandle

ITEM_BYTES = 4  # payload is float32, as in training
UNEVEN_FROM_BYTES = 1 << 14
UNEVENNESS = 0.7
"""Standard deviation of the logarithm of bytes per pair in an uneven exchange."""


def _items(nbytes: float) -> int:
    return max(1, int(nbytes) // ITEM_BYTES)


@dataclass(frozen=True)
class Circle:
    """Some ranks that communicate, ``ranks`` of them, and its probes. ``group``: their process group; None on others.

    ``scope`` "host": each host has its own circle; all run a probe at once, and each is timed by itself.
    """

    ranks: int
    group: GroupHandle | None
    scope: Scope

    def send_probes(self, sizes: Sequence[int], source: int = 0, target: int = 1) -> list[Probe]:
        """Return probes in which member ``source`` sends ``bytes`` to member ``target``."""

        def make(nbytes: int, world: World) -> Run | None:
            group = self.group
            me = -1 if group is None else group.members.index(world.rank)
            if group is None or me not in (source, target):
                return None
            payload = torch.ones(_items(nbytes), device=world.device)
            if me == source:
                return lambda: dist.send(payload, group_dst=target, group=group.process_group)
            return lambda: dist.recv(payload, group_src=source, group=group.process_group)

        return [self._probe("send", "one-way", {"bytes": size}, partial(make, size), amid_work=False) for size in sizes]

    def exchange_probes(self, sizes: Sequence[int], seed: int) -> list[Probe]:
        """Return probes in which all ranks send to all others at once: equal sizes, or log-normal ones of that mean."""
        probes = []
        for number, nbytes in enumerate(sizes):
            probes.append(self._exchange("even", nbytes, np.ones((self.ranks, self.ranks))))
            if self.ranks > 2 and nbytes >= UNEVEN_FROM_BYTES:
                drawn = np.random.default_rng(seed + number).normal(0.0, UNEVENNESS, (self.ranks, self.ranks))
                probes.append(self._exchange("uneven", nbytes, np.exp(drawn)))
        return probes

    def pair_exchange_probes(self, sizes: Sequence[int], hosts: Sequence[int]) -> list[Probe]:
        """Return probes in which all ranks of each of two hosts send to all ranks of the other at once. ``hosts``: host
        of each member. Their size ``way_bytes``: bytes in one direction."""
        at = np.array(hosts)
        apart = (at[:, None] != at).astype(np.float64)
        ways = float(np.count_nonzero(apart)) / 2
        return [self._exchange("between", size, apart, way_bytes=ways * _items(size) * ITEM_BYTES) for size in sizes]

    def collective_probes(self, sizes: Sequence[int]) -> list[Probe]:
        """``allreduce``, ``broadcast`` (from the first member), ``allgather`` (``bytes`` a rank) and ``barrier``."""

        def make(kind: str, nbytes: int, world: World) -> Run | None:
            if self.group is None:
                return None
            group = self.group.process_group
            payload = torch.ones(_items(nbytes), device=world.device)
            if kind == "allreduce":
                return lambda: dist.all_reduce(payload, group=group)
            if kind == "broadcast":
                return lambda: dist.broadcast(payload, group=group, group_src=0)
            if kind == "allgather":
                parts = [torch.zeros_like(payload) for _ in range(self.ranks)]
                return lambda: dist.all_gather(parts, payload, group=group)
            return lambda: dist.barrier(group=group)

        calls = [(kind, size) for kind in ("allreduce", "broadcast", "allgather") for size in sizes] + [("barrier", 0)]
        return [self._probe(kind, kind, {"bytes": size}, partial(make, kind, size)) for kind, size in calls]

    def _exchange(self, form: str, nbytes: int, weights: NDArray[np.float64], **more: float) -> Probe:
        """Return a probe in which pairs of ranks exchange ``nbytes`` on average, as ``weights`` divide it. Its sizes:
        ``rank_bytes``, the most that any rank sends or receives; ``total_bytes``, of all pairs."""
        weights = weights.copy()
        np.fill_diagonal(weights, 0.0)
        items = np.rint(weights / weights.sum() * np.count_nonzero(weights) * _items(nbytes)).astype(np.int64)
        sent = items * ITEM_BYTES

        def make(world: World) -> Run | None:
            group = self.group
            if group is None:
                return None
            me = group.members.index(world.rank)
            outgoing, incoming = items[me].tolist(), items[:, me].tolist()
            payload = torch.ones(sum(outgoing), device=world.device)
            return lambda: all_to_all(payload, outgoing, incoming, group)

        most = float(max(sent.sum(0).max(), sent.sum(1).max()))
        sizes = {"bytes": nbytes, "rank_bytes": most, "total_bytes": float(sent.sum()), **more}
        return self._probe("exchange", form, sizes, make)

    def _probe(self, primitive: str, form: str, sizes: dict[str, float], make: Make, amid_work: bool = True) -> Probe:
        return Probe(primitive, form, sizes, make, group=True, amid_work=amid_work, scope=self.scope)
