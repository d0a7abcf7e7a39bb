"""``simgnn validate``: score predictions against runs."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.options import JsonOption, path_option

if TYPE_CHECKING:
    import subprocess

    from simgnn.cli.console import Reporter
    from simgnn.experiment.schema import Experiment
    from simgnn.hardware.profile import Profile
    from simgnn.record.result import Result
    from simgnn.study.backend import Counted, Predicted


def command(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="A TOML file, or quick, testbed, issue2, nccl, published.",
                            show_default=False)
    ],
    out: Annotated[
        Path | None,
        path_option(
            "--out", "DIR", "Folder of the validation; default runs/validate/SUITE. An interrupted one goes on there."
        ),
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Run nothing: score today's simulator against the runs kept of the "
                           "suite, or of the folder that --out names.")
    ] = False,
    keep: Annotated[
        Path | None,
        path_option("--keep", "DIR", "Afterwards, copy the ground truth (small files) to a new folder."),
    ] = None,
    report: Annotated[Path | None, path_option("--report", "FILE", "Write a self-contained HTML report.")] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Predict the experiments of a suite, run them, and say how good the predictions were.

    Drawing, calibrating and predicting come before the first run and are frozen. Exit status 1: a bar does not hold.
    Example: [bold]simgnn validate quick --report quick.html[/bold]
    """
    from simgnn.cli.calibrate_measure import check_counts
    from simgnn.cli.console import Reporter, note, print_json
    from simgnn.outputs import check_output_file, make_parent
    from simgnn.report.validation import print_scoreboard, write_report
    from simgnn.study.kept import truth_folder
    from simgnn.study.suite import find_suite, load_suite
    from simgnn.study.truth import TruthFolder
    from simgnn.study.validate import check_keep, check_stored, validate
    from simgnn.study.validate import keep as keep_truth
    from simgnn.study.validate import rescore as score_again
    from simgnn.tomlfile import load_toml

    if keep is not None:
        check_keep(keep)
    if report is not None:
        check_output_file(report, "--report")
    backend = CommandBackend(Reporter(quiet=as_json))
    if rescore:
        folder = out or truth_folder(suite)
        if out is not None:
            check_stored(out, load_suite(find_suite(suite)))
        board = score_again(folder, backend)
        holds = bool(board.guarded) if out is None else board.holds
    else:
        path = find_suite(suite)
        kind = load_toml(path).get("kind", "runs")
        if kind in ("published", "collectives"):
            _of_others(kind, path, backend, as_json, out, keep, report)
            return
        loaded = load_suite(path)
        folder = out or Path("runs") / "validate" / loaded.name
        if not TruthFolder(folder).profile.is_file():
            check_counts(loaded.calibration.ranks, "calibration.ranks")
        board = validate(loaded, folder, backend)
        holds = board.holds
    if keep is not None:
        keep_truth(folder, keep)
    if report is not None:
        make_parent(report)
        write_report(board, report)
    if as_json:
        print_json({**board.as_dict(), "folder": str(folder)})
    else:
        print_scoreboard(board)
        note(f"validation in {folder}" + ("" if report is None else f", report in {report}"))
    if not holds:
        raise typer.Exit(1)


def _of_others(kind: str, path: Path, backend: "CommandBackend", as_json: bool, *files: Path | None) -> None:
    """Score against results of others: nothing is run, so nothing is written."""
    from simgnn.cli.console import print_json
    from simgnn.errors import ConfigError
    from simgnn.report.validation_published import print_collectives, print_published
    from simgnn.study.collectives import load_collectives, score_collectives
    from simgnn.study.published import load_published, published_folder
    from simgnn.study.published_score import score_published

    if any(file is not None for file in files):
        raise ConfigError("--out, --keep, --report: a suite of others' results runs nothing; leave them out")
    if kind == "published":
        published = score_published(load_published(path), published_folder(), backend)
        table, holds = published.as_dict(), published.holds
        if not as_json:
            print_published(published)
    else:
        collectives = score_collectives(load_collectives(path))
        table, holds = collectives.as_dict(), collectives.holds
        if not as_json:
            print_collectives(collectives)
    if as_json:
        print_json(table)
    if not holds:
        raise typer.Exit(1)


