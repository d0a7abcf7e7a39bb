"""Writes the mini-batches of an experiment ahead of time, and reports what they and their fetches move."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import Graph
from simgnn.partition.folder import check_cache
from simgnn.planner.batch_sizes import check_batch_memory, check_training_vertices, sampling_plan
from simgnn.planner.edge_weights import check_weights
from simgnn.planner.prepare import STATISTICS, obtain_partition, read_graph, with_default_cluster
from simgnn.policies.placement.store import staged_rows
from simgnn.progress import Progress
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import Presampled, check_free, presample
from simgnn.sampling.fetches.fetch_plan import plan_fetches
from simgnn.sampling.fetches.measured_sizes import Forecast, distinct_remote_rows, forecast


def sample(
    experiment: Experiment,
    out: Path | None,
    only: Sequence[int],
    threads: int | None,
    hot_rows: Sequence[int],
    force: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Write an experiment's mini-batches to ``out`` (None: ``batching.storage``), of all ranks or those in ``only``.

    Returns a report on them as plain values. ``hot_rows``: sizes of caches to report on. Raises :class:`ConfigError`
    for an experiment without mini-batches, or for a folder of other ones unless ``force``."""
    loaded = with_default_cluster(experiment, None)
    _check(loaded, only)
    check_caches(loaded, hot_rows)
    storage = None if loaded.sampling is None else loaded.sampling.storage
    folder, named_by = (out, "--out") if out is not None else (Path(storage or ""), "batching.storage")
    if out is None and storage is None:
        raise ConfigError("--out: missing; expected the folder that the batches go to: --out DIR, or batching.storage")
    check_free(folder, named_by)
    check_cache()
    graph = read_graph(loaded, None, progress)
    check_weights(loaded, graph)
    check_training_vertices(graph)
    artifact = obtain_partition(loaded, graph, None, progress)
    plan = sampling_plan(loaded, graph, artifact.partition)
    check_batch_memory(plan, loaded.train.epochs, asks_hosts=False)
    with progress.counting("batches", sum(map(plan.batches, range(plan.ranks))) * loaded.train.epochs) as at:
        made = presample(
            plan,
            artifact.digest,
            folder,
            loaded.train.epochs,
            ranks=sorted({*only}) if only else None,
            threads=threads,
            force=force,
            option=named_by,
            done=lambda done, of: at.at(done, total=of),
        )
    report = batch_report(made, plan, loaded.rank_hosts(), graph.name, loaded.batching.label)
    return report | fetch_reports(loaded, graph, plan, made, artifact.digest, hot_rows, threads, progress)


def _check(experiment: Experiment, only: Sequence[int]) -> None:
    """Raise :class:`ConfigError` unless the mini-batches of the experiment can be drawn for the ranks ``only``."""
    problems, sampling = [], experiment.sampling
    if sampling is None:
        problems.append(
            f"batching.kind: got '{experiment.batching.label}', expected seeded or sampled: full-graph training has no "
            "batches; try --set batching.kind=seeded"
        )
    if experiment.graph.source.startswith(STATISTICS):
        problems.append(f"graph.source: got '{experiment.graph.source}', expected a graph: statistics hold no edges")
    if experiment.partition.cut != "edge-cut":
        problems.append(
            f"partition.kind: got '{experiment.partition.label}', expected an edge-cut (metis, random, block-row): "
            "sampling needs an owner of every row"
        )
    if only and max(only) >= experiment.ranks:
        problems.append(f"--only-rank: got {max(only)}, expected a rank of 0..{experiment.ranks - 1}")
    if problems or sampling is None:
        raise ConfigError(problems)
    sampling.sizes_of(experiment.ranks)  # raises where a rank would have none


def batch_report(
    made: Presampled, plan: SamplingPlan, rank_hosts: Sequence[int], graph: str, batching: str
) -> dict[str, Any]:
    """Build the report on batches as plain values. A row counts once per batch; sums are over all batches."""
    sizes = [len(vertices) for vertices in plan.workers]
    report: dict[str, Any] = {
        "graph": graph,
        "batching": batching,
        "fanouts": list(plan.fanouts),
        "batch_size": plan.told_batch_size,
        "ranks": plan.ranks,
        "epochs": made.epochs,
        "training_vertices": sizes,
        "batches_per_epoch": [plan.batches(rank) for rank in range(plan.ranks)],
        "steps_per_epoch": plan.steps,
        "parts_made": made.made,
        "parts_found": made.reused,
        "size_bytes": made.size_bytes,
        "complete": made.tally is not None,
        "digest": made.digest,
        "path": str(made.path),
    }
    tally = made.tally
    if tally is not None:
        plain, hosts = tally.as_dict(), np.array(rank_hosts, np.int64)
        report |= {
            "batches": tally.batches,
            "rows_by_hop": plain["vertices"],
            "edges_by_hop": plain["edges"],
            "duplicates_by_hop": tally.duplicates.tolist(),
            "largest_batch_rows_by_hop": plain["largest"],
            "input_rows": int(tally.vertices[-1]),
            "remote_rows": tally.remote_rows(np.arange(len(hosts))),
            "remote_rows_of_other_hosts": tally.remote_rows(hosts),
            "rows_by_rank_and_owner": plain["rows"],
            "remote_row_frequencies": plain["frequencies"],
        }
    return report


