"""Writes one self-contained HTML page of a prediction, a run, both, several outcomes, or a validation."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from simgnn.analysis.compare import compare_runs, op_times
from simgnn.api.backend import CommandBackend
from simgnn.api.experiments import PathLike, path_of
from simgnn.api.predict import Prediction, write_prediction
from simgnn.api.reports.explain import explain_run
from simgnn.api.results import Outcome
from simgnn.errors import ConfigError
from simgnn.locks import scratch_folder
from simgnn.outputs import check_output_file, make_parent
from simgnn.progress import Progress, progress_of
from simgnn.record.plan import read_plan
from simgnn.record.result import read_result
from simgnn.record.rundir import MEMORY_SCHEMA, TRAFFIC_SCHEMA, RunDirectory, read_table
from simgnn.report.outcome_page.sections import Side, page_parts, several_parts
from simgnn.report.page import write_page
from simgnn.report.results import heading
from simgnn.report.validation import write_report as write_validation
from simgnn.study.validate import suite_runs
from simgnn.study.validate.ground_truth import TruthFolder

PAGE = "report.html"


def write_report(
    *outcomes: Outcome | PathLike,
    out: PathLike | None = None,
    explain: bool = False,
    epoch: int | None = None,
    progress: Progress | Callable[[str], None] | None = None,
) -> Path:
    """Write a page that needs no network: of one outcome, of a prediction and a run overlaid, of several side by side,
    or of the folder of a validation. Returns its path.

    ``outcomes``: what :func:`simgnn.simulate` and :func:`simgnn.run` return, or run directories. ``out``: the file,
    default report.html in the first directory. ``explain``: also predict what would change the epoch, which needs
    the graph. ``epoch``: which one timelines show, from 1 (default: the second). Raises
    :class:`~simgnn.errors.ConfigError` for folders that hold no result."""
    told = progress_of(progress)
    if not outcomes:
        raise ConfigError("report: got nothing, expected at least one outcome or run directory")
    first = outcomes[0]
    written = path_of(out, "--out")
    if written is None and isinstance(first, Outcome) and first.directory is None:
        raise ConfigError("report: got a prediction that was not written, expected out = 'FILE.html' beside it")
    with ExitStack() as scratch:
        folders = [_folder(one, scratch) for one in outcomes]
        path = folders[0] / PAGE if written is None else written
        check_output_file(path, "--out")
        make_parent(path)
        if len(folders) == 1 and TruthFolder(folders[0]).profile.is_file() and not _has_result(folders[0]):
            if explain or epoch is not None:
                raise ConfigError(f"--explain, --epoch: got them with {folders[0]}, a validation; expected a run")
            write_validation(suite_runs.rescore(folders[0], CommandBackend(told)), path)
            return path
        _check(folders)
        if len(folders) > 2:
            if explain or epoch is not None:
                raise ConfigError(f"--explain, --epoch: got them with {len(folders)} outcomes, expected one or two")
            results = [(folder.name, read_result(RunDirectory(folder).result)) for folder in folders]
            write_page(path, f"{len(results)} outcomes", several_parts(results))
            return path
        _write(folders, path, explain, epoch, told)
    return path


def _folder(outcome: Outcome | PathLike, scratch: ExitStack) -> Path:
    """Return the run directory of an outcome; a prediction that was not written has one until ``scratch`` closes."""
    if not isinstance(outcome, Outcome):
        return Path(outcome)
    if outcome.directory is not None:
        return outcome.directory
    assert isinstance(outcome, Prediction), "everything else was read from a directory"
    return write_prediction(outcome, scratch.enter_context(scratch_folder("simgnn-report-")) / "prediction")


def _has_result(folder: Path) -> bool:
    return RunDirectory(folder).result.is_file()


def _check(folders: Sequence[Path]) -> None:
    problems = [
        f"report: got {folder}, which holds no result.json; expected the directory of a prediction (simgnn simulate "
        "--out), of a finished run, or the folder of a validation alone"
        for folder in folders
        if not _has_result(folder)
    ]
    if problems:
        raise ConfigError(problems)


def _write(folders: Sequence[Path], path: Path, explain: bool, epoch: int | None, progress: Progress) -> None:
    runs = [RunDirectory(folder) for folder in folders]
    results = [read_result(run.result) for run in runs]
    comparison = None
    if len(folders) == 2:
        comparison = compare_runs(*folders)
        names = list(comparison.sides)
    else:
        names = ["predicted" if results[0].backend == "sim" else "measured"]
    explanation = explain_run(folders[-1], None, progress).explanation if explain else None
    sides = [_side(name, run) for name, run in zip(names, runs, strict=True)]
    title = " and ".join(dict.fromkeys(heading(result) for result in results))
    write_page(path, title, page_parts(sides, comparison, explanation, epoch))


def _side(name: str, run: RunDirectory) -> Side:
    result = read_result(run.result)
    timed = result.status == "ok" and run.trace.is_file()
    return Side(
        name=name,
        result=result,
        ops=op_times(run) if timed else None,
        memory=read_table(run.memory, MEMORY_SCHEMA).to_pandas() if run.memory.is_file() else None,
        shares=_shares_to_other_hosts(run) if timed and run.traffic.is_file() else {},
    )


def _shares_to_other_hosts(run: RunDirectory) -> dict[tuple[int, int], float]:
    """Of the payload that a (op_id, rank) sends, the share for ranks of other hosts."""
    hosts = np.array(read_plan(run.plan / "plan.json").hosts)
    table = read_table(run.traffic, TRAFFIC_SCHEMA).to_pandas()
    table["far"] = table["bytes"].where(hosts[table["source"]] != hosts[table["target"]], 0)
    sums = table.groupby(["op_id", "source"])[["far", "bytes"]].sum()
    sums = sums[sums["bytes"] > 0]
    return dict(zip(sums.index.tolist(), (sums["far"] / sums["bytes"]).tolist(), strict=True))
