"""Compares a prediction with a run, op by op."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simgnn.analysis.compare import PARTS, SIDES, Comparison, compare_runs
from simgnn.api.experiments import PathLike, path_of
from simgnn.api.predict import TRACE_EPOCHS, Prediction, write_prediction
from simgnn.api.results import Outcome, Run, read_outcome, timeline_of
from simgnn.api.simulate import simulate
from simgnn.errors import ConfigError
from simgnn.locks import scratch_folder
from simgnn.outputs import check_output_file, make_parent
from simgnn.progress import Progress
from simgnn.record.rundir import RunDirectory
from simgnn.report import page
from simgnn.report.perfetto import write_perfetto
from simgnn.report.text import COMMUNICATION, communication_columns, communication_rows, comparison_lines

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, repr=False)
class RunComparison:
    """Where two outcomes differ. ``comparison``: all figures; ``sides``: what is compared, prediction first."""

    comparison: Comparison
    sides: tuple[Outcome, Outcome]

    def table(self, by: Literal["op", "kind"] = "op") -> "pd.DataFrame":
        """Return a row for each op (or op kind), the largest difference first: seconds of a mean epoch, averaged over
        ranks, of both sides, and those of computing, waiting and transferring."""
        # pandas: loaded when a table is made
        import pandas as pd

        if by not in ("op", "kind"):
            raise ConfigError(f"table: got by = {by!r}, expected 'op' or 'kind'")
        found = self.comparison.ops if by == "op" else self.comparison.kinds
        named = dict(zip(SIDES, (side.replace(" ", "_") for side in self.comparison.sides), strict=True))
        rows = [
            {
                **({"op": one.op} if by == "op" else {}),
                "kind": one.kind,
                **{f"{name}_s": getattr(one.whole, f"{side}_s") for side, name in named.items()},
                "difference_s": one.whole.difference_s,
                "error": one.whole.error,
                **{f"{part}_{name}_s": getattr(getattr(one, part), f"{side}_s")
                   for part in PARTS for side, name in named.items()},
            }
            for one in sorted(found, key=lambda one: (-abs(one.whole.difference_s), one.op, one.kind))
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def timeline(self, epoch: int | None = None) -> "go.Figure":
        """Draw what the ranks of both sides did in an epoch, counted from 1 (default: the second, or the only one)."""
        title = " and ".join(self.comparison.sides)
        return timeline_of(dict(zip(self.comparison.sides, self.sides, strict=True)), title, epoch)

    def __repr__(self) -> str:
        return f"RunComparison({'; '.join(comparison_lines(self.comparison)[:2])})"

    def _repr_html_(self) -> str:
        table: str = self.table("kind").to_html(index=False, float_format="{:.4g}".format, na_rep="-")
        parts = [page.bullets(comparison_lines(self.comparison)), table]
        if self.comparison.communication is not None:
            rows = communication_rows(self.comparison.communication)
            parts.append(page.table(communication_columns(self.comparison), rows, COMMUNICATION))
        return "".join(parts)


def compare(
    first: Outcome | PathLike,
    second: Outcome | PathLike | None = None,
    *,
    trace: PathLike | None = None,
    progress: Progress | Callable[[str], None] | None = None,
) -> RunComparison:
    """Compare a prediction with a run (or two of a kind): results of :func:`simgnn.simulate` and :func:`simgnn.run`, or
    run directories. A run alone is compared with what is predicted for it now: its experiment on its hardware, with
    the decisions that it recorded.

    ``trace``: file to write both timelines to, for ui.perfetto.dev. Raises :class:`~simgnn.errors.ConfigError` when a
    side holds no finished run, when the programs differ, or for a run directory alone."""
    written = path_of(trace, "--trace")
    if written is not None:
        check_output_file(written, "--trace")
    if second is None:
        first, second = _predicted(first, progress), first
    with ExitStack() as scratch:
        given = (first, second)
        paths = [_directory(side, scratch) for side in given]
        comparison = compare_runs(*paths)
        if written is not None:
            make_parent(written)
            sides = dict(zip(comparison.sides, paths, strict=True))
            predictions = [side for side in sides if side.startswith("predicted")]
            write_perfetto(sides, written, TRACE_EPOCHS, predictions=predictions)
        one, two = (
            side if isinstance(side, Outcome) else read_outcome(path) for side, path in zip(given, paths, strict=True)
        )
    return RunComparison(comparison, (one, two))


def _predicted(run: Outcome | PathLike, progress: Progress | Callable[[str], None] | None) -> Prediction:
    if not isinstance(run, Run) or run.experiment is None:
        # a run directory never causes code to be imported, and its experiment may name some
        raise ConfigError("compare: got one side, which simgnn.run did not return; expected a prediction and a run")
    profile = RunDirectory(run.directory).hardware
    hardware = profile if profile.is_file() else None
    return simulate(run.experiment, hardware=hardware, activity=run, progress=progress)


def _directory(side: Outcome | PathLike, scratch: ExitStack) -> Path:
    """Return the run directory of a side; a prediction that was not written has one until ``scratch`` closes."""
    if not isinstance(side, Outcome):
        return Path(side)
    if side.directory is not None:
        return side.directory
    assert isinstance(side, Prediction), "everything else was read from a directory"
    return write_prediction(side, scratch.enter_context(scratch_folder("simgnn-compare-")) / "prediction")
