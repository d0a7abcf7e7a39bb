"""``simgnn calibrate``: measure this machine with the executor's micro-benchmarks and fit its hardware profile."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.calibrate_measure import (
    forget_kept,
    kept_samples,
    kept_stages,
    measure_groups,
    one_at_a_time,
    told_of_kept,
    torchrun_place,
)
from simgnn.cli.options import JsonOption, path_argument, path_option
from simgnn.cli.tables.console import Reporter, note, print_json
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file, check_output_folder, make_parent
from simgnn.report.terminal import print_table

if TYPE_CHECKING:
    from simgnn.analysis.fit.profile import Calibration
    from simgnn.analysis.fit.samples import SampleFile
    from simgnn.hardware.profile.profile import Profile


def command(
    page: Annotated[
        Path | None, path_argument("[FILE.html]", "Where --report writes.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few sizes and 2 ranks: about 20 seconds.")] = False,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="P,...", help="Rank counts to measure; default 1,2,4 (--quick: 2).",
                     show_default=False),
    ] = None,
    out: Annotated[Path | None, path_option("--out", "FILE", "Profile to write.")] = None,
    samples: Annotated[Path | None, path_option("--samples", "DIR", "Keep the raw samples in this folder.")] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write a page with tables, residuals and plots: to FILE.html, or beside "
                           "the profile.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: do not use what an interrupted calibration has measured.")
    ] = False,
    passes: Annotated[
        int, typer.Option("--passes", metavar="N", min=1, help="Measure everything N times in turn, and pool: for a "
                          "machine whose speed changes over minutes.")
    ] = 1,
    pool: Annotated[
        list[Path] | None,
        path_option("--pool", "DIR", "Measure nothing: pool what earlier calibrations kept here with --samples, and "
                    "fit. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure this machine and write its hardware profile, which later simulations use by default.

    Full: at most five minutes a pass, on an otherwise idle machine. Nothing is written unless all was measured. A
    calibration that was interrupted goes on where it stopped, for a day, if machine, sizes and code are the same.
    Under torchrun ([bold]torchrun ... -m simgnn calibrate[/bold]) its ranks measure, and rank 0 fits and writes; on
    several hosts each measures its own device, and every two hosts their link.

    Outliers: of a probe's repeats the slowest twentieth (at least one of three) is left out as far as it lies more
    than 10 median absolute deviations above the median; the rest is averaged. Of a curve's samples at most a tenth is
    left out: those further than 4 robust sigmas (1.4826 MAD) and a factor of 1.25 from a first fit. Errors are
    cross-validated. Example: [bold]simgnn calibrate --quick[/bold]

    A machine whose speed changes over hours: calibrate with [bold]--samples[/bold] at several times, also between the
    runs that are to be predicted, then [bold]simgnn calibrate --pool MORNING --pool NOON --out machine.toml[/bold].
    """
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.library import CACHE_NAME, calibration_path
    from simgnn.hardware.profile.profile import save_profile

    if page is not None and not report:
        raise ConfigError(
            f"{page}: a file without --report; expected `simgnn calibrate --report {page}`, or --out FILE"
        )
    place = torchrun_place()
    leads = place is None or place.rank == 0
    last = calibration_path()
    for path, option in ((out, "--out"), (page if report else None, "FILE.html"), (last, CACHE_NAME)):
        if path is not None and leads:
            check_output_file(path, option)
    if page is not None and out is not None and page.resolve() == out.resolve():
        raise ConfigError(f"--out: got {out}, where --report writes its page too; expected two files: name another")
    if samples is not None:
        check_output_folder(samples, "--samples")
    if pool:
        _check_alone(quick, ranks, samples, fresh, passes, under_torchrun=place is not None)
    with one_at_a_time() if leads and not pool else nullcontext():
        if pool:
            files = kept_samples(pool)
        else:
            counts = parse_ranks(ranks)
            before = kept_stages(quick, counts, passes)
            try:
                files = measure_groups(quick, counts, Reporter(quiet=as_json or not leads), samples, fresh, passes)
            except KeyboardInterrupt:
                kept = told_of_kept(before, kept_stages(quick, counts, passes), fresh)
                note(f"nothing is written; {kept}")
                raise
        if not leads:
            return
        calibration = _fit(files, Reporter(quiet=as_json))
        named = out or last.parent / "calibration" / f"{calibration.profile.meta.name}.toml"
        for path in [named] if out else [named, last]:
            make_parent(path)
            save_profile(calibration.profile, path)
        if report:
            # the report of a calibration alone needs it
            from simgnn.report.calibration import write_report

            page = page or named.with_suffix(".html")
            make_parent(page)
            write_report(calibration, files, page)
        if not pool:
            forget_kept(quick)
    if as_json:
        told = {"curves": _curve_rows(calibration), "network": _network_rows(calibration)}
        print_json({"profile": str(named), "report": None if page is None else str(page), **told})
        return
    show(calibration)
    for text in calibration.profile.limits():
        note(text)
    note(f"written to {named}" if out else f"written to {named}; simulations use it from now on ({last})")
    if page is not None:
        note(f"report: {page}")


