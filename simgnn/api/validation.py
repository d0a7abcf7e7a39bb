"""Scores predictions of a suite against measured runs, or against results of others."""

from dataclasses import dataclass
from pathlib import Path

from simgnn.api.backend import CommandBackend
from simgnn.api.measuring import check_counts
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file, make_parent
from simgnn.progress import Progress
from simgnn.report.validation import write_report
from simgnn.study.collectives import CollectiveBoard, load_collectives, score_collectives
from simgnn.study.published.score import PublishedBoard, score_published
from simgnn.study.published.suite import load_published, published_folder
from simgnn.study.validate import suite_runs
from simgnn.study.validate.ground_truth import TruthFolder
from simgnn.study.validate.scoreboard import Scoreboard
from simgnn.study.validate.suite_file import find_suite, load_suite, truth_folder
from simgnn.tomlfile import load_toml


@dataclass(frozen=True)
class Validation:
    """The scores of a suite; whether they hold its bars (not if a noisy machine makes them inconclusive, which
    ``board.outcome`` says); the folder of its runs, None if nothing was run."""

    board: Scoreboard | PublishedBoard | CollectiveBoard
    holds: bool
    folder: Path | None


def validate(
    suite: str, out: Path | None, rescore: bool, keep: Path | None, report: Path | None, progress: Progress
) -> Validation:
    """Predict the experiments of a suite, run them, and score the predictions.

    ``out``: folder of the runs, default runs/validate/SUITE. ``rescore``: run nothing; score today's simulator against
    the runs kept of the suite, or of ``out``. ``keep``: new folder for a copy of the ground truth; ``report``: HTML
    page to write. Raises :class:`ConfigError` for a suite that cannot be run."""
    if keep is not None:
        suite_runs.check_keep(keep)
    if report is not None:
        check_output_file(report, "--report")
    backend = CommandBackend(progress)
    if rescore:
        folder = out or truth_folder(suite)
        if out is not None:
            suite_runs.check_stored(out, load_suite(find_suite(suite)))
        board = suite_runs.rescore(folder, backend)
    else:
        path = find_suite(suite)
        kind = load_toml(path).get("kind", "runs")
        if kind in ("published", "collectives"):
            if out or keep or report:
                raise ConfigError(
                    "--out, --keep, --report: a suite of published results runs nothing; remove these options"
                )
            return _score_others(kind, path, backend)
        loaded = load_suite(path)
        folder = out or Path("runs") / "validate" / loaded.name
        if not TruthFolder(folder).profile.is_file():
            check_counts(loaded.calibration.ranks, "calibration.ranks")
        board = suite_runs.validate(loaded, folder, backend)
    if keep is not None:
        suite_runs.keep(folder, keep)
    if report is not None:
        make_parent(report)
        write_report(board, report)
    return Validation(board, board.outcome == "passed", folder)


def _score_others(kind: str, path: Path, backend: CommandBackend) -> Validation:
    """Score predictions against results of others; nothing is run or written."""
    if kind == "published":
        published = score_published(load_published(path), published_folder(), backend)
        return Validation(published, published.as_dict()["holds"], None)
    collectives = score_collectives(load_collectives(path))
    return Validation(collectives, collectives.as_dict()["holds"], None)
