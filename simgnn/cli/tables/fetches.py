"""What ``simgnn sample`` tells of fetches: how much a cache of hot rows saves, what it costs, what was planned."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.policies.placement.store import MOST_HOT_ROWS, staged_rows
from simgnn.report.terminal import print_table
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import Presampled
from simgnn.sampling.fetches.fetch_plan import plan_fetches
from simgnn.sampling.fetches.measured_sizes import Forecast, distinct_remote_rows, forecast

if TYPE_CHECKING:
    from simgnn.experiment.schema import Experiment
    from simgnn.graph.graph import Graph

FILLED = {
    ("epoch", "full"): "are pulled whole",
    ("epoch", "delta"): "pull what the one before lacks",
    ("run", "full"): "are filled once",
}
"""``placement.hot_scope`` and ``placement.pull`` in words."""


def tell_fetches(
    experiment: "Experiment",
    graph: "Graph",
    plan: SamplingPlan,
    made: Presampled,
    source: str,
    sizes: Sequence[int],
    threads: int | None,
    reporter: Reporter,
) -> dict[str, Any]:
    """Plan what the experiment's store fetches (``fetch_plan``), and what caches of ``sizes`` and of the experiment's
    would save (``fetches``), from the batches of all ranks; empty where nobody asked. ``source``: the digest that they
    were made with."""
    placement, batching = experiment.row_store, experiment.batching
    hosts, epochs = np.array(experiment.rank_hosts(), np.int64), experiment.train.epochs
    if not sizes and placement is None:
        return {}
    if made.tally is None:
        reporter.stage("of fetches there is nothing to tell until the batches of all ranks are there")
        return {}
    wanted, only_new, refills = set(sizes), False, True
    learned = 0 if placement is None else placement.learned_width
    if learned:
        reporter.stage("gradients of learned vectors, which ranks push to one another, are not in the table of fetches")
    if placement is not None:
        only_new, refills = placement.pulls_new_rows, placement.refills
        placement = placement.resolved(lambda: distinct_remote_rows(plan, made.path, hosts, epochs))
        wanted.add(placement.cached_rows)
    told: dict[str, Any] = {}
    if placement is not None and batching.known_ahead:
        rows = placement.cached_rows
        with reporter.counting("fetch plans", 2 * plan.ranks * epochs) as at:
            planned = plan_fetches(
                plan, source, made.path, epochs, hosts, rows, not refills, threads=threads, done=at.at
            )
        told["fetch_plan"] = {
            "hot_rows": planned.hot_rows,
            "made": planned.made,
            "found": planned.reused,
            "digest": planned.digest,
            "path": str(planned.path),
        }
    with reporter.counting("parts", plan.ranks * epochs) as at:
        found = forecast(plan, made.path, hosts, epochs, sorted(wanted), only_new, not refills, done=at.at)
    if len(np.unique(hosts)) == 1:
        reporter.stage("one host holds all rows, so none is pulled; for several: --set cluster.hosts=N")
    width = graph.facts().feature_width + learned
    if not width:
        reporter.stage("the graph has no features, so rows have no bytes; for random ones: graph.stand_in_features")
    row_bytes = width * np.dtype(experiment.train.dtype).itemsize or None
    assert experiment.schedule.mini_batches is not None, "other schedules are rejected when an experiment is loaded"
    schedule = experiment.schedule.mini_batches.fitted(epochs * plan.steps)
    fetches = fetch_report(found, row_bytes, schedule.staged_batches(plan.steps))
    return told | {"fetches": fetches | {"enough_hot_rows": None} if learned else fetches}


def check_caches(experiment: "Experiment", sizes: Sequence[int]) -> None:
    """Raise :class:`ConfigError` for caches of rows that training changes, which no run may have."""
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


def hot_row_counts(text: str) -> list[int]:
    """The numbers of a list such as "0,1000,10000", ascending, each once. Raises :class:`ConfigError`."""
    found = set()
    for entry in text.split(","):
        stripped = entry.strip()
        if not (stripped.isascii() and stripped.isdigit() and int(stripped) <= MOST_HOT_ROWS):
            raise ConfigError(
                f"--hot-rows: got '{text}', expected whole numbers 0..{MOST_HOT_ROWS} with commas between them, such "
                "as --hot-rows 0,1000,10000"
            )
        found.add(int(stripped))
    return sorted(found)


def fetch_report(found: Forecast, row_bytes: int | None, window: int) -> dict[str, Any]:
    """Plain values. ``row_bytes``: of one input row (None: the graph has no features, so nobody knows); ``window``:
    batches with a staging buffer. Rows are sums over ranks and epochs; ``buffer_rows`` are the fullest rank's. No
    number of hot rows is ``enough`` where caches keep rows of the one before, which costs nothing.
    """
    curve = found.curve
    buffers = staged_rows(found.slots, found.largest, window, 1 if found.whole_run else 2).max(axis=1)
    sizes = []
    for place, hot_rows in enumerate(found.sizes):
        pulled, cached = curve.pulled(hot_rows), int(found.cached[place].sum())
        pairs = [
            {
                "rank": rank,
                "sender": sender,
                "pulled": int(found.pulled[place, rank, sender]),
                "cached": int(found.cached[place, rank, sender]),
            }
            for rank, sender in np.argwhere(found.pulled[place] + found.cached[place]).tolist()
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


def print_fetches(told: Mapping[str, Any]) -> None:
    """Tables of what :func:`tell_fetches` tells; nothing where it tells nothing."""
    if "fetch_plan" in told:
        plan = told["fetch_plan"]
        rows = [
            ["hot rows", f"{plan['hot_rows']:,}"],
            ["files (gather and serve, rank and epoch)", f"{plan['made']:,} made, {plan['found']:,} found"],
            ["digest", plan["digest"]],
            ["path", plan["path"]],
        ]
        print_table("", ["fetch plan", ""], rows, left=2)
    if "fetches" in told:
        _print_sizes(told["fetches"])


def _print_sizes(told: Mapping[str, Any]) -> None:
    epochs = told["epochs"]
    rows = []
    for size in told["sizes"]:
        rate = "-" if size["hit_rate"] is None else f"{100 * size['hit_rate']:.2f} %"
        means = [size["rows_pulled"] / epochs, size["rows_cached"] / epochs]
        rows.append(
            [
                f"{size['hot_rows']:,}",
                rate,
                *(f"{mean:,.1f}" for mean in means),
                _mebibytes(size["bytes_per_epoch"]),
                f"{size['steps_with_exchange']:,} of {told['steps']:,}",
                f"{size['buffer_rows']:,}",
                _mebibytes(size["buffer_bytes"]),
            ]
        )
    columns = [
        *("hot rows", "hit rate", "rows pulled", "rows cached", "MiB", "steps with exchange"),
        *("buffer rows", "buffer MiB"),
    ]
    filled, caches = FILLED[told["hot_scope"], told["pull"]], {"epoch": "two caches", "run": "a cache"}
    print_table(
        f"rows pulled from other hosts in a mean epoch, all ranks; caches {filled}; buffers of the fullest rank: "
        f"{caches[told['hot_scope']]} and {told['window']} batches",
        columns,
        rows,
        left=0,
    )
    if told["enough_hot_rows"] is None:
        return
    print(
        f"{told['enough_hot_rows']:,} hot rows are enough: the others of {told['longest_ranking']:,} are needed by one "
        f"batch of {'a run' if told['hot_scope'] == 'run' else 'an epoch'} only."
    )


def _mebibytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 2**20:,.2f}"
