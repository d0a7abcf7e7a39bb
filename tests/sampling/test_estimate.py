"""Sizes of mini-batches estimated from degrees, against batches that are drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simgnn.errors import ConfigError
from simgnn.graph.load import load_graph
from simgnn.partition.algorithms.metis import metis_owner
from simgnn.partition.local.serving import Serving
from simgnn.partition.partition import Partition
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import DEGREES, PartitionStats, degree_table
from simgnn.sampling.batches.estimate import distinct_rows, estimated_sizes, expected_batch
from simgnn.sampling.batches.plan import SamplingPlan, local_split
from simgnn.sampling.batches.presample import presample
from simgnn.sampling.batches.sizes import BatchSizes, PartedSizes
from simgnn.sampling.draw.parted import structure_bytes
from simgnn.sampling.fetches.measured_sizes import batch_sizes, distinct_remote_rows, sample_requests

RANKS, FANOUTS, SIZE, EPOCHS, HOT = 3, (6, 4), 40, 2, 150
HOSTS = np.arange(RANKS)
Both = tuple[PartitionStats, BatchSizes, BatchSizes]


@pytest.fixture(scope="module", params=["communities", "rmat"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Statistics of a generated graph, what is estimated from them, and what is drawn from the graph."""
    options = {"vertices": 4096, "edges": 30_000, "classes": 4, "feature_width": 4}
    graph = load_graph(f"synthetic:{request.param}", options=options, seed=1)
    assert graph.train_mask is not None
    partition = Partition("edge-cut", RANKS, metis_owner(graph, RANKS, 0, None, 1.03))
    stats = partition_stats(graph, partition, HOSTS, "none")
    stats = replace(stats, tables={**stats.tables, DEGREES: degree_table(graph.csr)})
    train = np.flatnonzero(graph.train_mask)
    plan = SamplingPlan(graph.csr, partition.owner, local_split(train, partition.owner, RANKS), FANOUTS, SIZE, 3)
    folder: Path = tmp_path_factory.mktemp("estimate")
    presample(plan, "s", folder, EPOCHS, threads=1)
    held = structure_bytes(graph.csr, partition.owner, Serving(tuple(range(RANKS))))
    parted = PartedSizes(sample_requests(plan, folder, HOSTS, EPOCHS), held)
    drawn = replace(batch_sizes(plan, folder, HOSTS, EPOCHS, HOT), parted=parted)
    training = np.array([len(mine) for mine in plan.workers])
    distinct = distinct_remote_rows(plan, folder, HOSTS, EPOCHS)
    assert distinct_rows(stats, training, SIZE, FANOUTS) == pytest.approx(distinct, rel=0.3)
    return stats, estimated_sizes(stats, training, SIZE, FANOUTS, EPOCHS, HOT, parted=True), drawn


def test_rows_and_edges_are_near_the_drawn_ones(both: Both) -> None:
    _, estimated, drawn = both
    for name in ("rows", "edges"):
        mean, expected = (getattr(one, name).sum(axis=(1, 2, 3)) for one in (estimated, drawn))
        np.testing.assert_allclose(mean, expected, rtol=0.25, err_msg=name)


def test_pulled_and_cached_rows_are_near_the_drawn_ones(both: Both) -> None:
    _, estimated, drawn = both
    for one, other in ((estimated.pulled.rows, drawn.pulled.rows), (estimated.hits, drawn.hits)):
        assert one.sum() == pytest.approx(other.sum(), rel=0.4)
    assert estimated.cache is not None
    assert drawn.cache is not None
    assert estimated.cache.rows.tolist() == drawn.cache.rows.tolist() == [HOT] * RANKS
    assert estimated.cache.pulled.rows.sum() == estimated.cache.first.rows.sum() == HOT * RANKS


