"""``simgnn calibrate``: measure this machine with the executor's micro-benchmarks and fit its hardware profile."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.console import Reporter, note, print_json, print_table
from simgnn.cli.engine import check_executor
from simgnn.cli.options import JsonOption
from simgnn.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from simgnn.analysis.fit import Calibration
    from simgnn.analysis.fit_samples import SampleFile
    from simgnn.hardware.profile import Profile

QUICK_RANKS = (2,)
FULL_RANKS = (1, 2, 4)
BUSY_INTERVAL_S = 0.5
BUSY_PERCENT = 15.0
PATIENCE_S = 600.0
"""A group of ranks that has not finished by then hangs."""


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Few sizes and 2 ranks: about 20 seconds.")] = False,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="P,...", help="Rank counts to measure; default 1,2,4 (--quick: 2).",
                     show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Profile to write.", show_default=False)
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option("--samples", metavar="DIR", help="Keep the raw samples in this folder.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure this machine and write its hardware profile, which later simulations use by default.

    Full: at most five minutes, on an otherwise idle machine. Nothing is written unless everything was measured.
    Example: [bold]simgnn calibrate --quick[/bold]
    """
    from simgnn.hardware.library import calibration_path
    from simgnn.hardware.profile import save_profile

    calibration = measure_machine(quick, parse_ranks(ranks), Reporter(quiet=as_json), samples)
    last = calibration_path()
    named = out or last.parent / "calibration" / f"{calibration.profile.meta.name}.toml"
    for path in [named] if out else [named, last]:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_profile(calibration.profile, path)
    if as_json:
        print_json({"profile": str(named), "curves": _curve_rows(calibration), "network": _network_rows(calibration)})
        return
    show(calibration)
    note(f"written to {named}" if out else f"written to {named}; simulations use it from now on ({last})")


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """Rank counts of a list such as "1,2,4", ascending; None stays None."""
    if text is None:
        return None
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1:
        raise ConfigError(f"--ranks: got '{text}', expected rank counts of 1 or more, such as 1,2,4")
    return tuple(counts)


def calibrate(
    out: Path | None = None,
    quick: bool = False,
    ranks: Sequence[int] | None = None,
    reporter: Reporter | None = None,
) -> "Profile":
    """Measure this machine and return its profile; where ``out`` is given, also write it there, whole or not at all.

    ``ranks``: rank counts, measured one after another; default 1, 2 and 4, quick: 2.
    Raises :class:`BackendError` when a measurement fails, :class:`HardwareError` when its samples fix no curve.
    """
    from simgnn.hardware.profile import save_profile

    profile = measure_machine(quick, ranks, reporter or Reporter()).profile
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_profile(profile, out)
    return profile


def measure_machine(
    quick: bool, ranks: Sequence[int] | None, reporter: Reporter, samples: Path | None = None
) -> "Calibration":
    """Measure with each number of ranks, one after another, and fit. ``samples``: folder that keeps the raw samples."""
    from simgnn.analysis.fit import fit_profile

    check_executor()
    _tell_if_busy(reporter)
    with tempfile.TemporaryDirectory(prefix="simgnn-calibrate-") as scratch:
        folder = Path(scratch) if samples is None else samples
        folder.mkdir(parents=True, exist_ok=True)
        files = [
            _measure(count, quick, folder / f"samples-{count}.json", reporter)
            for count in ranks or (QUICK_RANKS if quick else FULL_RANKS)
        ]
    reporter.stage("fitting curves to the samples")
    return fit_profile(files, date.today())


def _tell_if_busy(reporter: Reporter) -> None:
    """Others' work on this machine would be measured as its own slowness: say so, and go on."""
    import psutil  # type: ignore[import-untyped]

    busy = psutil.cpu_percent(BUSY_INTERVAL_S)
    if busy > BUSY_PERCENT:
        reporter.stage(f"this machine is {busy:.0f} % busy with other work: calibrate it again when it is idle")


def _measure(ranks: int, quick: bool, path: Path, reporter: Reporter) -> "SampleFile":
    """Samples of one group of ranks. More ranks than cores measure communication only: they take turns computing."""
    from simgnn.analysis.fit_samples import read_samples

    reporter.stage(f"measuring with {ranks} rank{'s' if ranks > 1 else ''}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    arguments = ["--ranks", str(ranks), "--out", str(path), *(["--quick"] if quick else [])]
    if ranks > cores:
        arguments += ["--only", "communication"]
    command = [sys.executable, "-m", "executor.microbench", *arguments]
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words)
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its ranks before it ends
                process.wait()
        if status != 0:
            words.seek(0)
            said = "\n".join(words.read().splitlines()[-10:])
            raise BackendError(f"calibrate: measuring with {ranks} ranks ended with status {status}:\n{said}")
    return read_samples(path)


def show(calibration: "Calibration") -> None:
    """Print what was fitted, with residuals."""
    columns = ["primitive", "ranks x threads", "samples", "left out", "median error", "spread", "worst", "costs"]
    print_table(
        "Work (cross-validated errors)", columns, [list(row.values()) for row in _curve_rows(calibration)], left=2
    )
    rows = _network_rows(calibration)
    if rows:
        columns = ["communication", "ranks", "samples", "median error", "worst"]
        print_table("Communication", columns, [list(row.values()) for row in rows])


def _curve_rows(calibration: "Calibration") -> list[dict[str, str]]:
    rows = []
    for entry in calibration.curves:
        curve, fit = entry.curve, entry.fit
        costs = curve.model_dump()["costs"]
        rows.append(
            {
                "primitive": curve.primitive,
                "level": f"{curve.concurrency} x {curve.threads}",
                "samples": str(fit.used),
                "left_out": str(fit.left_out),
                "median_error": f"{fit.median_error:.1%}",
                "spread": f"{fit.spread:.1%}",
                "worst": f"{fit.worst:.2f}",
                "costs": ", ".join(f"{name} {text}" for name, text in costs.items()),
            }
        )
    return rows


def _network_rows(calibration: "Calibration") -> list[dict[str, str]]:
    network = calibration.network
    if network is None:
        return []
    return [
        {
            "kind": kind,
            "ranks": str(ranks),
            "samples": str(count),
            "median_error": f"{middle:.1%}",
            "worst": f"{most:.1%}",
        }
        for (kind, ranks), (middle, most, count) in network.errors.items()
    ]
