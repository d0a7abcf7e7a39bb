"""Results as tables and as JSON."""

from pathlib import Path

from simgnn.cli.tables.console import note, print_json
from simgnn.record.energy import PART_NAMES, describe
from simgnn.record.result import Result
from simgnn.report.terminal import print_table

UNMEASURED = "-"


def seconds(value: float | None) -> str:
    """A duration with a unit that suits its size."""
    if value is None:
        return UNMEASURED
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= factor:
            return f"{value / factor:,.4g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def amount(value: float | None) -> str:
    """Bytes with a binary unit."""
    if value is None:
        return UNMEASURED
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.4g} {unit}"
        size /= 1024
    return f"{size:,.4g} TiB"


def percent(value: float | None) -> str:
    """A share as a percentage."""
    return UNMEASURED if value is None else f"{100 * value:.1f} %"


def bytes_per_epoch(result: Result) -> float | None:
    """Payload of all ranks in an epoch, between pairs and in collectives: the mean of the epochs that the result
    names. None of a run that failed: its ranks did not tell what they sent to each other."""
    return sum(map(sum, result.bytes_sent)) + sum(result.collective_bytes) if result.bytes_sent else None


def payload_name(result: Result) -> str:
    """What :func:`bytes_per_epoch` is of, counting epochs from 1."""
    if result.payload_epochs is None:
        return "payload of the last epoch"
    first, last = (epoch + 1 for epoch in result.payload_epochs)
    return f"payload of epoch {first}" if first == last else f"payload, mean of epochs {first} to {last}"


def communication_s(result: Result) -> float | None:
    """Seconds of communication that the slowest rank cannot hide behind computing."""
    return max((rank.comm_exposed_s for rank in result.per_rank), default=None)


def memory_bytes(result: Result) -> int | None:
    """Peak memory of the fullest rank: measured where it was, else the sum of live buffers."""
    return max(result.peak_memory_bytes or result.buffer_bytes, default=None)


def last_accuracy(result: Result) -> tuple[float | None, float | None]:
    """Validation and test accuracy, or micro-F1 (:func:`metric_name`), after the last evaluated epoch."""
    if not result.accuracy:
        return None, None
    return result.accuracy[-1].validation, result.accuracy[-1].test


def best_reached(result: Result) -> str:
    """The best recorded validation accuracy, and when it is predicted to be reached."""
    known = [(one.validation, -one.seconds) for one in result.time_to_accuracy or () if one.validation is not None]
    if not known:
        return UNMEASURED
    best, earliest = max(known)
    return f"{percent(best)} after {seconds(-earliest)}"


def metric_name(result: Result) -> str:
    """What the accuracy numbers of a result are, in words."""
    return {"accuracy": "accuracy", "micro_f1": "micro-F1"}[result.accuracy_metric]


def show_result(result: Result, as_json: bool, written: Path | None) -> None:
    """Print a result; notes that qualify it go to standard error."""
    if as_json:
        print_json({**result.model_dump(mode="json"), "directory": None if written is None else str(written)})
        return
    simulated = result.backend == "sim"
    print_table(
        f"{result.name}: {'predicted' if simulated else 'measured'} on {result.ranks} ranks, {result.hosts} "
        f"host{'s' if result.hosts > 1 else ''}, {result.epochs} epochs ({result.status})",
        ["", "value"],
        [[name, value] for name, value in _lines(result) if value != UNMEASURED],
    )
    if len(result.per_rank) > 1:
        _show_ranks(result)
    for text in qualifications(result):
        note(text)
    if written is not None:
        note(f"written to {written}")


def _lines(result: Result) -> list[tuple[str, str]]:
    validation, test = last_accuracy(result)
    interval = result.epoch_s_interval
    return [
        ("epoch, median", seconds(result.epoch_s_median)),
        (
            "epoch, 90 % interval",
            UNMEASURED if interval is None else f"{seconds(interval[0])} .. {seconds(interval[1])}",
        ),
        (
            "epoch, median, without jitter",
            UNMEASURED if result.jitter is None else seconds(result.jitter.epoch_s_median),
        ),
        ("first epoch", seconds(result.epoch_s[0] if result.epoch_s else None)),
        ("all epochs", seconds(sum(result.epoch_s) if result.epoch_s else None)),
        (f"best recorded validation {metric_name(result)}", best_reached(result)),
        ("communication not hidden, slowest rank", seconds(communication_s(result))),
        (payload_name(result), amount(bytes_per_epoch(result))),
        ("memory, fullest rank", amount(memory_bytes(result))),
        ("buffers at most, fullest rank", amount(max(result.buffer_bytes, default=None))),
        ("idle process, fullest rank", amount(max(result.idle_memory_bytes or [], default=None))),
        ("memory of the host beside it", amount(max(result.host_memory_bytes or [], default=None))),
        ("memory resident, fullest rank", amount(max(result.resident_memory_bytes or [], default=None))),
        *_energy(result),
        ("rows of other hosts that caches had", _hits(result)),
        ("last loss", f"{result.loss[-1]:.4f}" if result.loss else UNMEASURED),
        (f"validation {metric_name(result)}", percent(validation)),
        (f"test {metric_name(result)}", percent(test)),
        ("program", result.program_digest[:16]),
        ("hardware", result.hardware or UNMEASURED),
    ]


def _hits(result: Result) -> str:
    rows = result.input_rows
    if rows is None or rows.hit_rate is None:
        return UNMEASURED
    return f"{rows.hit:,} of {rows.hit + rows.pulled:,} ({percent(rows.hit_rate)})"


def _energy(result: Result) -> list[tuple[str, str]]:
    parts = {figure.part for figure in result.energy}
    return [(name, describe(result.energy, part)) for part, name in PART_NAMES.items() if part in parts]


def _show_ranks(result: Result, most: int = 16) -> None:
    columns = ["rank", "compute", "wait", "communication", "not hidden", "sent per epoch", "memory"]
    memory = result.peak_memory_bytes or result.buffer_bytes
    rows = [
        [
            str(rank),
            seconds(times.compute_s),
            seconds(times.wait_s),
            seconds(times.comm_total_s),
            seconds(times.comm_exposed_s),
            amount(sum(result.bytes_sent[rank]) if result.bytes_sent else None),
            amount(memory[rank] if memory else None),
        ]
        for rank, times in enumerate(result.per_rank[:most])
    ]
    print_table("", columns, rows)
    if len(result.per_rank) > most:
        note(f"{len(result.per_rank) - most} more ranks are in result.json")


def qualifications(result: Result) -> list[str]:
    """What a reader must know before trusting the numbers."""
    return ([result.message] if result.message else []) + result.qualifications()