def test_requests_are_near_the_drawn_ones(both: Both) -> None:
    """Vertices that hosts ask one another for at each hop, neighbours that come back; structures exactly."""
    _, estimated, drawn = both
    assert estimated.parted is not None
    assert drawn.parted is not None
    for name in ("asked", "returned"):
        mean, expected = (getattr(one.parted.requests, name).sum(axis=(3, 4)) for one in (estimated, drawn))
        apart = ~np.eye(RANKS, dtype=bool)
        np.testing.assert_allclose(mean.sum(axis=(1, 2)), expected.sum(axis=(1, 2)), rtol=0.25, err_msg=name)
        np.testing.assert_allclose(mean[:, apart].sum(axis=1), expected[:, apart].sum(axis=1), rtol=0.4, err_msg=name)
    np.testing.assert_array_equal(estimated.parted.structure_bytes, drawn.parted.structure_bytes)


def test_estimates_add_up(both: Both) -> None:
    stats, estimated, _ = both
    received = np.zeros(estimated.local.shape, np.int64)
    np.add.at(received, estimated.pulled.target, estimated.pulled.rows)
    np.testing.assert_array_equal(estimated.local + estimated.hits + received, estimated.rows[-1])
    assert np.all(np.diff(estimated.rows, axis=0) >= 0)
    batch = expected_batch(stats, 0, SIZE, FANOUTS)
    assert batch.rows[0] == pytest.approx(SIZE)
    assert batch.vertices.sum() == pytest.approx(stats.facts.vertices)
    assert np.all((batch.inside >= 0) & (batch.inside <= 1))
    assert batch.edges[0] <= SIZE * FANOUTS[0] + 1e-9


def test_a_larger_cache_hits_more_and_pulls_less(both: Both) -> None:
    stats, _, drawn = both
    hits, pulled = [], []
    for hot_rows in (0, 10, 100, 10**6):
        sizes = estimated_sizes(stats, drawn.training, SIZE, FANOUTS, EPOCHS, hot_rows)
        hits.append(int(sizes.hits.sum()))
        pulled.append(int(sizes.pulled.rows.sum()))
    assert hits == sorted(hits)
    assert pulled == sorted(pulled, reverse=True)
    assert (hits[0], pulled[-1]) == (0, 0)


def test_statistics_without_degrees_are_refused(both: Both) -> None:
    stats, _, drawn = both
    bare = replace(stats, tables={name: table for name, table in stats.tables.items() if name != DEGREES})
    with pytest.raises(ConfigError, match="no table 'degrees', which the estimate of mini-batches needs"):
        estimated_sizes(bare, drawn.training, SIZE, FANOUTS, EPOCHS, 0)


def test_ranks_of_one_host_pull_nothing(both: Both) -> None:
    stats, _, drawn = both
    together = replace(stats, hosts=np.zeros(RANKS, np.int64))
    sizes = estimated_sizes(together, drawn.training, SIZE, FANOUTS, EPOCHS, 0)
    assert not len(sizes.pulled.rows)
    np.testing.assert_array_equal(sizes.local, sizes.rows[-1])


def test_ranks_may_have_batches_of_unequal_sizes(both: Both) -> None:
    """All ranks take as many steps as the one with most batches."""
    stats, _, drawn = both
    each = (SIZE + 20, SIZE, SIZE)
    sizes = estimated_sizes(stats, drawn.training, each, FANOUTS, EPOCHS, 0)
    assert sizes.steps == max(-(-int(mine) // size) for mine, size in zip(drawn.training, each, strict=True))
    np.testing.assert_allclose(sizes.rows[0, :, 0, 0], drawn.training / sizes.steps, atol=0.5)
    alike = (estimated_sizes(stats, drawn.training, size, FANOUTS, EPOCHS, 0) for size in (SIZE, (SIZE,) * RANKS))
    np.testing.assert_array_equal(*(one.rows for one in alike))


def test_a_cache_for_a_whole_run_is_estimated_to_be_filled_once(both: Both) -> None:
    stats, estimated, drawn = both
    once = estimated_sizes(stats, drawn.training, SIZE, FANOUTS, EPOCHS, HOT, whole_run=True)
    assert once.cache is not None
    assert estimated.cache is not None
    assert once.cache.first.rows.sum() == estimated.cache.first.rows.sum() == HOT * RANKS
    assert not once.cache.pulled.rows.any()
    np.testing.assert_array_equal(once.hits, estimated.hits)
