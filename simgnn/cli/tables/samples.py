"""Prints the reports of ``simgnn sample`` on batches and fetches (:mod:`simgnn.api.samples`) as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simgnn.errors import ConfigError
from simgnn.policies.placement.store import MOST_HOT_ROWS
from simgnn.report.terminal import print_table

MOST_RANKS_SHOWN = 12
"""Most ranks whose pairs are shown in a table; --json has all pairs."""
FILLED = {
    ("epoch", "full"): "are pulled whole",
    ("epoch", "delta"): "pull what the one before lacks",
    ("run", "full"): "are filled once",
}
"""Descriptions of ``placement.hot_scope`` and ``placement.pull``."""


def hot_row_counts(text: str) -> list[int]:
    """Parse a list of numbers such as "0,1000,10000": ascending, each once. Raises :class:`ConfigError`."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isascii() and entry.isdigit() and int(entry) <= MOST_HOT_ROWS for entry in entries):
        raise ConfigError(
            f"--hot-rows: got '{text}', expected whole numbers 0..{MOST_HOT_ROWS} with commas between them, such as "
            "--hot-rows 0,1000,10000"
        )
    return sorted(set(map(int, entries)))


def print_fetches(report: Mapping[str, Any]) -> None:
    """Print the tables on fetches that exist."""
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


def print_batches(report: Mapping[str, Any]) -> None:
    """Print the tables on batches."""
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
