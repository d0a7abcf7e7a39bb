"""What a page says of a prediction, a run, or both: the verdict first, then a section for each figure that there is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simgnn.analysis.compare import Comparison
from simgnn.record.explanation import Explanation
from simgnn.record.memory import MemoryPeak, fullest_memory
from simgnn.record.result import Result
from simgnn.report.explanation import effect_rows, explanation_lines, part_rows
from simgnn.report.outcome_page import figures
from simgnn.report.page import Section, badges, bullets, paragraphs, table, verdict
from simgnn.report.results import amount, heading, percent, qualifications, result_lines, seconds, typical_name
from simgnn.report.text import comparison_lines
from simgnn.report.timeline import timeline

MOST_BARS = 6_000
"""Most ops of a timeline: what a page draws without delay."""
MOST_EFFECTS = 20
TIMES = (*figures.PARTS.values(), "wait_s", "comm_total_s")
"""Fields of the times of a rank that its table shows."""
MOST_ROWS = 200
"""Most rows of a table beneath a figure; the files of the run directory have all."""


@dataclass(frozen=True)
class Side:
    """One outcome of a page. ``ops``: the timed ops of all its epochs, None if it has no trace; ``memory``: the table
    ``memory.parquet`` of a prediction, or None; ``shares``: of the bytes that a (op_id, rank) sends, those to other
    hosts."""

    name: str
    result: Result
    ops: pd.DataFrame | None
    memory: pd.DataFrame | None
    shares: Mapping[tuple[int, int], float]


def page_parts(
    sides: Sequence[Side], comparison: Comparison | None, explanation: Explanation | None, epoch: int | None
) -> list[str | Section]:
    """Return the parts of the page. ``epoch``: which one the timeline shows, from 1; None: the second."""
    results = {side.name: side.result for side in sides}
    parts: list[str | Section] = [verdict(_verdict(sides, comparison)), badges(_badges(sides))]
    told = [note for side in sides for note in qualifications(side.result)]
    parts.append(bullets(list(dict.fromkeys(told))))
    if comparison is not None:
        parts.append(Section("Comparison", bullets(comparison_lines(comparison)), None, "", *_differences(comparison)))
    parts.append(Section("Figures", "", None, "", *_quantities(results)))
    parts += _timeline(sides, epoch)
    parts += _breakdown(results)
    parts += [section for side in sides for section in _traffic(side, len(sides) > 1, epoch)]
    parts += _memory(sides)
    parts += [section for side in sides for section in _training(side, len(sides) > 1)]
    parts += _limits(sides, explanation)
    return parts


def _verdict(sides: Sequence[Side], comparison: Comparison | None) -> str:
    error = None if comparison is None else comparison.epoch.error
    if comparison is not None and error is not None:
        epoch, (first, second) = comparison.epoch, comparison.sides
        place = "inside" if comparison.inside else "outside"
        inside = "" if comparison.inside is None else f", {place} its 90 % interval"
        times = f"{first} {seconds(epoch.predicted_s)}, {second} {seconds(epoch.measured_s)}"
        return f"{times} an epoch: {100 * error:+.1f} %{inside}"
    result = sides[0].result
    if result.status != "ok":
        return f"{result.status}: {result.message}"
    interval = ""
    if result.epoch_s_interval is not None:
        interval = f", 90 % of them between {' and '.join(map(seconds, result.epoch_s_interval))}"
    peak = fullest_memory(result.memory, "device")
    memory = "" if peak is None else f". {peak.text()}"
    how = "predicted to take" if result.backend == "sim" else "took"
    return f"{typical_name(result)} {how} {seconds(result.epoch_s_median)}{interval}{memory}"


def _badges(sides: Sequence[Side]) -> list[str]:
    words = []
    for side in sides:
        result = side.result
        words.append("predicted" if result.backend == "sim" else "measured")
        said = {
            "hardware not calibrated": result.uncalibrated,
            "assumed prices": bool(result.assumed),
            "extrapolated": bool(result.extrapolated),
            "decisions of another partition": result.transferred,
        }
        words += [word for word, holds in said.items() if holds]
    return list(dict.fromkeys(words))


def _quantities(results: Mapping[str, Result]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    lines = {name: dict(result_lines(result, verbose=True)) for name, result in results.items()}
    quantities = dict.fromkeys(quantity for of_side in lines.values() for quantity in of_side)
    rows = [(quantity, *(of_side.get(quantity, "-") for of_side in lines.values())) for quantity in quantities]
    return ("", *results) if len(results) > 1 else ("", "value"), tuple(rows)


def _differences(comparison: Comparison) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    rows = [
        (op.op, op.kind, seconds(op.whole.predicted_s), seconds(op.whole.measured_s), seconds(op.whole.difference_s))
        for op in sorted(comparison.ops, key=lambda one: -abs(one.whole.difference_s))[:20]
    ]
    return ("op, most different first", "kind", *comparison.sides, "difference"), tuple(rows)


def _timeline(sides: Sequence[Side], epoch: int | None) -> Iterator[Section]:
    traced = {side.name: _few_ranks(side.ops) for side in sides if side.ops is not None}
    if not traced:
        return
    figure = timeline(traced, "", epoch, MOST_BARS)
    rows = len({row for trace in figure.data for row in trace.y})
    figures.narrow(figures.of_rows(figure, rows)).update_layout(title=None)
    text = "One epoch, a row for each stream of each rank. Grey: waiting for other ranks."
    if any(len(side.result.per_rank) > figures.MOST_RANKS for side in sides):
        text += f" The first {figures.MOST_RANKS} ranks."
    kinds = pd.concat([frame.assign(side=name) for name, frame in traced.items()])
    sums = kinds[kinds["step"] >= 0].groupby(["side", "rank", "kind"])[["compute", "wait", "transfer"]].sum()
    epochs = kinds[kinds["step"] >= 0].groupby("side")["epoch"].nunique()
    cells = [
        (f"{side} rank {rank}", str(kind), *(seconds(float(value) / epochs[side]) for value in values))
        for (side, rank, kind), values in zip(sums.index, sums.to_numpy(), strict=True)
    ]
    columns = ("rank", "kind of op", "computes", "waits", "transfers")
    title = " and ".join(traced)
    label = f"{title}: what each rank does during an epoch, as bars over time"
    yield Section("Timeline", paragraphs([text]), figure, label, columns, tuple(cells[:MOST_ROWS]))


def _few_ranks(ops: pd.DataFrame) -> pd.DataFrame:
    return ops[ops["rank"] < figures.MOST_RANKS]


def _breakdown(results: Mapping[str, Result]) -> Iterator[Section]:
    known = {name: result for name, result in results.items() if result.per_rank}
    if not known:
        return
    rows = [
        (f"{name} rank {rank}", *(seconds(getattr(times, field)) for field in TIMES))
        for name, result in known.items()
        for rank, times in enumerate(result.per_rank)
    ]  # fmt: skip
    columns = ("rank", *figures.PARTS, "waits in all", "transfers in all")
    label = "what each rank spends a median epoch on, as stacked bars"
    yield Section("Ranks", "", figures.breakdown(known), label, columns, tuple(rows[:MOST_ROWS]))


def _traffic(side: Side, several: bool, epoch: int | None) -> Iterator[Section]:
    result, suffix = side.result, f", {side.name}" if several else ""
    sent = np.array(result.bytes_sent, dtype=np.float64)
    if result.ranks > 1 and sent.any():
        names = tuple(f"to {rank}" for rank in range(len(sent)))
        rows = [(f"from rank {rank}", *map(amount, row)) for rank, row in enumerate(sent.tolist())]
        text = paragraphs(["Payload of messages between ranks in an epoch; collectives are not in it."])
        label = "payload from each rank to each other, as a matrix"
        yield Section(f"Traffic{suffix}", text, figures.traffic_matrix(result), label, ("", *names), tuple(rows))
    if side.ops is not None:
        trained = side.ops[side.ops["step"] >= 0]
        known = sorted(set(trained["epoch"]))
        shown = known[min(1, len(known) - 1)] if epoch is None else epoch - 1
        moments, rates = figures.on_the_way(trained[trained["epoch"] == shown], side.shares)
        if rates:
            rows = [
                (name, f"{rate.max() / figures.MIB:.4g} MiB/s", amount(float(rate.sum() * (moments[1] - moments[0]))))
                for name, rate in rates.items()
            ]
            text = paragraphs(["Bytes on the way: those of an op flow evenly from its start to its end."])
            figure = figures.traffic_over_time(moments, rates)
            label = "bytes a second on the way over the time of an epoch"
            yield Section(f"Links over time{suffix}", text, figure, label, ("", "at most", "in all"), tuple(rows))
    links = [] if result.traffic is None else result.traffic.by_link
    if links:
        rows = [(f"links.{one.link}", amount(one.total_bytes), one.busiest, amount(one.busiest_bytes)) for one in links]
        yield Section(f"Links{suffix}", "", None, "", ("links", "bytes an epoch", "busiest", "its bytes"), tuple(rows))


def _memory(sides: Sequence[Side]) -> Iterator[Section]:
    known = {side.name: side.result for side in sides if side.result.memory}
    if known:
        rows = [
            (f"{name}: {peak.place} {peak.name}", amount(peak.peak_bytes), *_of_capacity(peak))
            for name, result in known.items()
            for peak in result.memory
        ]  # fmt: skip
        columns = ("memory", "peak", "capacity", "share")
        label = "peaks of memories beside their capacities"
        yield Section("Memory", "", figures.memory_peaks(known), label, columns, tuple(rows[:MOST_ROWS]))
    for side in sides:
        if side.memory is None or not len(side.memory):
            continue
        peaks = [peak for peak in side.result.memory if peak.capacity_bytes and len(peak.ranks) == 1]
        limits = {f"{peak.place}": int(peak.capacity_bytes or 0) for peak in peaks}
        most = side.memory.groupby("rank")["device_bytes"].max()
        held = [(f"rank {rank}", amount(float(nbytes))) for rank, nbytes in most.items()]
        text = paragraphs(["Buffers and scratch on each rank's device, as predicted; dashed: what there is."])
        label = "memory in use on each rank's device over time"
        figure = figures.memory_over_time(side.memory, _near(limits, float(most.max())))
        yield Section("Memory over time", text, figure, label, ("", "at most"), tuple(held[:MOST_ROWS]))


def _of_capacity(peak: MemoryPeak) -> tuple[str, str]:
    return (amount(peak.capacity_bytes), percent(peak.share)) if peak.capacity_bytes else ("-", "-")


def _near(limits: Mapping[str, int], most: float) -> dict[str, int]:
    """Leave out limits that are so far above what is used that its line would lie on the axis."""
    return {name: nbytes for name, nbytes in limits.items() if nbytes <= 20 * most}


def _training(side: Side, several: bool) -> Iterator[Section]:
    result = side.result
    if not result.loss:
        return
    rows = [
        (str(epoch + 1), f"{loss:.6g}") for epoch, loss in enumerate(result.loss)
    ]  # fmt: skip
    reached = {one.epoch: one for one in result.accuracy or ()}
    cells = [
        (*row, *(_share(getattr(reached.get(int(row[0])), name, None)) for name in ("train", "validation", "test")))
        for row in rows
    ]
    columns = ("epoch", "loss", "train", "validation", "test")
    title = f"Training, {side.name}" if several else "Training"
    label = "loss and accuracy by epoch"
    yield Section(title, "", figures.training(result), label, columns, tuple(cells[:MOST_ROWS]))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _limits(sides: Sequence[Side], explanation: Explanation | None) -> Iterator[Section]:
    if explanation is not None:
        known = {"predicted": "predicted_s"} | ({} if explanation.measured is None else {"measured": "measured_s"})
        rows = [
            (part["what"], part["activity"], *(seconds(part[field]) for field in known.values()))
            for part in part_rows(explanation)
        ]
        columns = ("", "", *known)
        lines = bullets(explanation_lines(explanation))
        yield Section("Where the epoch goes: its critical path", lines, None, "", columns, tuple(rows))
        cells = [
            (row["key"], row["value"], *(_changed(row[f"{one}_s"], row[f"{one}_gain"]) for one in ("better", "worse")))
            for row in effect_rows(explanation)
        ]
        text = paragraphs(["The predicted epoch with each number twice and half as good, everything else unchanged."])
        label = "by how much the epoch changes with each number twice and half as good, as bars"
        yield Section(
            "What would change it", text, figures.effects(explanation, MOST_EFFECTS), label,
            ("", "now", "twice as good", "half as good"), tuple(cells),
        )  # fmt: skip
        return
    for side in sides:
        found = side.result.limited_by
        if found is not None:
            rows = [(one.key, one.value, one.source, f"{100 * one.shorter:.1f} % shorter") for one in found.numbers]
            text = bullets([f"{name}: {line}" for name, line in found.lines().items()])
            figure = figures.limits(found) if found.numbers else None
            label = "by how much the epoch gets shorter with the numbers that limit it twice as good"
            columns = ("number of the profile", "now", "source", "twice as good")
            yield Section("What limits it", text, figure, label, columns, tuple(rows))


def _changed(changed_s: float | None, gain: float | None) -> str:
    return "refused" if changed_s is None or gain is None else f"{seconds(changed_s)} ({-100 * gain:+.1f} %)"


def several_parts(results: Sequence[tuple[str, Result]]) -> list[str | Section]:
    """Return the parts of a page of many outcomes, side by side."""
    timed = sorted((one.epoch_s_median, name) for name, one in results if one.epoch_s_median is not None)
    said = f"fastest: {timed[0][1]}, {seconds(timed[0][0])} an epoch" if timed else "none has a time"
    rows = []
    for name, result in results:
        peak = fullest_memory(result.memory, "device")
        rows.append(
            (
                name, heading(result), seconds(result.epoch_s_median),
                "-" if result.epoch_s_interval is None else " .. ".join(map(seconds, result.epoch_s_interval)),
                amount(None if result.traffic is None else sum(result.traffic.total)),
                amount(None if peak is None else peak.peak_bytes), result.hardware or "-",
            )
        )  # fmt: skip
    columns = ("directory", "outcome", "epoch", "90 % interval", "traffic", "memory", "hardware")
    label = "median epochs of the outcomes as bars, with 90 % intervals"
    notes = [f"{name}: {note}" for name, result in results for note in qualifications(result)]
    return [
        verdict(said),
        Section("Epochs", "", figures.epoch_times(results), label, columns, tuple(rows)),
        Section("Figures", table(columns, rows)),
        Section("What qualifies them", bullets(notes)),
    ]
