"""Reports of ``simgnn sample`` on batches and fetches, as plain values for JSON and as tables."""

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

MOST_RANKS_SHOWN = 12
"""Most ranks whose pairs are shown in a table; --json has all pairs."""
FILLED = {
    ("epoch", "full"): "are pulled whole",
    ("epoch", "delta"): "pull what the one before lacks",
    ("run", "full"): "are filled once",
}
"""Descriptions of ``placement.hot_scope`` and ``placement.pull``."""


def fetch_reports(
    experiment: "Experiment",
    graph: "Graph",
    plan: SamplingPlan,
    made: Presampled,
    source: str,
    sizes: Sequence[int],
    threads: int | None,
    reporter: Reporter,
) -> dict[str, Any]:
    """Plan the fetches of the experiment's feature store (``fetch_plan``), and report what caches of ``sizes`` and of
    the experiment's own size would save (``fetches``), from the batches of all ranks; empty if neither is asked for.
    ``source``: digest of the data that batches were made from."""
    placement, batching = experiment.row_store, experiment.batching
    hosts, epochs = np.array(experiment.rank_hosts(), np.int64), experiment.train.epochs
    if not sizes and placement is None:
        return {}
    if made.tally is None:
        reporter.stage("fetches are not reported until the batches of all ranks exist")
        return {}
    report: dict[str, Any] = {}
    wanted, only_new, refills, learned = set(sizes), False, True, 0
    if placement is not None:
        only_new, refills, learned = placement.pulls_new_rows, placement.refills, placement.learned_width
        rows = placement.resolved(lambda: distinct_remote_rows(plan, made.path, hosts, epochs)).cached_rows
        wanted.add(rows)
        if learned:
            reporter.stage("the table of fetches leaves out the gradients of learned vectors, which ranks exchange too")
        if batching.known_ahead:
            with reporter.counting("fetch plans", 2 * plan.ranks * epochs) as at:
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
    return report | {"fetches": fetches | {"enough_hot_rows": None} if learned else fetches}


def check_caches(experiment: "Experiment", sizes: Sequence[int]) -> None:
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


