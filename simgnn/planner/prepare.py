"""Prepares an experiment for a backend: its graph, partition, mini-batches and program."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from simgnn.emit.sums.own_first import CUT_EDGES
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.graph.load import load_graph
from simgnn.hardware.profile.profile import Profile
from simgnn.model.user_layer import user_shape
from simgnn.partition.statistics.halo_rows import HALO_VERTICES, ROW_EDGES
from simgnn.partition.statistics.partition_stats import DROPPED_BETWEEN, DROPPED_EDGES, PartitionStats
from simgnn.planner.chunks import check_order_rates, obtain_chunks, with_transfer_rates
from simgnn.planner.edge_weights import check_weights
from simgnn.planner.epoch_work import with_weights
from simgnn.planner.fit_partition import check_fitted, with_fitted_partition
from simgnn.planner.from_statistics import STATISTICS as STATISTICS
from simgnn.planner.from_statistics import from_statistics, numbers_of_chunks
from simgnn.planner.from_statistics import with_default_cluster as with_default_cluster
from simgnn.planner.make_plan import Planned, check_trains, plan
from simgnn.planner.memory.cache_capacity import with_capacities
from simgnn.planner.memory.chunk_number import (
    ChunkTrials,
    Needs,
    asks_for_number,
    chosen_number,
    device_room,
    graph_trials,
    in_chunks,
    in_program_order,
)
from simgnn.progress import SILENT, Progress
from simgnn.registry import reported
from simgnn.sampling.batches.sizes import load_sizes

if TYPE_CHECKING:
    from simgnn.graph.graph import Graph
    from simgnn.partition.chunks.store import ChunkArtifact
    from simgnn.partition.local.edge_cut import LocalGraph
    from simgnn.partition.store import PartitionArtifact
    from simgnn.planner.batch_sizes import PreparedBatches


KEPT_EDGES = "edges of drawn rows (expected numbers)"
"""What a plan for a statistics file estimates if halo rows are drawn: its edges are not known row by row."""
ONE_SUM = "attention over own and halo rows (one sum in place of two: the statistics do not count edges from the halo)"


@dataclass(frozen=True)
class Prepared:
    """An experiment with its cluster resolved, ready to be planned for a backend.

    ``graph`` and ``partition`` are None if the graph is a statistics file, ``batches`` if training is on the full
    graph, ``chunks`` unless rows move chunk by chunk. ``estimated``: quantities of the plan that are
    estimated, not counted."""

    experiment: Experiment
    stats: PartitionStats
    planned: Planned
    graph: "Graph | None" = None
    partition: "PartitionArtifact | None" = None
    batches: "PreparedBatches | None" = None
    chunks: "ChunkArtifact | None" = None
    estimated: tuple[str, ...] = ()

    @property
    def dropped_edges(self) -> dict[str, Any] | None:
        """The edges that each rank does without (``by_rank``), those of them that come from other hosts
        (``between_hosts``, None: one host), edges of the graph (``of``) and how the partitioner's choice ended
        (``status``, None: it made none, or not known); None for a partitioner that drops none."""
        table, between = (self.stats.tables.get(name) for name in (DROPPED_EDGES, DROPPED_BETWEEN))
        if table is None:
            return None
        status = None if self.partition is None else self.partition.status or None
        return {
            "by_rank": table.tolist(),
            "of": self.stats.facts.edges,
            "status": status,
            "between_hosts": None if between is None else between.tolist(),
        }


def prepare(
    experiment: Experiment, *, base: Path | None = None, default_cluster: tuple[int, int] | None = None,
    need_graph: bool = False, cache: Path | None = None, counted: Path | None = None, profile: Profile | None = None,
    needs: Needs = in_program_order, progress: Progress = SILENT,
) -> Prepared:  # fmt: skip
    """Load the graph, make or load its partition and its mini-batches, and plan the program.

    ``default_cluster``: hosts and ranks per host if the experiment states none (the hardware profile's). ``base``:
    folder of relative paths. ``need_graph``: reject a statistics file, which cannot be trained on. ``counted``: file of
    counted batch sizes for a statistics file, whose batches are estimated without it. ``profile``: hardware that
    partitioners which suit devices read (None: these are refused). ``needs``: says what a program holds, where the
    number of chunks follows from memory. ``progress`` is told of each step. Raises :class:`ConfigError`,
    :class:`GraphError` or :class:`ProgramError`."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.folder import check_cache

    with reported(getattr(experiment, slot) for slot in SLOTS):
        user_shape(experiment.model.kind)  # raises before minutes go into graph and partition
        source = experiment.graph.source
        if source.startswith(STATISTICS):
            if need_graph:
                why = "a statistics file can be simulated, not trained on"
                raise ConfigError(f"graph.source: got '{source}', expected a graph: {why}")
            stated = experiment
            experiment, number = _fitting_number(experiment, base, profile, needs, progress)
            experiment, stats = from_statistics(experiment, base, profile, progress)
            check_order_rates(stated.model_copy(update={"cluster": experiment.cluster}), stats.made_by, profile)
            check_fitted(experiment, profile)
            if experiment.sampling is None:
                planned = _planned(experiment, stats, profile, progress)
                planned = replace(planned, resolved={**planned.resolved, **number})
                return Prepared(experiment, stats, planned, estimated=_estimated(experiment, stats, planned))
            return _from_estimates(experiment, stats) if counted is None else _from_counted(experiment, stats, counted)
        check_cache(cache)
        sampling = experiment.sampling
        if sampling is not None and sampling.storage is not None:
            # Numba: loaded when a graph is prepared
            from simgnn.sampling.batches.presample import check_kept

            check_kept(Path(sampling.storage), "batching.storage")
        experiment = with_default_cluster(experiment, default_cluster)
        progress.stage(f"model: {experiment.model.summary}")
        if sampling is not None:
            sampling.sizes_of(experiment.ranks)  # raises before minutes go into graph and partition
        graph = read_graph(experiment, base, progress)
        check_weights(experiment, graph)
        artifact = obtain_partition(experiment, graph, cache, progress, profile)
        stats = full_graph_stats(experiment, artifact) if sampling is None else artifact.stats
        if experiment.communication.moves == "chunks":
            return _in_chunks(experiment, graph, artifact, stats, cache, profile, needs, progress)
        if sampling is None:
            return Prepared(experiment, stats, _planned(experiment, stats, profile, progress), graph, artifact)
        # Numba: loaded when a graph is prepared
        from simgnn.planner.batch_sizes import prepare_batches

        check_trains(experiment, stats)  # before minutes go into batches
        batches = prepare_batches(experiment, graph, artifact, cache, progress)
        resolved = experiment.model_copy(update={"placement": batches.placement})
        stats = replace(stats, tables={**stats.tables, **batches.sizes.locality})
        return Prepared(experiment, stats, plan(resolved, stats, batches.sizes), graph, artifact, batches)


def _in_chunks(
    experiment: Experiment, graph: "Graph", artifact: "PartitionArtifact", stats: PartitionStats, cache: Path | None,
    profile: Profile | None, needs: Needs, progress: Progress,
) -> Prepared:  # fmt: skip
    """Divide the partition into chunks, as many as memory asks for if none are stated, and plan training chunk by
    chunk."""
    timed, number = with_transfer_rates(experiment, profile), {}
    if asks_for_number(timed):
        room = device_room(timed, profile)
        found = chosen_number(graph_trials(timed, graph, artifact, stats, needs, room, progress))
        timed, number = in_chunks(timed, found), {"partition.chunks": found}
    chunks = obtain_chunks(timed, graph, artifact, cache, progress)
    stats = replace(stats, tables={**stats.tables, **chunks.tables})
    planned = _planned(experiment, stats, profile, progress)
    filled = {f"partition.{option}": value for option, value in timed.partition.filled().items()}
    planned = replace(planned, resolved={**planned.resolved, **number, **filled})
    return Prepared(experiment, stats, planned, graph, artifact, chunks=chunks)


def _fitting_number(
    experiment: Experiment, base: Path | None, profile: Profile | None, needs: Needs, progress: Progress
) -> tuple[Experiment, dict[str, Any]]:
    """Return the experiment of a statistics file with the smallest number of chunks in the file that fits, and that by
    its key path, if its number is to follow from memory."""
    if experiment.communication.moves != "chunks" or not asks_for_number(experiment):
        return experiment, {}
    known = numbers_of_chunks(experiment, base)

    def read(chunks: int) -> tuple[Experiment, PartitionStats]:
        return from_statistics(in_chunks(experiment, chunks), base, profile, progress)

    placed = experiment.model_copy(update={"cluster": read(known[0])[0].cluster})
    room = device_room(placed, profile)
    trials = ChunkTrials(placed, lambda chunks: read(chunks)[1], needs, room, known[-1], None, known, progress)
    found = chosen_number(trials)
    return in_chunks(experiment, found), {"partition.chunks": found}


def full_graph_stats(experiment: Experiment, artifact: "PartitionArtifact") -> PartitionStats:
    """Return the statistics of a partition from which training on the full graph is planned. If halo rows are drawn,
    they hold the local edges from each halo row of all ranks, rank after rank: the table ``ROW_EDGES``. If halo rows
    are cached, the vertices of these: the table ``HALO_VERTICES``."""
    stats, ranks = artifact.stats, range(artifact.ranks)
    if experiment.freshness.caches_halo:
        held = [cast("LocalGraph", artifact.local(rank)).halo for rank in ranks]
        vertices = np.concatenate([np.zeros(0, np.int64), *held])
        stats = replace(stats, tables={**stats.tables, HALO_VERTICES: vertices})
    if experiment.freshness.draws_rows:
        found = [np.zeros(0, np.int64)]
        for rank in ranks:
            csr = artifact.local(rank).csr
            found.append(np.bincount(csr.indices, minlength=csr.columns)[csr.rows :])
        stats = replace(stats, tables={**stats.tables, ROW_EDGES: np.concatenate(found)})
    return stats


def _estimated(experiment: Experiment, stats: PartitionStats, planned: Planned) -> tuple[str, ...]:
    """Return what a plan of full-graph training for a statistics file does not know exactly."""
    exchanged = experiment.communication.cut == "edge-cut" and experiment.communication.moves == "rows"
    attends = any(layer.attends for layer in planned.layers) and stats.ranks > 1 and exchanged
    return (
        *((KEPT_EDGES,) if experiment.freshness.draws_rows else ()),
        *((ONE_SUM,) if attends and CUT_EDGES not in stats.tables else ()),
    )


def _planned(
    experiment: Experiment, stats: PartitionStats, profile: Profile | None, progress: Progress
) -> Planned:  # fmt: skip
    """Plan training on the full graph. Raises :class:`ConfigError` also for options without effect on these ranks."""
    fitted, capacities = with_capacities(experiment, stats, profile)
    for option, rows in capacities.items():
        least, most = min(rows), max(rows)
        progress.stage(f"{option}: {least:,}{'' if least == most else f' to {most:,}'}, as many as fit")
    planned = plan(fitted, stats)
    if problems := experiment.codec.problems(planned.program):
        raise ConfigError(problems)
    return replace(planned, resolved={**planned.resolved, **capacities}) if capacities else planned


def read_graph(experiment: Experiment, base: Path | None = None, progress: Progress = SILENT) -> "Graph":
    """Load the experiment's graph."""
    section = experiment.graph
    progress.stage(f"graph: {section.source}")
    graph = load_graph(section.source, base=base, options=section.options(), seed=experiment.seed, progress=progress)
    for note in graph.notes:
        progress.stage(f"graph: {note}")
    return graph


def obtain_partition(
    experiment: Experiment,
    graph: "Graph",
    cache: Path | None = None,
    progress: Progress = SILENT,
    profile: Profile | None = None,
) -> "PartitionArtifact":
    """Return the experiment's partition of ``graph``, from the cache or newly made. ``profile``: as in
    :func:`prepare`."""
    return fitted_partition(experiment, graph, cache, progress, profile)[1]


def fitted_partition(
    experiment: Experiment, graph: "Graph", cache: Path | None, progress: Progress, profile: Profile | None
) -> tuple[Experiment, "PartitionArtifact"]:
    """Return what :func:`obtain_partition` returns, and before it the experiment whose partitioner has every option
    that follows from the layers, the program or the hardware. These are stored nowhere: they follow from the
    experiment."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.partition import check_ranks
    from simgnn.partition.store import partition_artifact

    check_ranks(experiment.ranks, graph)  # before the work of an epoch is counted
    progress.stage(f"partition: {experiment.partition.label} into {experiment.ranks}")
    hosts = np.asarray(experiment.rank_hosts(), dtype=np.int64)
    weighed = with_weights(experiment, graph.facts(), progress.stage)
    fitted = with_fitted_partition(weighed, graph, profile, cache, progress)
    return fitted, partition_artifact(graph, fitted.partition, hosts, experiment.seed, cache, progress)


def _from_estimates(experiment: Experiment, stats: PartitionStats) -> Prepared:
    # Numba: loaded when a graph is prepared
    from simgnn.planner.batch_sizes import ESTIMATE_NOTE, ESTIMATED, estimate_batches

    placement, sizes = estimate_batches(experiment, stats)
    resolved = experiment.model_copy(update={"placement": placement})
    stats = replace(stats, notes=(*stats.notes, ESTIMATE_NOTE))
    return Prepared(resolved, stats, plan(resolved, stats, sizes), estimated=(ESTIMATED,))


def _from_counted(experiment: Experiment, stats: PartitionStats, counted: Path) -> Prepared:
    sizes, hot_rows = load_sizes(counted)
    of, wanted = sizes.local.shape[:2], (experiment.ranks, experiment.train.epochs)
    if of != wanted:
        raise ConfigError(
            f"{counted}: sizes of batches of {of[0]} ranks in {of[1]} epochs, expected {wanted[0]} and {wanted[1]}: "
            "prepare the experiment again"
        )
    store = experiment.row_store
    assert store is not None, "mini-batches have a store of rows"
    resolved = experiment.model_copy(update={"placement": store.caching(hot_rows)})
    stats = replace(stats, tables={**stats.tables, **sizes.locality})
    return Prepared(experiment, stats, plan(resolved, stats, sizes))
