"""``simgnn calibrate``: measure this machine with the executor's micro-benchmarks and fit its hardware profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.options import JsonOption, path_argument, path_option
from simgnn.cli.tables.console import Reporter, note, print_json
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file
from simgnn.report.terminal import print_table

if TYPE_CHECKING:
    from simgnn.analysis.fit.profile import Calibration


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

    Takes at most five minutes a pass, on an otherwise idle machine. Nothing is written unless all was measured. An
    interrupted calibration continues where it stopped, for a day, if machine, sizes and code are the same. Under
    torchrun ([bold]torchrun ... -m simgnn calibrate[/bold]) its ranks measure, and rank 0 fits and writes; on several
    hosts each measures its own device, and every two hosts their link.

    Outliers: of a probe's repeats the slowest twentieth (at least one of three) is left out as far as it lies more
    than 10 median absolute deviations above the median; the rest is averaged. Of a curve's samples at most a tenth is
    left out: those further than 4 robust sigmas (1.4826 MAD) and a factor of 1.25 from a first fit. Errors are
    cross-validated. Example: [bold]simgnn calibrate --quick[/bold]

    A machine whose speed changes over hours: calibrate with [bold]--samples[/bold] at several times, also between the
    runs that are to be predicted, then [bold]simgnn calibrate --pool MORNING --pool NOON --out machine.toml[/bold].
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.calibrate import calibrate
    from simgnn.api.measuring import measure_groups, torchrun_place
    from simgnn.hardware.profile.library import calibration_path

    if page is not None and not report:
        raise ConfigError(
            f"{page}: got a file, but no --report; expected `simgnn calibrate --report {page}`, or --out FILE"
        )
    place = torchrun_place()
    if pool and place is not None:
        raise ConfigError("--pool: pools samples without measuring; run simgnn calibrate without torchrun")
    counts, reporter = parse_ranks(ranks), Reporter(quiet=as_json)
    if place is not None and place.rank:  # rank 0 fits and writes
        measure_groups(quick, counts, reporter, samples, fresh, passes)
        return
    if page is not None:
        check_output_file(page, "FILE.html")
        if out is not None and page.resolve() == out.resolve():
            raise ConfigError(f"--out: got {out}, where --report writes its page too; expected two files: name another")
    try:
        calibrated = calibrate(
            out, quick=quick, ranks=counts, samples=samples, fresh=fresh, passes=passes, pool=pool or (),
            progress=reporter,
        )  # fmt: skip
    except KeyboardInterrupt:
        if not pool:
            same = "without --fresh the same command" if fresh else "the same command"
            note(f"nothing is written; stages measured to their end are kept for a day: {same} goes on from there")
        raise
    calibration = calibrated.calibration
    if report:
        page = page or calibrated.path.with_suffix(".html")
        calibrated.report(page)
    if as_json:
        tables = {"curves": _curve_rows(calibration), "network": _network_rows(calibration)}
        print_json({"profile": str(calibrated.path), "report": None if page is None else str(page), **tables})
        return
    _show(calibration)
    for text in calibration.profile.limits():
        note(text)
    used = "" if out else f"; simulations use it from now on ({calibration_path()})"
    note(f"written to {calibrated.path}{used}")
    if page is not None:
        note(f"report: {page}")


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """Parse a list of rank counts such as "1,2,4", ascending; None stays None."""
    if text is None:
        return None
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1:
        raise ConfigError(f"--ranks: got '{text}', expected rank counts of 1 or more, such as 1,2,4")
    return tuple(counts)


def _show(calibration: "Calibration") -> None:
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
    return [
        {
            "device": device,
            "primitive": entry.curve.primitive,
            "level": f"{entry.curve.concurrency} x {entry.curve.threads}",
            "samples": str(entry.fit.used),
            "left_out": str(entry.fit.left_out),
            "median_error": f"{entry.fit.median_error:.1%}",
            "spread": f"{entry.fit.spread:.1%}",
            "worst": f"{entry.fit.worst:.2f}",
            "costs": ", ".join(f"{name} {text}" for name, text in entry.curve.model_dump()["costs"].items()),
        }
        for device, entry in calibration.curves
    ]


def _network_rows(calibration: "Calibration") -> list[dict[str, str]]:
    keys = ("samples", "median_error", "worst")
    return [
        {"kind": kind, "ranks": str(ranks), **dict(zip(keys, found.shown(), strict=True))}
        for (kind, ranks), found in calibration.communication.items()
    ]
