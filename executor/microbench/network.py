"""Probes of communication: one sender, all pairs at once, collectives, barrier. Sizes in bytes."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from executor.handlers.context import GroupHandle
from executor.handlers.wire import all_to_all
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World

ITEM_BYTES = 4  # payload is float32, as in training


def _items(nbytes: float) -> int:
    return max(1, int(nbytes) // ITEM_BYTES)


def send_probe(nbytes: int) -> Probe:
    """Rank 0 sends ``bytes`` to rank 1; nobody else has work. ``last_s``: until rank 1 has them."""

    def make(world: World) -> Run | None:
        payload = torch.ones(_items(nbytes), device=world.device)
        if world.rank == 0:
            return lambda: dist.send(payload, 1)
        return (lambda: dist.recv(payload, 0)) if world.rank == 1 else None

    return Probe("send", "one-way", {"bytes": nbytes}, make, group=True)


def exchange_probe(nbytes: int, ranks: int, spread: float, seed: int) -> Probe:
    """All ranks send to all others at once: ``bytes`` a pair on average, ``spread`` > 0: log-normally uneven.

    ``rank_bytes``: the most that any rank sends or receives; ``total_bytes``: over all pairs.
    """
    weights = (
        np.exp(np.random.default_rng(seed).normal(0.0, spread, (ranks, ranks))) if spread else np.ones((ranks,) * 2)
    )
    np.fill_diagonal(weights, 0.0)
    items = np.rint(weights / weights.sum() * ranks * (ranks - 1) * _items(nbytes)).astype(np.int64)
    sent = items * ITEM_BYTES

    def make(world: World) -> Run:
        outgoing, incoming = items[world.rank].tolist(), items[:, world.rank].tolist()
        payload = torch.ones(sum(outgoing), device=world.device)
        group = GroupHandle(dist.group.WORLD, tuple(range(world.ranks)), world.device)
        return lambda: all_to_all(payload, outgoing, incoming, group)

    sizes = {
        "bytes": nbytes,
        "rank_bytes": float(max(sent.sum(0).max(), sent.sum(1).max())),
        "total_bytes": float(sent.sum()),
    }
    return Probe("exchange", "uneven" if spread else "even", sizes, make, group=True, after_work=True)


def collective_probe(kind: str, nbytes: int) -> Probe:
    """``allreduce``, ``broadcast`` (from rank 0), ``allgather`` (``bytes`` a rank) or ``barrier``."""

    def make(world: World) -> Run:
        payload = torch.ones(_items(nbytes), device=world.device)
        if kind == "allreduce":
            return lambda: dist.all_reduce(payload)
        if kind == "broadcast":
            return lambda: dist.broadcast(payload, 0)
        if kind == "allgather":
            parts = [torch.zeros_like(payload) for _ in range(world.ranks)]
            return lambda: dist.all_gather(parts, payload)
        return lambda: dist.barrier()

    return Probe(kind, kind, {"bytes": nbytes}, make, group=True, after_work=True)


def network_probes(ranks: int, sizes: Sequence[int], collective_sizes: Sequence[int], seed: int) -> list[Probe]:
    """All communication probes of a group; none for a single rank."""
    if ranks < 2:
        return []
    probes = [send_probe(nbytes) for nbytes in sizes]
    for number, nbytes in enumerate(sizes):
        probes.append(exchange_probe(nbytes, ranks, 0.0, seed))
        if ranks > 2 and nbytes >= 1 << 14:
            probes.append(exchange_probe(nbytes, ranks, 0.7, seed + number))
    for kind in ("allreduce", "broadcast", "allgather"):
        probes += [collective_probe(kind, nbytes) for nbytes in collective_sizes]
    probes.append(collective_probe("barrier", 0))
    return probes