def hot_row_counts(text: str) -> list[int]:
    """Parse a list of numbers such as "0,1000,10000": ascending, each once. Raises :class:`ConfigError`."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isascii() and entry.isdigit() and int(entry) <= MOST_HOT_ROWS for entry in entries):
        raise ConfigError(
            f"--hot-rows: got '{text}', expected whole numbers 0..{MOST_HOT_ROWS} with commas between them, such as "
            "--hot-rows 0,1000,10000"
        )
    return sorted(set(map(int, entries)))


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


def print_fetches(report: Mapping[str, Any]) -> None:
    """Print the tables of :func:`fetch_reports` that exist."""
    if "fetch_plan" in report:
        plan = report["fetch_plan"]
        rows = [
            ["hot rows", f"{plan['hot_rows']:,}"],
            ["files (gather and serve, rank and epoch)", f"{plan['made']:,} made, {plan['found']:,} found"],
            ["digest", plan["digest"]],
            ["path", plan["path"]],
        ]
        print_table("", ["fetch plan", ""], rows, left=2)
    if "fetches" in report:
        _print_sizes(report["fetches"])


def _print_sizes(report: Mapping[str, Any]) -> None:
    epochs = report["epochs"]
    rows = [
        [
            f"{size['hot_rows']:,}",
            "-" if size["hit_rate"] is None else f"{100 * size['hit_rate']:.2f} %",
            f"{size['rows_pulled'] / epochs:,.1f}",
            f"{size['rows_cached'] / epochs:,.1f}",
            _mebibytes(size["bytes_per_epoch"]),
            f"{size['steps_with_exchange']:,} of {report['steps']:,}",
            f"{size['buffer_rows']:,}",
            _mebibytes(size["buffer_bytes"]),
        ]
        for size in report["sizes"]
    ]
    columns = ["hot rows", "hit rate", "rows pulled", "rows cached", "MiB", "steps with exchange", "buffer rows"]
    whole_run, filled = report["hot_scope"] == "run", FILLED[report["hot_scope"], report["pull"]]
    title = (
        f"rows pulled from other hosts in a mean epoch, all ranks; caches {filled}; buffers of the fullest rank: "
        f"{'a cache' if whole_run else 'two caches'} and {report['window']} batches"
    )
    print_table(title, [*columns, "buffer MiB"], rows, left=0)
    if report["enough_hot_rows"] is not None:
        print(
            f"{report['enough_hot_rows']:,} hot rows are enough: the others of {report['longest_ranking']:,} are "
            f"needed by one batch of {'a run' if whole_run else 'an epoch'} only."
        )


def _mebibytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 2**20:,.2f}"


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


def print_batches(report: Mapping[str, Any]) -> None:
    """Print the tables of a :func:`batch_report`."""
    sizes = [report["batch_size"]] if isinstance(report["batch_size"], int) else report["batch_size"]
    rows = [
        ["batching", f"{report['batching']}, fan-outs {_list(report['fanouts'])}, batch size {_range(sizes)}"],
        ["training vertices of a rank", _range(report["training_vertices"])],
        ["batches of a rank and epoch", _range(report["batches_per_epoch"])],
        ["parts (rank and epoch)", f"{report['parts_made']:,} made, {report['parts_found']:,} found"],
        ["size on disk", f"{report['size_bytes'] / 2**20:,.1f} MiB"],
    ]
    if report["complete"]:
        remote, inputs = report["remote_rows"], max(report["input_rows"], 1)
        rows += [
            ["batches", f"{report['batches']:,}"],
            ["input rows", f"{report['input_rows']:,}"],
            ["remote rows", f"{remote:,} ({100 * remote / inputs:.1f} %)"],
            ["remote rows, of other hosts", f"{report['remote_rows_of_other_hosts']:,}"],
        ]
    rows += [["digest", report["digest"] or "none yet: parts of other ranks are missing"], ["path", report["path"]]]
    print_table("", [f"samples of {report['graph']}", ""], rows, left=2)
    if report["complete"]:
        _print_hops(report)
        ranks = range(report["ranks"])
        if len(ranks) <= MOST_RANKS_SHOWN:
            found = {(rank, owner): number for rank, owner, number in report["rows_by_rank_and_owner"]}
            rows = [[str(rank), *(f"{found.get((rank, owner), 0):,}" for owner in ranks)] for rank in ranks]
            print_table("input rows, by rank and owner", ["rank", *(f"of {owner}" for owner in ranks)], rows)
        if report["remote_row_frequencies"]:
            _print_frequencies(report["remote_row_frequencies"])


def _print_hops(report: Mapping[str, Any]) -> None:
    batches = max(report["batches"], 1)
    rows = []
    for hop, fanout in enumerate(report["fanouts"], start=1):
        edges, duplicates = report["edges_by_hop"][hop - 1], report["duplicates_by_hop"][hop - 1]
        sums = (report["rows_by_hop"][hop - 1], edges, duplicates, report["rows_by_hop"][hop])
        share = f"{100 * duplicates / max(edges, 1):.1f} %"
        cells = [f"{total / batches:,.1f}" for total in sums]
        rows.append([str(hop), _list([fanout]), *cells, share, f"{report['largest_batch_rows_by_hop'][hop]:,}"])
    columns = ["hop", "fan-out", "rows before", "edges", "duplicates", "rows after", "duplicates / edges", "most rows"]
    print_table("means of a batch, by hop", columns, rows)


def _print_frequencies(frequencies: Sequence[Sequence[int]]) -> None:
    times, held = np.array(frequencies, np.int64).T
    needed = times * held
    octave = np.ceil(np.log2(times)).astype(np.int64)  # 1, 2, 3-4, 5-8, ...
    rows = []
    for step in np.unique(octave)[::-1].tolist():
        most, least = 1 << step, (1 << (step - 1)) + 1 if step else 1
        share = needed[octave >= step].sum() / needed.sum()
        name = str(most) if least >= most else f"{least}-{most}"
        rows.append([name, f"{held[octave == step].sum():,}", f"{100 * share:.1f} %"])
    columns = ["batches", "rows", "share of all remote rows sent, with those above"]
    print_table("remote rows, by the batches of a rank and epoch that need them", columns, rows)


def _list(numbers: Sequence[int]) -> str:
    return "-".join("all" if number < 0 else str(number) for number in numbers)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
