"""Report of a calibration as one HTML page: tables, measured against predicted times, residuals."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import price_work
from simgnn.report.page import paragraphs, scatter, table, write_page

if TYPE_CHECKING:
    from simgnn.analysis.fit.profile import Calibration
    from simgnn.analysis.fit.samples import Sample, SampleFile

RULES = (
    "Of a probe's repeats the slowest twentieth (at least one of three) is left out as far as it lies more than 10 "
    "median absolute deviations above the median; the others are averaged. Of a curve's samples at most a tenth is "
    "left out: those further than 4 robust sigmas (1.4826 MAD) and a factor of 1.25 from a first fit.",
    "Errors in the tables are cross-validated: no sample is predicted by a fit that has seen it or its group, of "
    "communication its size (-: too few sizes to hold one out). Of communication a time is that of its last rank. The "
    "points below are predicted by the profile itself, so they scatter a little less. Samples that were left out are "
    "shown too.",
)


class Point(NamedTuple):
    """A measured sample and its prediction; ``noise_s``: median absolute deviation of its repeats."""

    group: str
    label: str
    measured_s: float
    predicted_s: float
    noise_s: float


def points(calibration: "Calibration", files: "Sequence[SampleFile]") -> Iterator[Point]:
    """Compare samples of work, collectives and messages (no exchanges) with the profile fitted to all of them."""
    profile = calibration.profile
    names = [name for name, _ in profile.topology.host_names()]
    kinds = [host.devices[0].type for _, host in profile.topology.host_names()]
    for file in files:
        machine: Machine | None = None
        if calibration.communication and profile.devices[kinds[0]].kind == "cpu":
            machine = Machine.place(profile, file.rank_hosts())
        for sample in file.samples:
            where = "" if len(names) == 1 else f", {' and '.join(names[host] for host in sample.hosts)}"
            kind = kinds[sample.hosts[0]]
            if profile.devices[kind].curves_of(sample.primitive):
                price = price_work(
                    profile.devices[kind], kind, sample.primitive, sample.sizes, sample.locality, sample.active,
                    sample.threads,
                )  # fmt: skip
                level = f"{sample.active} x {sample.threads}"
                yield _point(sample, level + where, float(price.seconds[0]), sample.seconds)
            elif machine is not None:
                level = f"{sample.ranks} ranks"
                members = [rank for rank, host in enumerate(file.rank_hosts()) if host in sample.hosts]
                if sample.primitive in ("allreduce", "broadcast", "allgather", "barrier"):
                    found = machine.collective(sample.primitive, "default", sample.sizes.get("bytes", 0.0), members)
                    yield _point(sample, level + where, found.seconds_alone, sample.last_s)
                elif sample.primitive == "send":
                    target = members[1] if len(sample.hosts) == 1 else file.hosts[sample.hosts[1]].ranks[0]
                    message = machine.message(file.hosts[sample.hosts[0]].ranks[0], target, sample.sizes["bytes"])
                    seconds = message.latency_s + sample.sizes["bytes"] / message.rate_bytes_per_s
                    yield _point(sample, level + where, seconds, sample.last_s)


def _point(sample: "Sample", level: str, predicted: float, measured: float) -> Point:
    sizes = ", ".join(f"{key} {value:g}" for key, value in sample.sizes.items() if key != "item_bytes")
    return Point(f"{sample.primitive}, {level}", f"{sample.form}: {sizes}", measured, predicted, sample.mad_s)


def write_report(calibration: "Calibration", files: "Sequence[SampleFile]", path: Path) -> None:
    """Write the HTML page atomically."""
    meta = calibration.profile.meta
    facts = [
        [key, str(value)] for key, value in (("machine", meta.description), ("date", meta.date), *meta.versions.items())
    ]
    parts: list[Any] = [table(["", ""], facts), paragraphs(RULES), "<h2>Work</h2>", table(*_work_table(calibration))]
    if calibration.communication:
        parts += ["<h2>Communication</h2>", table(*_network_table(calibration))]
    groups: dict[str, list[Point]] = {}
    for point in points(calibration, files):
        groups.setdefault(point.group, []).append(point)
    predicted = {
        name: {
            "x": [point.measured_s for point in group],
            "y": [point.predicted_s for point in group],
            "error_x": {"array": [point.noise_s for point in group], "thickness": 1},
            "text": [point.label for point in group],
        }
        for name, group in groups.items()
    }
    ratios = {
        name: {**predicted[name], "y": [point.predicted_s / point.measured_s for point in group], "error_x": None}
        for name, group in groups.items()
    }
    bars = "measured, s (bars: median absolute deviation of the repeats)"
    both = scatter(predicted, bars, "predicted, s")
    residuals = scatter(ratios, "measured, s", "predicted / measured", diagonal=False)
    residuals.add_hline(y=1.0, line={"color": "#999", "dash": "dot"})
    both.update_layout(height=620, title="Samples of work, collectives and messages")
    residuals.update_layout(height=520, title="Residuals")
    write_page(path, f"Calibration {meta.name}", [*parts, "<h2>Measured and predicted</h2>", both, residuals])


def _work_table(calibration: "Calibration") -> tuple[list[str], list[list[str]]]:
    rows = []
    for device, entry in calibration.curves:
        curve, fit = entry.curve, entry.fit
        costs = ", ".join(f"{name} {text}" for name, text in curve.model_dump()["costs"].items())
        reach = ", ".join(f"{name} to {high:g}" for name, (_, high) in curve.range.items())
        errors = [f"{fit.median_error:.1%}", f"{fit.spread:.1%}", f"{np.expm1(fit.worst):.0%}"]
        level = f"{curve.concurrency} x {curve.threads}"
        rows.append([device, curve.primitive, level, str(fit.used), str(fit.left_out), *errors, reach, costs])
    errors = ["median error", "spread", "worst"]
    columns = ["device", "primitive", "ranks x threads", "samples", "left out", *errors, "measured", "costs"]
    return columns, rows


def _network_table(calibration: "Calibration") -> tuple[list[str], list[list[str]]]:
    rows = [[kind, str(ranks), *found.shown()] for (kind, ranks), found in calibration.communication.items()]
    return ["communication", "ranks", "samples", "median error", "worst"], rows
