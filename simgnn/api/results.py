"""What :func:`simgnn.simulate` and :func:`simgnn.run` return: figures, tables, timelines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simgnn.analysis.compare import op_times
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.record.result import Accuracy, Result, read_result
from simgnn.record.rundir import RunDirectory
from simgnn.report import page
from simgnn.report.results import (
    TEXTS,
    figures,
    figures_by_epoch,
    figures_by_rank,
    heading,
    qualifications,
    result_lines,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, repr=False)
class Outcome:
    """A prediction or a run. ``result``: what ``result.json`` holds, in SI units; ``directory``: the run directory,
    None for a prediction that was not written."""

    result: Result
    directory: Path | None

    def table(self, by: Literal["experiment", "rank", "epoch"] = "experiment") -> "pd.DataFrame":
        """Return the figures of the experiment as one row, to be concatenated with others, or a row for each rank or
        epoch. Units are those of the names: ``_s`` seconds, ``_bytes`` bytes, ``_J`` joules."""
        # pandas: loaded when a table is made
        import pandas as pd

        rows = {"experiment": figures, "rank": figures_by_rank, "epoch": figures_by_epoch}
        if by not in rows:
            raise ConfigError(f"table: got by = {by!r}, expected one of {', '.join(map(repr, rows))}")
        frame = pd.DataFrame(rows[by](self.result))
        # numbers that nobody knows, so that tables with and without them can be concatenated
        unknown = [name for name in frame.columns.difference(list(TEXTS)) if frame[name].isna().all()]
        return frame.astype(dict.fromkeys(unknown, float))

    def timeline(self, epoch: int | None = None) -> "go.Figure":
        """Draw what each rank did in an epoch, counted from 1 (default: the second, or the only one). Raises
        :class:`~simgnn.errors.ConfigError` if there is no trace, or if it lacks the epoch."""
        return timeline_of({self.result.name: self}, heading(self.result), epoch)

    def _op_times(self) -> "pd.DataFrame":
        if self.directory is None or not RunDirectory(self.directory).trace.is_file():
            raise ConfigError(f"'{self.result.name}' has no trace: it ended with status '{self.result.status}'")
        return op_times(RunDirectory(self.directory))

    def __repr__(self) -> str:
        lines = [heading(self.result), *map(" ".join, result_lines(self.result)[:2])]
        return f"{type(self).__name__}({'; '.join(lines)})"

    def _repr_html_(self) -> str:
        table = page.table(["", "value"], result_lines(self.result), heading(self.result))
        limits = {} if self.result.limited_by is None else self.result.limited_by.lines()
        told = [f"limited by {name}: {text}" for name, text in limits.items()]
        return table + page.bullets([*told, *qualifications(self.result)])


@dataclass(frozen=True, repr=False)
class Run(Outcome):
    """A run that has trained. It stands for its directory wherever a path is expected. ``experiment``: what was run;
    None if the run was read from a directory."""

    directory: Path
    experiment: Experiment | None = None

    @property
    def losses(self) -> tuple[float, ...]:
        """The training loss of each epoch."""
        return tuple(self.result.loss or ())

    @property
    def accuracies(self) -> tuple[Accuracy, ...]:
        """Train, validation and test accuracy of the epochs that were evaluated; micro-F1 where vertices have several
        labels."""
        return tuple(self.result.accuracy or ())

    def __fspath__(self) -> str:
        return str(self.directory)


def read_outcome(directory: Path) -> Outcome:
    """Read a run directory that a prediction or a run has written. Raises :class:`~simgnn.errors.ConfigError` if it
    holds no result."""
    result = read_result(RunDirectory(directory).result)
    return (Run if result.backend == "executor" else Outcome)(result, directory)


def timeline_of(sides: Mapping[str, Outcome], title: str, epoch: int | None) -> "go.Figure":
    """Draw one epoch of outcomes, named by ``sides``, below one another."""
    # plotly and pandas: loaded when a timeline is drawn
    from simgnn.report.timeline import timeline

    return timeline({name: outcome._op_times() for name, outcome in sides.items()}, title, epoch)