def fetch_reports(
    experiment: Experiment,
    graph: Graph,
    plan: SamplingPlan,
    made: Presampled,
    source: str,
    sizes: Sequence[int],
    threads: int | None,
    progress: Progress,
) -> dict[str, Any]:
    """Plan the fetches of the experiment's feature store (``fetch_plan``), and report what caches of ``sizes`` and of
    the experiment's own size would save (``fetches``), from the batches of all ranks; empty if neither is asked for.
    ``source``: digest of the data that batches were made from."""
    placement, batching = experiment.row_store, experiment.batching
    hosts, epochs = np.array(experiment.rank_hosts(), np.int64), experiment.train.epochs
    if not sizes and placement is None:
        return {}
    if made.tally is None:
        progress.stage("fetches are not reported until the batches of all ranks exist")
        return {}
    report: dict[str, Any] = {}
    wanted, only_new, refills, learned = set(sizes), False, True, 0
    if placement is not None:
        only_new, refills, learned = placement.pulls_new_rows, placement.refills, placement.learned_width
        rows = placement.resolved(lambda: distinct_remote_rows(plan, made.path, hosts, epochs)).cached_rows
        wanted.add(rows)
        if learned:
            progress.stage("the table of fetches leaves out the gradients of learned vectors, which ranks exchange too")
        if batching.known_ahead:
            with progress.counting("fetch plans", 2 * plan.ranks * epochs) as at:
                planned = plan_fetches(
                    plan, source, made.path, epochs, hosts, rows, not refills, threads=threads, done=at.at
                )
            report["fetch_plan"] = {
                "hot_rows": planned.hot_rows,
                "made": planned.made,
                "found": planned.reused,
                "digest": planned.digest,
                "path": str(planned.path),
            }
    with progress.counting("parts", plan.ranks * epochs) as at:
        found = forecast(plan, made.path, hosts, epochs, sorted(wanted), only_new, not refills, done=at.at)
    if len(np.unique(hosts)) == 1:
        progress.stage("one host holds all rows, so none is pulled; for several: --set cluster.hosts=N")
    width = graph.facts().feature_width + learned
    if not width:
        progress.stage("the graph has no features, so rows have no bytes; for random ones: graph.stand_in_features")
    row_bytes = width * np.dtype(experiment.train.dtype).itemsize or None
    assert experiment.schedule.mini_batches is not None, "other schedules are rejected when an experiment is loaded"
    schedule = experiment.schedule.mini_batches.fitted(epochs * plan.steps)
    fetches = fetch_report(found, row_bytes, schedule.staged_batches(plan.steps))
    return report | {"fetches": fetches | {"enough_hot_rows": None} if learned else fetches}


def check_caches(experiment: Experiment, sizes: Sequence[int]) -> None:
    """Raise :class:`ConfigError` if caches of rows that training changes are asked for."""
    placement = experiment.row_store
    if placement is None or not placement.learns_rows:
        return
    asked = (
        ("--hot-rows", max(sizes, default=0), "leave --hot-rows out"),
        ("placement.hot_rows", placement.wanted_rows, "set placement.hot_rows = 0"),
    )
    problems = [
        f"{key}: got {rows} with {placement.learns_rows}, expected 0: rows that hold "
        f"learned vectors change in every step, so none are cached; {remedy}"
        for key, rows, remedy in asked
        if rows
    ]
    if problems:
        raise ConfigError(problems)


def fetch_report(found: Forecast, row_bytes: int | None, window: int) -> dict[str, Any]:
    """Build the report on fetches as plain values. Rows are sums over ranks and epochs; ``buffer_rows`` is the largest
    of a rank.

    ``row_bytes``: of one input row, None if the graph has no features. ``window``: number of staged batches.
    ``enough_hot_rows`` (more save nothing) is None if caches keep rows of the previous epoch at no cost.
    """
    curve = found.curve
    buffers = staged_rows(found.slots, found.largest, window, 1 if found.whole_run else 2).max(axis=1)
    sizes = []
    for place, hot_rows in enumerate(found.sizes):
        pulled, cached = curve.pulled(hot_rows), int(found.cached[place].sum())
        by_pair = {"pulled": found.pulled[place], "cached": found.cached[place]}
        pairs = [
            {"rank": rank, "sender": sender, **{name: int(rows[rank, sender]) for name, rows in by_pair.items()}}
            for rank, sender in np.argwhere(sum(by_pair.values())).tolist()
        ]
        sizes.append(
            {
                "hot_rows": hot_rows,
                "hits": curve.hits(hot_rows),
                "hit_rate": curve.hits(hot_rows) / curve.remote if curve.remote else None,
                "rows_pulled": pulled,
                "rows_cached": cached,
                "bytes_per_epoch": None if row_bytes is None else (pulled + cached) * row_bytes / found.epochs,
                "steps_with_exchange": int(found.rounds[place]),
                "buffer_rows": int(buffers[place]),
                "buffer_bytes": None if row_bytes is None else int(buffers[place]) * row_bytes,
                "rows_by_rank_and_sender": pairs,
            }
        )
    return {
        "remote_rows": curve.remote,
        "hot_scope": "run" if found.whole_run else "epoch",
        "pull": "delta" if found.only_new else "full",
        "enough_hot_rows": None if found.only_new else curve.enough,
        "longest_ranking": len(curve.uses),
        "largest_batch_rows": int(found.largest.max()),
        "window": window,
        "row_bytes": row_bytes,
        "steps": found.steps,
        "epochs": found.epochs,
        "sizes": sizes,
    }
