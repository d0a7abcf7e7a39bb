"""Estimates the sizes of mini-batches from degrees alone, where a statistics file takes the place of the graph.

Vertices of equal degree and owner are equally likely in a batch. A draw hits an owner with its share of the partition's
edges, and one of its vertices in proportion to degree; a vertex is in a batch unless every draw misses it (independent
draws: Poisson). Source: the degree estimator of docs/systems/mini-batches.md, with classes of degree and owner instead
of vertices, since a statistics file has no edges. All batches of a rank are equal, including the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.partition.local.serving import Serving
from simgnn.partition.statistics.partition_stats import DEGREES, PartitionStats
from simgnn.program.sizes import IntArray, Route
from simgnn.sampling.batches.sizes import BatchSizes, CacheSizes, PartedSizes, SampleRequests
from simgnn.sampling.draw.parted import structure_size

Floats = NDArray[np.float64]
BLOCK_EDGES = "block_edges"
NEEDED_BY = "the estimate of mini-batches"


@dataclass(frozen=True)
class Expected:
    """Estimated mean batch of one rank. ``rows`` [hops + 1], ``edges`` [hops]; ``inside`` [D, P]: the probability that
    a vertex of a degree and owner is among its input rows; ``vertices`` [D, P]: number of such vertices in the graph.
    ``frontiers``, ``draws`` [hops, P]: vertices that each hop expands, and the edges that it draws, by owner."""

    rows: Floats
    edges: Floats
    inside: Floats
    vertices: Floats
    frontiers: Floats
    draws: Floats


def expected_batch(stats: PartitionStats, rank: int, seeds: float, fanouts: Sequence[int]) -> Expected:
    """Estimate the mean batch of ``rank`` with ``seeds`` seeds. Raises :class:`ConfigError` if degrees are missing."""
    table = np.asarray(stats.table(DEGREES, NEEDED_BY), dtype=np.float64)
    degree, count = table[:, 0], table[:, 1]
    owned = stats.rows / stats.rows.sum()
    vertices = count[:, None] * owned
    towards = np.asarray(stats.table(BLOCK_EDGES, NEEDED_BY), dtype=np.float64)
    towards = towards / np.maximum(towards.sum(axis=1, keepdims=True), 1.0)
    ends = (degree * count).sum() * owned
    inside = np.zeros_like(vertices)
    inside[:, rank] = min(1.0, seeds / max(stats.rows[rank], 1))
    rows = [float((vertices * inside).sum())]
    frontiers, draws = [], []
    for fanout in fanouts:
        drawn = degree if fanout < 0 else np.minimum(degree, fanout)
        frontiers.append((vertices * inside).sum(axis=0))
        by_owner = (vertices * inside * drawn[:, None]).sum(axis=0)
        hits = by_owner @ towards / np.maximum(ends, 1.0)  # of one edge end, by owner
        inside = 1.0 - (1.0 - inside) * np.exp(-degree[:, None] * hits)
        draws.append(by_owner)
        rows.append(float((vertices * inside).sum()))
    edges = np.sum(draws, axis=1)
    return Expected(np.array(rows), edges, inside, vertices, np.array(frontiers), np.array(draws))


def estimated_sizes(
    stats: PartitionStats,
    training: IntArray,
    batch_size: int | Sequence[int],
    fanouts: Sequence[int],
    epochs: int,
    hot_rows: int,
    parted: bool = False,
    whole_run: bool = False,
) -> BatchSizes:
    """Estimate the sizes of a run's batches. ``training`` int64 [P]: training vertices of each rank; ``batch_size``:
    one for all ranks, or one for each; ``hot_rows``: rows of each cache; ``whole_run``: caches are filled once, not
    every epoch; ``parted``: the graph is divided over hosts, and ranks request neighbours from other hosts."""
    ranks, steps = stats.ranks, _steps(training, batch_size)
    if steps == 0:
        raise ConfigError(f"graph '{stats.facts.name}' has no training vertices, so there is nothing to sample")
    batches = [expected_batch(stats, rank, training[rank] / steps, fanouts) for rank in range(ranks)]
    senders = _senders(stats)
    far = senders != np.arange(ranks)[:, None]
    local, hits = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    pulled, held = np.zeros((ranks, ranks), np.int64), np.zeros((ranks, ranks), np.int64)
    for rank, batch in enumerate(batches):
        kept = _hottest(batch, far[rank], hot_rows)
        needed = batch.vertices * batch.inside
        local[rank] = round(float(needed[:, ~far[rank]].sum()))
        hits[rank] = round(float((kept * batch.inside).sum()))
        missed = ((batch.vertices - kept) * batch.inside).sum(axis=0)
        for owner in np.flatnonzero(far[rank]).tolist():
            pulled[senders[rank, owner], rank] += round(float(missed[owner]))
            held[senders[rank, owner], rank] += round(float(kept[:, owner].sum()))
    rows = np.rint([batch.rows for batch in batches]).astype(np.int64).T
    local = np.maximum(local, rows[-2] - hits - pulled.sum(axis=0))
    rows[-1] = local + hits + pulled.sum(axis=0)
    edges = np.rint([batch.edges for batch in batches]).astype(np.int64).T
    shape = epochs, steps
    return BatchSizes(
        rows=_everywhere(rows, shape),
        edges=_everywhere(edges, shape),
        local=_everywhere(local, shape),
        hits=_everywhere(hits, shape),
        pulled=Route.from_turns(_everywhere(pulled, shape)),
        cache=_caches(held, shape, not whole_run) if hot_rows else None,
        training=training,
        locality={},
        parted=_parted(stats, batches, senders, shape) if parted else None,
    )


def _parted(
    stats: PartitionStats, batches: Sequence[Expected], senders: IntArray, shape: tuple[int, int]
) -> PartedSizes:
    """Estimate requests of mean batches, and bytes of each host's structure; halo vertices count for each rank."""
    ranks, hosts = stats.ranks, stats.hosts
    asked, returned = np.zeros((2, len(batches[0].edges), ranks, ranks), np.int64)
    for rank, batch in enumerate(batches):
        for owner in range(ranks):
            asked[:, rank, senders[rank, owner]] += np.rint(batch.frontiers[:, owner]).astype(np.int64)
            returned[:, rank, senders[rank, owner]] += np.rint(batch.draws[:, owner]).astype(np.int64)
    core, edges, halo = (np.zeros(int(hosts.max()) + 1, np.int64) for _ in range(3))
    np.add.at(core, hosts, stats.rows)
    np.add.at(edges, hosts, stats.edges)
    apart = hosts[stats.halo.source] != hosts[stats.halo.target]
    np.add.at(halo, hosts[stats.halo.target[apart]], stats.halo.rows[apart])
    held = structure_size(core, edges, halo, stats.facts.vertices)
    return PartedSizes(SampleRequests(_everywhere(asked, shape), _everywhere(returned, shape)), held[hosts])


