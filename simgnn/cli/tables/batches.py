"""What ``simgnn sample`` tells, for machines and as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simgnn.report.terminal import print_table
from simgnn.sampling.batches.epoch_file import Tally
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import Presampled

MOST_RANKS_SHOWN = 12
"""More columns than these do not fit a terminal; --json tells all pairs."""


def report(
    made: Presampled, plan: SamplingPlan, rank_hosts: Sequence[int], graph: str, batching: str
) -> dict[str, Any]:
    """Plain values. Rows count once a batch; sums are over all batches of all ranks and epochs."""
    sizes = [len(vertices) for vertices in plan.workers]
    told: dict[str, Any] = {
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
    if made.tally is not None:
        told |= _sums(made.tally, np.array(rank_hosts, np.int64))
    return told


def _sums(tally: Tally, hosts: Any) -> dict[str, Any]:
    plain = tally.as_dict()
    return {
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


def print_report(told: Mapping[str, Any]) -> None:
    """Tables of what :func:`report` tells."""
    rows = [
        ["batching", f"{told['batching']}, fan-outs {_list(told['fanouts'])}, {_size(told['batch_size'])}"],
        ["training vertices of a rank", _range(told["training_vertices"])],
        ["batches of a rank and epoch", _range(told["batches_per_epoch"])],
        ["parts (rank and epoch)", f"{told['parts_made']:,} made, {told['parts_found']:,} found"],
        ["size on disk", f"{told['size_bytes'] / 2**20:,.1f} MiB"],
    ]
    if told["complete"]:
        remote, inputs = told["remote_rows"], max(told["input_rows"], 1)
        rows += [
            ["batches", f"{told['batches']:,}"],
            ["input rows", f"{told['input_rows']:,}"],
            ["remote rows", f"{remote:,} ({100 * remote / inputs:.1f} %)"],
            ["remote rows, of other hosts", f"{told['remote_rows_of_other_hosts']:,}"],
        ]
    rows += [["digest", told["digest"] or "none yet: parts of other ranks are missing"], ["path", told["path"]]]
    print_table("", [f"samples of {told['graph']}", ""], rows, left=2)
    if told["complete"]:
        _print_hops(told)
        _print_pairs(told)
        _print_frequencies(told["remote_row_frequencies"])


def _print_hops(told: Mapping[str, Any]) -> None:
    batches = max(told["batches"], 1)
    rows = []
    for hop, fanout in enumerate(told["fanouts"], start=1):
        edges, duplicates = told["edges_by_hop"][hop - 1], told["duplicates_by_hop"][hop - 1]
        means = (told["rows_by_hop"][hop - 1], edges, duplicates, told["rows_by_hop"][hop])
        share = f"{100 * duplicates / max(edges, 1):.1f} %"
        cells = [f"{mean / batches:,.1f}" for mean in means]
        fan = "all" if fanout < 0 else str(fanout)
        rows.append([str(hop), fan, *cells, share, f"{told['largest_batch_rows_by_hop'][hop]:,}"])
    columns = ["hop", "fan-out", "rows before", "edges", "duplicates", "rows after", "duplicates / edges", "most rows"]
    print_table("means of a batch, by hop", columns, rows)


def _print_pairs(told: Mapping[str, Any]) -> None:
    ranks = told["ranks"]
    if ranks > MOST_RANKS_SHOWN:
        return
    matrix = np.zeros((ranks, ranks), np.int64)
    for rank, owner, number in told["rows_by_rank_and_owner"]:
        matrix[rank, owner] = number
    rows = [[str(rank), *(f"{number:,}" for number in line)] for rank, line in enumerate(matrix.tolist())]
    print_table("input rows, by rank and owner", ["rank", *(f"of {owner}" for owner in range(ranks))], rows)


def _print_frequencies(frequencies: Sequence[Sequence[int]]) -> None:
    if not frequencies:
        return
    times, held = np.array(frequencies, np.int64).T
    needed = int((times * held).sum())
    octave = np.ceil(np.log2(times)).astype(np.int64)  # 1, 2, 3-4, 5-8, ...
    rows = []
    for step in np.unique(octave)[::-1].tolist():
        here = octave == step
        most, least = 1 << step, (1 << (step - 1)) + 1 if step else 1
        above = int((times * held)[octave >= step].sum())
        name = str(most) if least >= most else f"{least}-{most}"
        rows.append([name, f"{int(held[here].sum()):,}", f"{100 * above / needed:.1f} %"])
    print_table(
        "remote rows, by the batches of a rank and epoch that need them",
        ["batches", "rows", "share of all remote rows sent, with those above"],
        rows,
    )


def _list(numbers: Sequence[int]) -> str:
    return "-".join("all" if number < 0 else str(number) for number in numbers)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _size(batch: int | Sequence[int]) -> str:
    return f"batch size {_range([batch] if isinstance(batch, int) else batch)}"
