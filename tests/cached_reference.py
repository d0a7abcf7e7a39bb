"""A single-process reference for halo rows that are read from caches: plain PyTorch on dense matrices, all by autograd
over the whole graph. Which rows are cached is worked out anew, rank by rank, in plain Python; it shares dropout masks
and the parameters' names with the executor, and the sums with the reference for late rows."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from executor.kernels.dropout import factors
from simgnn.graph.graph import Graph
from simgnn.model.spec import LayerSpec
from simgnn.partition.store import PartitionArtifact
from simgnn.sampling.draw.seeds import dropout_seed, layer_key
from tests.late_reference import LateReference, _Edges, _output, _prepare


@dataclass(frozen=True)
class Caching:
    """How halo rows are cached. ``rows``: of a device, ``host_rows``: of a host, a number or a share; ``hosts``: the
    number of hosts, of equally many ranks each; ``layers``: those whose rows are cached (None: all whose rows travel in
    every epoch); others as in ``[freshness]``."""

    interval: int
    rows: int | float
    grad: str = "refresh"
    order: str = "high"
    top_k: int = -1
    layers: Collection[int] | None = None
    host_rows: int | float = 0
    global_rank: str = "overlap"
    hosts: int = 1
    mode: str = "sync"


def halo_of(artifact: PartitionArtifact) -> list[dict[int, int]]:
    """Of each rank: the vertices of its halo, and their owners."""
    found = []
    for rank in range(artifact.ranks):
        local = artifact.local(rank)
        found.append({int(v): peer for peer, part in local.receive.items() for v in local.halo[part]})
    return found


def capacity(rows: int | float, of: int) -> int:
    """A number of rows, or a share rounded down."""
    return int(np.floor(rows * of)) if isinstance(rows, float) else rows


@dataclass(frozen=True)
class Members:
    """The vertices whose rows lie on the device of each rank, and in the memory of each host."""

    devices: list[set[int]]
    memories: list[set[int]]

    def of(self, rank: int, held: Mapping[int, int]) -> set[int]:
        """The vertices of a rank's halo, ``held``, that it reads from one of the two."""
        return self.devices[rank] | (self.memories[self.host(rank)] & set(held))

    def host(self, rank: int) -> int:
        """The host of a rank."""
        return rank * len(self.memories) // len(self.devices)


def members(halo: Sequence[Mapping[int, int]], caching: Caching) -> Members:
    """Where rows are cached: those in most halos first, then those of small ids."""
    overlap = Counter(vertex for held in halo for vertex in held)
    sign, reuses = 1 if caching.order == "low" else -1, caching.interval > 1 or caching.mode == "async"
    candidates, devices = [], []
    for held in halo:
        fitting = set(held)
        if caching.top_k >= 0:
            fitting = set()
            for owner in set(held.values()):
                theirs = sorted((v for v in held if held[v] == owner), key=lambda v: (-overlap[v], v))
                fitting |= set(theirs[: caching.top_k])
        candidates.append(fitting)
        first = sorted(fitting, key=lambda v: (sign * overlap[v], v))
        devices.append(set(first[: capacity(caching.rows, len(held))] if reuses else []))
    each, memories = len(halo) // caching.hosts, []
    for host in range(caching.hosts):
        here = range(host * each, (host + 1) * each)
        fitting = set().union(*(candidates[rank] for rank in here))
        uncovered = Counter(v for rank in here for v in halo[rank] if v not in devices[rank])
        prefers = caching.global_rank == "uncovered"
        ordered = sorted(fitting, key=lambda v: (prefers and not uncovered[v], sign * overlap[v], v))
        memories.append(set(ordered[: capacity(caching.host_rows, len(set().union(*(halo[rank] for rank in here))))]))
    return Members(devices, memories)


def held_edges(graph: Graph, artifact: PartitionArtifact, cached: Sequence[Collection[int]]) -> NDArray[np.bool_]:
    """[V, V]: whether the rank of a target reads the row of a source from its cache."""
    held = np.zeros((graph.vertices, graph.vertices), np.bool_)
    for rank, vertices in enumerate(cached):
        held[np.ix_(artifact.local(rank).vertices, np.array(sorted(vertices), np.int64))] = True
    return held


class _Held(_Edges):
    """All in-edges, divided into those whose source is read from a cache, and others."""

    def __init__(self, graph: Graph, held: NDArray[np.bool_]) -> None:
        super().__init__(graph, np.zeros(graph.vertices, np.int64))
        chosen = torch.from_numpy(held)
        self.own, self.remote = self.own * ~chosen, self.own * chosen


def train_cached_reference(
    graph: Graph, layers: Sequence[LayerSpec], initial: Sequence[Mapping[str, torch.Tensor]],
    artifact: PartitionArtifact, epochs: int, settings: Mapping[str, Any], seed: int, caching: Caching,
    constant: bool,
) -> LateReference:  # fmt: skip
    """Train from ``initial`` parameters (one mapping a layer), in float64. ``constant``: halo rows of layer 1 are input
    rows, which never change."""
    halo = halo_of(artifact)
    chosen_rows = members(halo, caching)
    cached = [chosen_rows.of(rank, held) for rank, held in enumerate(halo)]
    edges = _Held(graph, held_edges(graph, artifact, cached))
    values = [{name: value.detach().double().requires_grad_() for name, value in one.items()} for one in initial]
    every = [value for one in values for value in one.values()]
    kind = torch.optim.Adam if settings["optimizer"] == "adam" else torch.optim.SGD
    optimizer = kind(every, lr=settings["learning_rate"], foreach=False)  # type: ignore[operator]
    vertices = torch.arange(graph.vertices)
    features = torch.from_numpy(np.asarray(graph.features)).double()
    chosen, labels = (torch.from_numpy(np.array(part)) for part in (graph.train_mask, graph.labels))
    kept: dict[int, torch.Tensor] = {}
    sums: dict[int, torch.Tensor] = {}
    losses, gradients = [], []
    for epoch in range(epochs):
        optimizer.zero_grad()
        fresh = epoch % caching.interval == 0
        rows, more, watched = features, torch.zeros(()).double(), {}
        for layer, parameters in zip(layers, values, strict=True):
            place = layer.index
            made = _prepare(layer, parameters, rows) if layer.has_prepare else rows
            there = made
            if (caching.layers is None or place in caching.layers) and not (place == 1 and constant):
                if fresh:
                    used = made if caching.mode == "sync" or epoch == 0 else kept[place] + made - made.detach()
                    there = watched[place] = used.clone()
                    there.retain_grad()
                    kept[place] = made.detach()
                else:
                    there = kept[place]
                    if caching.grad == "always":
                        there = there + made - made.detach()
                    elif caching.grad == "historical":
                        more = more + (made * sums[place]).sum()
            rows = _output(edges, layer, parameters, rows, made, there)
            if layer.dropped:
                key = layer_key(dropout_seed(seed, epoch), place)
                rows = rows * factors(vertices, rows.shape[1], key, layer.dropped, torch.float64)
        loss = functional.cross_entropy(rows[chosen], labels[chosen])
        (loss + more).backward()
        sums.update({place: rows.grad for place, rows in watched.items() if rows.grad is not None})
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([value.grad.reshape(-1) for value in every if value.grad is not None]))
        optimizer.step()
    with torch.no_grad():
        rows = features
        for layer, parameters in zip(layers, values, strict=True):
            here = _prepare(layer, parameters, rows) if layer.has_prepare else rows
            rows = _output(edges, layer, parameters, rows, here, here)
    return LateReference(losses, gradients, torch.cat([value.detach().reshape(-1) for value in every]), rows)