def distinct_rows(
    stats: PartitionStats, training: IntArray, batch_size: int | Sequence[int], fanouts: Sequence[int]
) -> float:
    """Estimate the distinct rows of other hosts that a rank needs in an epoch: the mean over ranks."""
    steps = _steps(training, batch_size)
    far = _senders(stats) != np.arange(stats.ranks)[:, None]
    total = 0.0
    for rank in range(stats.ranks):
        batch = expected_batch(stats, rank, training[rank] / max(steps, 1), fanouts)
        ever = 1.0 - (1.0 - batch.inside) ** steps
        total += float((batch.vertices * ever)[:, far[rank]].sum())
    return total / stats.ranks


def _steps(training: IntArray, batch_size: int | Sequence[int]) -> int:
    return int(np.max(-(-training // np.array(batch_size, np.int64))))


def _senders(stats: PartitionStats) -> IntArray:
    """The rank that sends rows of owner (column) to rank (row), int64 [P, P]; the rank itself for rows of its host."""
    return Serving(tuple(stats.hosts.tolist())).servers[:, stats.hosts]


def _hottest(batch: Expected, far: NDArray[np.bool_], hot_rows: int) -> Floats:
    """Count the vertices of each degree and owner [D, P] in a cache of the most needed rows of other hosts."""
    order = np.argsort(-np.where(far, batch.inside, -1.0).ravel(), kind="stable")
    there = np.where(far, batch.vertices * (batch.inside > 0), 0.0).ravel()[order]
    before = np.cumsum(there) - there
    kept = np.zeros(len(order))
    kept[order] = np.clip(hot_rows - before, 0.0, there)
    return kept.reshape(batch.inside.shape)


def _caches(held: IntArray, shape: tuple[int, int], refilled: bool) -> CacheSizes:
    """Sizes of caches of ``held`` [sender, rank] rows; ``refilled``: all epochs but the last pull the next cache."""
    epochs, steps = shape
    pieces = np.zeros((*held.shape, epochs, steps), np.int64)
    size, more = held // steps, held % steps
    if refilled:
        pieces[:, :, : epochs - 1] = (size[..., None] + (np.arange(steps) < more[..., None]))[:, :, None]
    kept = np.zeros((len(held), *shape), np.int64)
    return CacheSizes(held.sum(axis=0), Route.from_matrix(held), Route.from_turns(pieces), kept)


def _everywhere(values: IntArray, shape: tuple[int, int]) -> IntArray:
    return np.broadcast_to(values[..., None, None], (*values.shape, *shape)).copy()