class CommandBackend:
    """The commands' own work, as a study needs it (:class:`simgnn.study.backend.Backend`)."""

    def __init__(self, reporter: "Reporter") -> None:
        from simgnn.cli.console import Reporter

        self._reporter = reporter
        self._quiet = Reporter(quiet=True)
        self._holders: dict[Path, subprocess.Popen[str]] = {}

    def tell(self, text: str) -> None:
        """A line of progress."""
        self._reporter.stage(text)

    def calibrate(self, ranks: Sequence[int], quick: bool, passes: int, out: Path) -> None:
        """``simgnn calibrate``."""
        from simgnn.cli.calibrate import calibrate

        calibrate(out, quick=quick, ranks=ranks, reporter=self._reporter, passes=passes)

    def declare(self, testbed: Path, base: Path, out: Path, measure_load: bool = False) -> None:
        """``executor testbed profile``; ``measure_load``: with what was measured inside."""
        from simgnn.cli.testbed import call_testbed

        words = ["--measure-load"] if measure_load else []
        call_testbed("profile", str(testbed), "--base", str(base), "--out", str(out), *words)

    def check(self, experiment: "Experiment") -> frozenset[str]:
        """``simgnn run --prepare`` and the beginning of ``simgnn simulate``, nothing kept but the caches."""
        from simgnn.cli.predict import check_declared
        from simgnn.errors import ConfigError
        from simgnn.experiment.prepare import prepare
        from simgnn.record.activity import decisions_in

        prepared = prepare(experiment, need_graph=True)
        check_declared(prepared)
        program = prepared.planned.program
        if decisions_in(program) - set(experiment.freshness.scheduled(program, experiment.train.epochs)):
            raise ConfigError(
                f"freshness.kind: got '{experiment.freshness.label}', of which what is sent depends on values that "
                "only training produces; expected one that needs no record of a run: nothing measured may flow into a "
                "prediction"
            )
        return frozenset(work.primitive for _, op in program.ops for work in op.work)

    def prepare(self, experiment: "Experiment", out: Path) -> "Counted":
        """``simgnn run --prepare``."""
        from simgnn.cli.engine import check_executor
        from simgnn.cli.train import write_run
        from simgnn.experiment.prepare import prepare
        from simgnn.hardware.profile import load_profile
        from simgnn.study.backend import Counted

        check_executor()
        prepared = prepare(experiment, need_graph=True)
        assert experiment.hardware.profile is not None
        write_run(prepared, load_profile(experiment.hardware.profile), out, self._quiet, force=True)
        return Counted.of(prepared)

    def predict(self, experiment: "Experiment", profile: "Profile", counted: Path | None = None) -> "Predicted":
        """``simgnn simulate``."""
        from simgnn.cli.predict import predict
        from simgnn.cli.profiles import ChosenProfile
        from simgnn.hardware.machine import Machine
        from simgnn.study.backend import Predicted

        prediction = predict(experiment, self._quiet, ChosenProfile(profile, profile.meta.name, False), counted=counted)
        threads = experiment.hardware.threads_per_rank
        hosts = prediction.prepared.experiment.rank_hosts()
        machine = Machine.place(profile, hosts, None if threads == "auto" else threads)
        return Predicted(prediction.result, prediction.simulation.program, machine)

    def check_testbed(self) -> None:
        """``executor testbed status``: 1 says that none is up."""
        from simgnn.cli.testbed import call_testbed

        call_testbed("status", fine=(0, 1))

    def up(self, testbed: Path) -> None:
        """``executor testbed up --hold``: a process of its own takes it down, also when this one is killed."""
        from simgnn.cli.testbed import check_ended, start_testbed

        said = []
        holder = start_testbed("up", str(testbed), "--hold", *_named(testbed), holds=True)
        assert holder.stdout is not None
        try:
            for line in holder.stdout:
                said.append(line)
                if line.startswith("testbed '"):
                    self._holders[testbed] = holder
                    return
        except BaseException:  # Ctrl-C is answered here: it does not reach the holder
            holder.communicate()
            raise
        check_ended(holder, "".join(said), "up")

    def down(self, testbed: Path) -> None:
        """The end of what holds it; what that leaves, if it was killed, is removed."""
        from simgnn.cli.testbed import call_testbed

        holder = self._holders.pop(testbed)
        said, _ = holder.communicate()
        if holder.returncode:
            call_testbed("down", str(testbed), "--orphaned", *_named(testbed))
            self.tell(f"what held the testbed ended with status {holder.returncode}; it is removed\n{said}".rstrip())

    def run(self, directory: Path, testbed: Path | None) -> "Result":
        """``executor run``, here or in a testbed."""
        from simgnn.cli.engine import start_executor
        from simgnn.cli.testbed import call_testbed
        from simgnn.record.result import read_result
        from simgnn.record.rundir import RunDirectory

        if testbed is None:
            start_executor(directory, [], lambda line: None)
        else:
            call_testbed("run", str(testbed), str(directory), *_named(testbed))
        return read_result(RunDirectory(directory).result)

    def canary(self) -> float:
        """The reference work."""
        from simgnn.study.canary import canary_seconds

        return canary_seconds()


def _named(testbed: Path) -> list[str]:
    """What gives a testbed another name than others of this machine, the same in each call: that of its file's folder.
    One that was left there when all was killed is then found again."""
    folder = str(testbed.resolve().parent)
    return ["--name", f"validate-{hashlib.sha256(folder.encode()).hexdigest()[:10]}"]
