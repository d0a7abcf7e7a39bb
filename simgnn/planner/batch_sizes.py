"""The sizes of an experiment's mini-batches, which are sampled once and cached like partitions, or estimated."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simgnn.emit.batches.placement import RowStore
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.graph.thread_pool import usable_threads
from simgnn.hardware.profile.library import CACHE_NAME
from simgnn.memory import check_memory
from simgnn.partition.folder import cache_folder
from simgnn.partition.local.serving import Serving
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.progress import SILENT, Progress
from simgnn.sampling.batches.estimate import distinct_rows, estimated_sizes
from simgnn.sampling.batches.plan import PLAN, SamplingPlan, save_plan
from simgnn.sampling.batches.presample import presample, settings_of
from simgnn.sampling.batches.sizes import BatchSizes, PartedSizes
from simgnn.sampling.draw.branches import BRANCHES
from simgnn.sampling.draw.compared import ComparedPairs
from simgnn.sampling.draw.pairs import without_negatives
from simgnn.sampling.draw.parted import structure_bytes
from simgnn.sampling.fetches.fetch_plan import FetchPlan, plan_fetches
from simgnn.sampling.fetches.measured_sizes import batch_sizes, distinct_remote_rows, sample_requests

if TYPE_CHECKING:
    from simgnn.graph.graph import Graph
    from simgnn.partition.partition import Partition
    from simgnn.partition.store import PartitionArtifact


@dataclass(frozen=True)
class PreparedBatches:
    """All batches of a run in ``folder``, drawn by ``plan``; ``source``: digest of graph and partition; ``hosts`` [P].
    ``placement``: with a resolved number of hot rows; ``fetched_ahead``: whether ranks know which rows to send."""

    plan: SamplingPlan
    source: str
    folder: Path
    epochs: int
    hosts: tuple[int, ...]
    placement: RowStore
    fetched_ahead: bool
    sizes: BatchSizes

    def table(self) -> dict[str, str | None]:
        """Return the paths that the executor reads: ``plan``, ``folder`` (presampled batches) and ``fetches`` (which
        rows ranks gather and send; None if they request rows). Writes files that do not exist yet."""
        fetches, plan = self.fetches(), save_plan(self.plan, self.source, self.folder / PLAN)
        return {
            "plan": str(plan.resolve()),
            "folder": str(self.folder.resolve()),
            "fetches": None if fetches is None else str(fetches.path.resolve()),
            "source": self.source,
        }

    def fetches(self) -> FetchPlan | None:
        """Plan on disk which rows ranks gather and send; None if they request rows during training."""
        if not self.fetched_ahead:
            return None
        hosts, hot_rows = np.array(self.hosts, np.int64), self.placement.cached_rows
        whole_run = not self.placement.refills
        return plan_fetches(self.plan, self.source, self.folder, self.epochs, hosts, hot_rows, whole_run)


ESTIMATED = "sizes of mini-batches"
ESTIMATE_NOTE = (
    "sizes of mini-batches are estimated from degrees and the cut, not drawn: on ogbn_arxiv and coauthor_physics "
    "rows were up to 22 % off, rows pulled from other hosts from a third too few to nearly twice as many"
)


def estimate_batches(experiment: Experiment, stats: PartitionStats) -> tuple[RowStore, BatchSizes]:
    """Estimate the placement's number of hot rows and the sizes of mini-batches from the statistics of a graph.

    Raises :class:`ConfigError` for options that need the graph, or statistics that lack a table."""
    batching, placement = experiment.sampling, experiment.row_store
    assert batching is not None
    assert placement is not None
    if placement.pulls_new_rows:
        raise ConfigError(
            "placement.pull: got 'delta' with a statistics file, expected 'full': only drawn batches say which rows "
            "two epochs share; load the graph (graph.source)"
        )
    if batching.storage is not None:
        raise ConfigError(
            f"batching.storage: got '{batching.storage}' with a statistics file, expected none: batches are estimated, "
            "not drawn"
        )
    if batching.negatives_drawn:
        raise ConfigError(
            "batching.unsupervised: got true with a statistics file, expected false: positives and negatives are drawn "
            "from edges, of which the file has none; load the graph (graph.source)"
        )
    training = batching.training_of(stats)
    size, fanouts = batching.sizes_of(stats.ranks), batching.fanouts
    placement = placement.resolved(lambda: distinct_rows(stats, training, size, fanouts))
    epochs = experiment.train.epochs
    parted = batching.asks_hosts and bool(stats.hosts.any())
    hot_rows, whole_run = placement.cached_rows, not placement.refills
    return placement, estimated_sizes(stats, training, size, fanouts, epochs, hot_rows, parted, whole_run)


def check_training_vertices(graph: "Graph") -> None:
    """Raise :class:`ConfigError` for a graph without training vertices."""
    if graph.train_mask is None or not graph.train_mask.any():
        raise ConfigError(
            f"graph '{graph.name}' has no training vertices, so there is nothing to sample; give it labels "
            "(graph.classes = N for random ones) or a training mask"
        )


def sampling_plan(experiment: Experiment, graph: "Graph", partition: "Partition") -> SamplingPlan:
    """Plan which rank draws which batches of a graph with training vertices. Raises :class:`ConfigError` for a graph or
    options that cannot be trained on without labels."""
    assert experiment.sampling is not None
    assert graph.train_mask is not None
    train = np.flatnonzero(graph.train_mask)
    hosts = np.array(experiment.rank_hosts(), np.int64)
    plan = experiment.sampling.plan(graph.csr, train, partition, hosts, experiment.seed)
    return _unsupervised_plan(experiment, graph, plan) if plan.negatives else plan


def _unsupervised_plan(experiment: Experiment, graph: "Graph", plan: SamplingPlan) -> SamplingPlan:
    """Return the plan of unsupervised training with the pairs by which it is evaluated.

    Raises :class:`ConfigError` for a graph or options that it cannot train on."""
    batching, store = experiment.sampling, experiment.row_store
    assert batching is not None
    assert store is not None
    problems = []
    if lacking := sum(without_negatives(plan.csr, workers) for workers in plan.workers):
        problems.append(
            f"batching.unsupervised: {lacking:,} of {sum(map(len, plan.workers)):,} training vertices of graph "
            f"'{graph.name}' are adjacent to all others, so that they have no negatives; expected a non-neighbour of "
            "each: take them out of the training mask, or train with labels"
        )
    if plan.csr.rows >= 2**32:
        problems.append(f"batching.unsupervised: got {plan.csr.rows:,} vertices, expected fewer than 2^32")
    if batching.asks_hosts and any(experiment.rank_hosts()):
        problems.append(
            "batching.unsupervised: got true with batching.structure = 'partitioned' on several hosts, expected "
            "'replicated': hosts do not yet draw the blocks of positives and negatives for one another"
        )
    if experiment.model.hidden == ():
        problems.append(
            "model.hidden: got no width with batching.unsupervised, expected one: embeddings are as wide as the last "
            "hidden layer"
        )
    if store.learned_width:
        problems.append(
            "batching.unsupervised: got true with placement.sparse_embedding, expected false: vectors of vertices are "
            "learned from labels only"
        )
    if problems:
        raise ConfigError(problems)
    masks = graph.validation_mask, graph.test_mask
    return replace(plan, compared=ComparedPairs.of(plan.csr, masks, plan.seed, plan.negatives))


def check_batch_memory(plan: SamplingPlan, epochs: int, asks_hosts: bool) -> None:
    """Raise :class:`ConfigError` unless the batches that threads draw at once, and the table of what ranks send one
    another in each step, fit into memory. A batch counts as if no vertex were drawn twice."""
    vertices, edges, hops = plan.csr.rows, plan.csr.edges, len(plan.fanouts)
    size = max(np.ravel(plan.batch_size))
    frontier, batch_bytes = min(int(size), vertices), (hops + 1) * vertices // 4
    if plan.negatives:  # three branches; the third starts from all negatives
        frontier = min((2 + plan.negatives) * int(size), BRANCHES * vertices)
        vertices, edges = BRANCHES * vertices, BRANCHES * edges
    for fanout in plan.fanouts:
        drawn = edges if fanout < 0 else min(edges, frontier * fanout)
        frontier = min(vertices, frontier + drawn)
        batch_bytes += 12 * drawn + 16 * frontier
    tables = 8 * plan.ranks**2 * epochs * plan.steps * (2 + 2 * hops * asks_hosts)
    check_memory(
        usable_threads() * batch_bytes + tables,
        f"batching: drawing batches of {size:,} seeds on {usable_threads()} threads for {epochs:,} epochs",
        "lower batching.batch_size, the fan-outs or train.epochs, or use a machine with more memory",
        ConfigError,
    )


def prepare_batches(
    experiment: Experiment, graph: "Graph", partition: "PartitionArtifact", cache: Path | None,
    progress: Progress = SILENT,
) -> PreparedBatches:  # fmt: skip
    """Sample every batch of the run, or find them in the cache, and count the rows that they need."""
    batching, store = experiment.sampling, experiment.row_store
    assert batching is not None
    assert store is not None
    check_training_vertices(graph)
    plan = sampling_plan(experiment, graph, partition.partition)
    epochs, hosts = experiment.train.epochs, np.array(experiment.rank_hosts(), np.int64)
    if batching.storage is not None:
        folder, named_by = Path(batching.storage), "batching.storage"
    else:
        settings = json.dumps(settings_of(plan, partition.digest), sort_keys=True)
        key = hashlib.sha256(settings.encode()).hexdigest()
        folder, named_by = cache_folder(cache) / "batches" / key[:32], CACHE_NAME
    count = epochs * sum(plan.batches(worker) for worker in range(plan.ranks))
    progress.stage(f"batches: {count:,} of {epochs} epochs, fan-outs {', '.join(map(str, plan.fanouts))}")
    check_batch_memory(plan, epochs, bool(batching.asks_hosts and hosts.any()))
    with progress.counting("drawing batches", count, patient=True) as drawn:
        presample(
            plan, partition.digest, folder, epochs, option=named_by, done=lambda done, of: drawn.at(done, total=of)
        )
    placement = store.resolved(lambda: distinct_remote_rows(plan, folder, hosts, epochs))
    sizes = batch_sizes(
        plan, folder, hosts, epochs, placement.cached_rows, placement.pulls_new_rows, not placement.refills
    )
    _report_rows(sizes, epochs, progress)
    if batching.asks_hosts and hosts.any():
        requests = sample_requests(plan, folder, hosts, epochs)
        held = structure_bytes(plan.csr, plan.owner, Serving(experiment.rank_hosts()))[hosts]
        sizes = replace(sizes, parted=PartedSizes(requests, held))
    if plan.compared is not None:
        sizes = replace(sizes, compared=plan.compared.sizes(np.asarray(plan.owner), plan.ranks))
    return PreparedBatches(
        plan=plan,
        source=partition.digest,
        folder=folder,
        epochs=epochs,
        hosts=experiment.rank_hosts(),
        placement=placement,
        fetched_ahead=batching.known_ahead,
        sizes=sizes,
    )


def _report_rows(sizes: BatchSizes, epochs: int, progress: Progress) -> None:
    """Report how many rows batches need from other hosts, and how many of them caches save."""
    pulled, hits = int(sizes.pulled.rows.sum()), int(sizes.hits.sum())
    if not pulled + hits:
        return
    saved = ""
    if sizes.cache is not None:
        filled = int(sizes.cache.first.rows.sum() + sizes.cache.pulled.rows.sum())
        saved = (
            f"; caches of up to {int(sizes.cache.rows.max()):,} hot rows save {hits:,} of them "
            f"({100 * hits / (pulled + hits):.1f} %), and pull {filled:,}"
        )
    progress.stage(f"rows of other hosts: {pulled + hits:,} in {epochs} epochs{saved}")
