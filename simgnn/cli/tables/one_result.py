"""Prints the result of a run or a prediction, as tables or as JSON."""

from pathlib import Path

from simgnn.cli.tables.console import note, print_json
from simgnn.record.result import Result
from simgnn.report.results import amount, heading, qualifications, result_lines, seconds
from simgnn.report.terminal import print_table


def show_result(result: Result, as_json: bool, written: Path | None, verbose: bool = False) -> None:
    """Print a result; notes that qualify it go to standard error. ``verbose``: print the parts of its memory, too."""
    if as_json:
        print_json({**result.model_dump(mode="json"), "directory": None if written is None else str(written)})
        return
    print_table(heading(result), ["", "value"], result_lines(result, verbose))
    if len(result.per_rank) > 1:
        _show_ranks(result)
    if result.limited_by is not None:
        print("limited by")
        for name, text in result.limited_by.lines().items():
            print(f"  {name + ':':<11}{text}")
    for text in qualifications(result):
        note(text)
    if written is not None:
        note(f"written to {written}")


def _show_ranks(result: Result, most: int = 16) -> None:
    columns = ["rank", "compute", "wait", "communication", "without computing", "sent per epoch", "memory"]
    memory = result.peak_memory_bytes or result.buffer_bytes
    rows = []
    for rank, one in enumerate(result.per_rank[:most]):
        times = map(seconds, (one.compute_s, one.wait_s, one.comm_total_s, one.comm_exposed_s))
        sent = None if result.traffic is None else result.traffic.total[rank]
        rows.append([str(rank), *times, amount(sent), amount(memory[rank] if memory else None)])
    print_table("", columns, rows)
    if len(result.per_rank) > most:
        note(f"{len(result.per_rank) - most} more ranks are in result.json")