def _check_alone(
    quick: bool, ranks: str | None, samples: Path | None, fresh: bool, passes: int, under_torchrun: bool
) -> None:
    """Raise :class:`ConfigError` where ``--pool`` stands beside what says how to measure."""
    beside = {"--quick": quick, "--ranks": ranks, "--samples": samples, "--fresh": fresh, "--passes": passes > 1}
    named = [option for option, given in beside.items() if given]
    if named:
        raise ConfigError(f"--pool: got {', '.join(named)} too, but it measures nothing; leave one or the other out")
    if under_torchrun:
        raise ConfigError("--pool: got it under torchrun, but it measures nothing; run `simgnn calibrate` by itself")


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
    passes: int = 1,
) -> "Profile":
    """Measure this machine and return its profile; where ``out`` is given, also write it there, whole or not at all.

    ``ranks``: rank counts, measured one after another; default 1, 2 and 4, quick: 2. ``passes``: so often.
    Raises :class:`BackendError` when a measurement fails, :class:`HardwareError` when its samples fix no curve.
    """
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.profile import save_profile

    profile = measure_machine(quick, ranks, reporter or Reporter(), passes=passes).profile
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_profile(profile, out)
    return profile


def measure_machine(
    quick: bool, ranks: Sequence[int] | None, reporter: Reporter, samples: Path | None = None, passes: int = 1
) -> "Calibration":
    """Measure with each number of ranks, one after another, and fit. ``samples``: folder that keeps the raw samples."""
    with one_at_a_time():
        calibration = _fit(measure_groups(quick, ranks, reporter, samples, False, passes), reporter)
        forget_kept(quick)
    return calibration


def _fit(files: "Sequence[SampleFile]", reporter: Reporter) -> "Calibration":
    # loaded when the command runs: its help starts fast
    from simgnn.analysis.fit.profile import fit_profile

    reporter.stage("fitting curves to the samples")
    return fit_profile(files, max(file.started for file in files).astimezone().date())


def show(calibration: "Calibration") -> None:
    """Print what was fitted, with residuals."""
    errors = ["median error", "spread", "worst"]
    columns = ["device", "primitive", "ranks x threads", "samples", "left out", *errors, "costs"]
    work = [list(row.values()) for row in _curve_rows(calibration)]
    print_table("Work (cross-validated errors)", columns, work, left=3)
    rows = _network_rows(calibration)
    if rows:
        columns = ["communication", "ranks", "samples", "median error", "worst"]
        title = "Communication (sizes held out in turn; -: too few to hold one out)"
        print_table(title, columns, [list(row.values()) for row in rows])


def _curve_rows(calibration: "Calibration") -> list[dict[str, str]]:
    rows = []
    for device, entry in calibration.curves:
        curve, fit = entry.curve, entry.fit
        costs = curve.model_dump()["costs"]
        rows.append(
            {
                "device": device,
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
    return [
        {
            "kind": kind,
            "ranks": str(ranks),
            **dict(zip(("samples", "median_error", "worst"), found.shown(), strict=True)),
        }
        for (kind, ranks), found in calibration.communication.items()
    ]
