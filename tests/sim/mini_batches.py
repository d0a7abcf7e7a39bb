"""Made-up batches of any number of ranks, epochs and steps, and the programs of mini-batch systems on them."""

from dataclasses import replace

import numpy as np

from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import GraphFacts
from simgnn.partition.local.serving import Serving
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned, plan
from simgnn.program.sizes import Route
from simgnn.sampling.batches.sizes import BatchSizes, CacheSizes, PartedSizes, SampleRequests

WIDTH, CLASSES = 20, 5


def statistics(hosts: list[int], width: int = WIDTH) -> PartitionStats:
    """Of a partition into uneven ranks, each of which needs some rows of each other one to evaluate."""
    ranks = len(hosts)
    rows = 1000 + 10 * np.arange(ranks)
    halo = np.full((ranks, ranks), 40) + np.arange(ranks)
    np.fill_diagonal(halo, 0)
    facts = GraphFacts("made-up", int(rows.sum()), 9000, width, None, CLASSES, False, 500, 10, 10)
    return PartitionStats(facts, "edge-cut", np.array(hosts), rows, rows * 5, Route.from_matrix(halo), "made-up")


def made_sizes(
    hosts: list[int], epochs: int = 2, steps: int = 7, hops: int = 2, hot_rows: int = 0, seed: int = 0
) -> BatchSizes:
    """Random sizes that add up. The last rank has no batch in the last step; nobody pulls anything in step 2.

    With ``hot_rows`` every batch has hits, and each cache is filled in pieces of unequal numbers of rows.
    """
    rng, ranks = np.random.default_rng(seed), len(hosts)
    shape = ranks, epochs, steps
    there = np.ones(shape, np.int64)
    there[-1, :, -1] = 0
    far = (np.array(hosts)[:, None] != np.array(hosts)[None, :]).astype(np.int64)[:, :, None, None]
    pulled = rng.integers(5, 300, (ranks, *shape)) * far * there
    pulled[..., 2] = 0
    hits = rng.integers(1, 200, shape) * there if hot_rows else np.zeros(shape, np.int64)
    rows = np.zeros((hops + 1, *shape), np.int64)
    rows[0] = rng.integers(1, 40, shape) * there
    for hop in range(1, hops):
        rows[hop] = rows[hop - 1] + rng.integers(0, 100, shape) * there
    local = rows[hops - 1] + rng.integers(0, 200, shape) * there
    rows[hops] = local + hits + pulled.sum(axis=0)
    edges = np.diff(rows, axis=0) + rng.integers(0, 300, (hops, *shape)) * there
    cache = None
    if hot_rows:
        pieces = rng.integers(0, max(hot_rows // steps, 2), (ranks, *shape)) * far
        pieces[:, :, -1] = 0  # nothing follows the last epoch
        kept = rng.integers(0, 20, shape)
        kept[:, -1] = 0
        first = rng.integers(1, hot_rows, (ranks, ranks)) * far[:, :, 0, 0]
        cache = CacheSizes(np.full(ranks, hot_rows), Route.from_matrix(first), Route.from_turns(pieces), kept)
    return BatchSizes(rows, edges, local, hits, Route.from_turns(pulled), cache, np.full(ranks, 100), {})


def parted_sizes(hosts: list[int], sizes: BatchSizes, seed: int = 0) -> PartedSizes:
    """Frontiers and draws of ``sizes`` divided among the hosts at random, host 0 having most."""
    random, servers = np.random.default_rng(seed), Serving(tuple(hosts)).servers
    share = np.arange(servers.shape[1], 0, -1) / np.arange(servers.shape[1] + 1).sum()
    ranks, hops = len(hosts), len(sizes.edges)
    asked = np.zeros((hops, ranks, ranks, *sizes.local.shape[1:]), np.int64)
    returned = np.zeros_like(asked)
    for dense, whole in ((asked, sizes.rows[:-1]), (returned, sizes.edges)):
        for rank in range(ranks):
            divided = random.multinomial(whole[:, rank], share)
            for host, server in enumerate(servers[rank]):
                dense[:, rank, server] += divided[..., host]
    return PartedSizes(SampleRequests(asked, returned), np.full(ranks, 5000))


def planned(system: str, hosts: list[int], sizes: BatchSizes, *overrides: str, width: int = WIDTH) -> Planned:
    """A shipped system on made-up batches, two layers of 8 unless told otherwise."""
    hops = len(sizes.edges)
    stated = [
        f"model.layers={hops}",
        "model.hidden=8",
        f"batching.fanouts={[3] * hops}",
        *(["placement.hot_rows=0"] if sizes.cache is None else [f"placement.hot_rows={int(sizes.cache.rows[0])}"]),
        *overrides,
    ]
    experiment = load_experiment(system, stated, epochs=sizes.local.shape[1])
    return plan(experiment, statistics(hosts, width), sizes)


def constant(sizes: BatchSizes) -> BatchSizes:
    """The same, every batch of a rank as large as its first."""

    def alike(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array[..., :1, :1], array.shape).copy()

    pulled = replace(sizes.pulled, rows=alike(sizes.pulled.rows))
    return replace(
        sizes, rows=alike(sizes.rows), edges=alike(sizes.edges), local=alike(sizes.local), hits=alike(sizes.hits),
        pulled=pulled,
    )  # fmt: skip
