"""The figures of a result that users read first, as lines of text."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simgnn.program.calendar import STEADY
from simgnn.record.energy import PART_NAMES, describe
from simgnn.record.memory import Place, fullest_memory
from simgnn.record.result import EpochKind, RankTimes, Result
from simgnn.record.stages import STAGES, StageTimes
from simgnn.record.traffic import LinkTraffic
from simgnn.units import readable_bytes

UNMEASURED = "-"
TEXTS = ("experiment", "how", "hardware", "status", "labels")
"""Columns of :func:`figures` that hold text."""


def seconds(value: float | None) -> str:
    """Format a duration in a unit that suits its size."""
    if value is None:
        return UNMEASURED
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= factor:
            return f"{value / factor:,.4g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def amount(value: float | None) -> str:
    """Format a number of bytes in a binary unit."""
    if value is None:
        return UNMEASURED
    return readable_bytes(value)


def percent(value: float | None) -> str:
    return UNMEASURED if value is None else f"{100 * value:.1f} %"


def traffic_bytes(result: Result) -> float | None:
    """Return the bytes that all ranks send to one another per epoch, in the mean of the result's payload epochs (where
    epochs differ, in that of a period). None for a failed run, whose ranks did not report what they sent."""
    return None if result.traffic is None else sum(result.traffic.total)


def traffic_name(result: Result) -> str:
    """Return a label for :func:`traffic_bytes` that states its epochs, counted from 1, or the period of their kinds."""
    if result.payload_epochs is None:
        return "traffic between ranks"
    if len(result.epoch_kinds) > 1:
        return f"traffic, mean of {result.epoch_kinds[0].period}"
    first, last = (epoch + 1 for epoch in result.payload_epochs)
    return f"traffic of epoch {first}" if first == last else f"traffic, mean of epochs {first} to {last}"


def traffic_lines(result: Result) -> list[tuple[str, str]]:
    """Return the traffic between ranks, its control messages, and what the links of each kind carry."""
    traffic = result.traffic
    if traffic is None:
        return []
    control = sum(traffic.control)
    rest = f" ({amount(sum(traffic.payload))} payload, {amount(control)} control)" if control else ""
    return [
        (traffic_name(result), amount(traffic_bytes(result)) + rest),
        *((f"over links.{one.link}", _carried(one)) for one in traffic.by_link),
    ]


def _carried(one: LinkTraffic) -> str:
    return f"{amount(one.total_bytes)}, at most {amount(one.busiest_bytes)} ({one.busiest})"


def communication_s(result: Result) -> float | None:
    """Return the seconds of communication that the slowest rank cannot hide behind computing."""
    slowest = _most_exposed(result)
    return None if slowest is None else slowest.comm_exposed_s


def communication_total_s(result: Result) -> float | None:
    """Return the seconds of all communication of the same rank: waiting and transfers, hidden or not."""
    slowest = _most_exposed(result)
    return None if slowest is None else slowest.all_communication_s


def _most_exposed(result: Result) -> RankTimes | None:
    return max(result.per_rank, key=lambda rank: rank.comm_exposed_s, default=None)


def memory_bytes(result: Result) -> int | None:
    """Return the peak memory of the fullest rank: measured, else the sum of live buffers."""
    return max(result.peak_memory_bytes or result.buffer_bytes, default=None)


def last_accuracy(result: Result) -> tuple[float | None, float | None]:
    """Return validation and test accuracy, or micro-F1 (:func:`metric_name`), after the last evaluated epoch."""
    if not result.accuracy:
        return None, None
    return result.accuracy[-1].validation, result.accuracy[-1].test


def best_reached(result: Result) -> str:
    """Format the best recorded validation accuracy and the predicted time to reach it."""
    known = [(one.validation, -one.seconds) for one in result.time_to_accuracy or () if one.validation is not None]
    best, earliest = max(known, default=(None, 0.0))
    return UNMEASURED if best is None else f"{percent(best)} after {seconds(-earliest)}"


def metric_name(result: Result) -> str:
    return {"accuracy": "accuracy", "micro_f1": "micro-F1"}[result.accuracy_metric]


def typical_name(result: Result) -> str:
    """Return a label for ``epoch_s_median``."""
    return f"epoch, mean of {result.epoch_kinds[0].period}" if result.epoch_kinds else "epoch, median"


def _often(kind: EpochKind) -> str:
    """Say which epochs are of a kind: "every 10th epoch (refresh)"."""
    count, period = kind.epochs_of_period, kind.period
    if kind.template == STEADY:
        return "other epochs"
    if count == 1:
        return f"{'every' if period == 1 else f'every {_ordinal(period)}'} epoch ({kind.template})"
    return f"{count} of {period} epochs ({kind.template})"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def heading(result: Result) -> str:
    """Return a title: the experiment, whether it was predicted or measured, ranks, hosts, epochs and the status."""
    how = "predicted" if result.backend == "sim" else "measured"
    counts = {"rank": result.ranks, "host": result.hosts, "epoch": result.epochs}
    where = ", ".join(f"{count} {one}{'s' * (count != 1)}" for one, count in counts.items())
    return f"{result.name}: {how} on {where} ({result.status})"


def result_lines(result: Result, verbose: bool = False) -> list[tuple[str, str]]:
    """Return (quantity, value as text) of every quantity that the result has. ``verbose``: the parts of memory, too."""
    return [line for line in _lines(result, verbose) if line[1] != UNMEASURED]


def _lines(result: Result, verbose: bool) -> list[tuple[str, str]]:
    validation, test = last_accuracy(result)
    interval, energy = result.epoch_s_interval, {figure.part for figure in result.energy}
    undelayed = None if result.jitter is None else result.jitter.epoch_s_median
    return [
        (typical_name(result), seconds(result.epoch_s_median)),
        *((_often(kind), seconds(kind.epoch_s_median)) for kind in result.epoch_kinds),
        ("epoch, 90 % interval", UNMEASURED if interval is None else " .. ".join(map(seconds, interval))),
        (
            f"{typical_name(result)}, without jitter",
            seconds(undelayed),
        ),
        ("first epoch", seconds(result.epoch_s[0] if result.epoch_s else None)),
        ("all epochs", seconds(sum(result.epoch_s) if result.epoch_s else None)),
        (f"best recorded validation {metric_name(result)}", best_reached(result)),
        ("communicating while nothing computes, slowest rank", seconds(communication_s(result))),
        ("waiting and communicating in all, the same rank", seconds(communication_total_s(result))),
        *_stage_lines(result.stages),
        *traffic_lines(result),
        *memory_lines(result, verbose),
        *((name, describe(result.energy, part)) for part, name in PART_NAMES.items() if part in energy),
        ("halo rows from caches, between refreshes", _cached(result)),
        ("rows of other hosts that caches had", _hits(result)),
        ("last loss", f"{result.loss[-1]:.4f}" if result.loss else UNMEASURED),
        (f"validation {metric_name(result)}", percent(validation)),
        (f"test {metric_name(result)}", percent(test)),
        ("program", result.program_digest[:16]),
        ("hardware", result.hardware or UNMEASURED),
    ]


def _stage_lines(stages: StageTimes | None) -> list[tuple[str, str]]:
    """Return the mean seconds of a rank in each stage of an epoch with caches of halo rows, and their ratios."""
    if stages is None:
        return []
    saved = UNMEASURED
    if stages.benefit_ratio is not None:
        empty = f"an epoch with empty caches: {seconds(stages.epoch_s_without_cache)}"
        saved = f"{stages.benefit_ratio:.3g} times what they cost ({empty})"
    means = ((name, float(np.mean(getattr(stages, f"{name}_s")))) for name in STAGES)
    return [
        *((f"{name}, mean of ranks", seconds(mean)) for name, mean in means),
        ("caches cost (check and pick)", f"{percent(stages.overhead_ratio)} of an epoch"),
        ("caches save", saved),
    ]


def memory_lines(result: Result, parts: bool) -> list[tuple[str, str]]:
    """Return the peak of the fullest device and of the fullest host beside GPUs; ``parts``: and its parts."""
    lines = []
    places: tuple[tuple[Place, str], ...] = (
        ("device", "memory"), ("host", "memory of the host beside it"), ("budget", "budget of a device"),
    )  # fmt: skip
    for place, name in places:
        peak = fullest_memory(result.memory, place)
        if peak is not None:
            lines.append((name, peak.text()))
            lines += [(f"{name}: {part}", readable_bytes(nbytes)) for part, nbytes in peak.parts.items() if parts]
    if not lines:  # a result of an earlier version
        return [("memory, fullest rank", amount(memory_bytes(result)))]
    device, apart = result.device_memory_bytes, result.shared_memory_bytes
    if device and apart:
        total = readable_bytes(sum(apart))
        lines.append(("mapped memory of hosts", f"{total}, apart from up to {readable_bytes(max(device))} of a device"))
    return lines


def _hits(result: Result) -> str:
    rows = result.input_rows
    if rows is None or rows.hit_rate is None:
        return UNMEASURED
    return f"{rows.hit:,} of {rows.hit + rows.pulled:,} ({percent(rows.hit_rate)})"


def _cached(result: Result) -> str:
    rows = result.halo_rows
    if rows is None:
        return UNMEASURED
    return (
        f"{rows.device + rows.host:,} of {rows.device + rows.host + rows.sent:,} ({percent(rows.hit_rate)}): "
        f"{rows.device:,} on devices, {rows.host:,} in memory that ranks share"
    )


def qualifications(result: Result) -> list[str]:
    """Return sentences that a reader must know before trusting the numbers."""
    return ([result.message] if result.message else []) + result.qualifications()


def figures(result: Result) -> list[dict[str, Any]]:
    """Return the figures of a result as a row of a table: plain values, units in the names, None where unknown."""
    low, high = result.epoch_s_interval or (None, None)
    validation, test = last_accuracy(result)
    peak = fullest_memory(result.memory, "device")
    return [
        {
            "experiment": result.name,
            "how": "predicted" if result.backend == "sim" else "measured",
            "hardware": result.hardware,
            "ranks": result.ranks,
            "hosts": result.hosts,
            "epochs": result.epochs,
            "status": result.status,
            "epoch_s": result.epoch_s_median,
            "epoch_low_s": low,
            "epoch_high_s": high,
            "labels": "; ".join(_labels(result)),
            "communication_s": communication_s(result),
            "communication_total_s": communication_total_s(result),
            "traffic_bytes": traffic_bytes(result),
            "memory_bytes": None if peak is None else peak.peak_bytes,
            "capacity_bytes": None if peak is None else peak.capacity_bytes,
            "energy_J": result.energy_J,
            "loss": result.loss[-1] if result.loss else None,
            "validation": validation,
            "test": test,
        }
    ]


def _labels(result: Result) -> list[str]:
    """Name what makes the numbers less reliable than measurements of the machine, in a word each."""
    said = {
        "uncalibrated": result.uncalibrated,
        "assumed": bool(result.assumed),
        "extrapolated": bool(result.extrapolated),
        "transferred": result.transferred,
    }
    return [label for label, holds in said.items() if holds]


def figures_by_rank(result: Result) -> list[dict[str, Any]]:
    """Return a row for each rank: its times in a median epoch, what it sends in one, what it allocates at most."""
    memory = result.peak_memory_bytes or result.buffer_bytes
    return [
        {
            "rank": rank,
            **times.model_dump(),
            "traffic_bytes": None if result.traffic is None else result.traffic.total[rank],
            "allocated_bytes": memory[rank] if memory else None,
            **{
                name: None if held is None else held[rank]
                for name, held in (
                    ("device_bytes", result.device_memory_bytes),
                    ("mapped_bytes", result.shared_memory_bytes),
                )
            },
        }
        for rank, times in enumerate(result.per_rank)
    ]


def figures_by_epoch(result: Result) -> list[dict[str, Any]]:
    """Return a row for each epoch, counted from 1: its time, the loss, and the accuracies where it was evaluated."""
    losses = dict(enumerate(result.loss or (), start=1))
    reached = {one.epoch: one for one in result.time_to_accuracy or result.accuracy or ()}
    shares = ("train", "validation", "test")
    return [
        {
            "epoch": epoch,
            "epoch_s": taken,
            "loss": losses.get(epoch),
            **{share: getattr(reached[epoch], share) if epoch in reached else None for share in shares},
        }
        for epoch, taken in enumerate(result.epoch_s, start=1)
    ]


def compared_quantities(predicted: Result, measured: Result) -> list[dict[str, Any]]:
    """Return the quantities that ``simgnn demo`` compares, with errors relative to the measured values."""
    quantities: list[tuple[str, Callable[[Result], float | None], Callable[[float | None], str]]] = [
        (typical_name(measured), lambda result: result.epoch_s_median, seconds),
        ("communicating while nothing computes, slowest rank", communication_s, seconds),
        (traffic_name(measured), traffic_bytes, amount),
        ("memory, fullest rank", memory_bytes, amount),
        (f"test {metric_name(measured)} reached", lambda result: last_accuracy(result)[1], percent),
    ]
    rows = []
    for quantity, of, text in quantities:
        one, two = of(predicted), of(measured)
        error = (one - two) / two if one is not None and two else None
        rows.append(
            {
                "quantity": quantity,
                "predicted": one,
                "measured": two,
                "error": error,
                "predicted_text": text(one),
                "measured_text": text(two),
                "error_text": UNMEASURED if error is None else f"{100 * error:+.1f} %",
            }
        )
    return rows
