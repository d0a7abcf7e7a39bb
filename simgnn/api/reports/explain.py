"""Explains where an epoch goes: its critical path, waits, links, and how it changes with what it depends on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.waits import waits_between
from simgnn.api.experiments import PathLike, load_experiment, path_of
from simgnn.api.predict import ChosenProfile, Prediction, predict
from simgnn.api.reports.effects import effects_of_numbers, effects_of_options, even_work
from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.hardware.profile.profile import load_profile
from simgnn.planner.directory import recorded_experiment
from simgnn.program.program import Program
from simgnn.progress import Progress, progress_of
from simgnn.record.epoch_kinds import kinds_of
from simgnn.record.explanation import Effect, ExplainedEpoch, Explanation, LinkUse, PathPart, RankWaits
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import TRACE_SCHEMA, RunDirectory, read_table
from simgnn.record.summary import computing_ops
from simgnn.registry import reported
from simgnn.report import page
from simgnn.report.explanation import effect_rows, explanation_lines, part_rows, rank_rows
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.limited_by.critical_path import critical_path
from simgnn.sim.limited_by.find import NO_EFFECT, seconds_by_rank, steps_of, time_spent, typical_epoch
from simgnn.tomlfile import load_toml

if TYPE_CHECKING:
    import pandas as pd

Trace = Mapping[str, NDArray[Any]]
Table = Literal["path", "ranks", "effects"]
TABLES: Mapping[Table, Callable[[Explanation], list[dict[str, Any]]]] = MappingProxyType(
    {"path": part_rows, "ranks": rank_rows, "effects": effect_rows}
)
MOST_EPOCHS = 20
"""Epochs that are predicted, unless the user states a number: a typical epoch needs no more."""


@dataclass(frozen=True, repr=False)
class Explained:
    """An explanation, and the prediction that it rests on."""

    explanation: Explanation
    prediction: Prediction

    def table(self, of: Table = "path") -> "pd.DataFrame":
        """Return the parts of the epoch, what each rank does, or how the epoch changes with each number, as rows; times
        in seconds."""
        # pandas: loaded when a table is made
        import pandas as pd

        if of not in TABLES:
            raise ConfigError(f"table: got of = {of!r}, expected one of {', '.join(map(repr, TABLES))}")
        return pd.DataFrame(TABLES[of](self.explanation))

    def _repr_html_(self) -> str:
        tables: list[str] = [
            self.table(of).to_html(index=False, float_format="{:.4g}".format, na_rep="-") for of in TABLES
        ]
        return "".join([page.bullets(explanation_lines(self.explanation)), *tables])

    def __repr__(self) -> str:
        return f"Explained({'; '.join(explanation_lines(self.explanation)[:2])})"


def explain(
    target: PathLike | Experiment,
    *,
    hardware: PathLike | None = None,
    ranks: int | None = None,
    epochs: int | None = None,
    set: Mapping[str, Any] | None = None,
    activity: PathLike | None = None,
    progress: Progress | Callable[[str], None] | None = None,
) -> Explained:
    """Say where an epoch of an experiment, or of a finished run (its directory), goes, and what would change it.

    The other arguments are those of :func:`simgnn.simulate`. A run directory brings its own experiment, profile and
    decisions: only ``hardware`` may be named beside it. Raises :class:`~simgnn.errors.SimgnnError` for what cannot be
    predicted, also for what runs out of memory."""
    directory = None if isinstance(target, Experiment) else run_directory(Path(target))
    if directory is None:
        loaded = load_experiment(target, hardware=hardware, ranks=ranks, epochs=epochs, set=set)
        if epochs is None:
            loaded = shortened(loaded)
        return explain_loaded(loaded, path_of(activity, "--activity"), progress_of(progress))
    if ranks is not None or epochs is not None or set or activity is not None:
        raise ConfigError(
            f"explain: got the run {directory} with ranks, epochs, set or activity, expected the run alone: it has its "
            "own; to change one, name the experiment instead"
        )
    return explain_run(directory, path_of(hardware, "--hardware"), progress_of(progress))


def run_directory(path: Path) -> Path | None:
    """Return ``path`` if it is the directory of a run; None if it names an experiment. Raises :class:`ConfigError` for
    other directories."""
    if not path.is_dir():
        return None
    if not RunDirectory(path).result.is_file():
        raise ConfigError(f"explain: got the folder {path}, which holds no result; expected an experiment or a run")
    return path


def shortened(experiment: Experiment) -> Experiment:
    """Return the experiment with at most ``MOST_EPOCHS`` epochs."""
    return load_experiment(experiment, epochs=min(experiment.train.epochs, MOST_EPOCHS))


def explain_loaded(experiment: Experiment, activity: Path | None, progress: Progress) -> Explained:
    """Explain a loaded experiment as :func:`explain` does."""
    return _explained(predict(experiment, progress, activity=activity, limits=False), None, progress)


def explain_run(directory: Path, hardware: Path | None, progress: Progress) -> Explained:
    """Explain a finished run: its measured epochs, and the sensitivity of what is predicted for it on its own profile.

    Raises :class:`ConfigError` for a directory without a finished run, whose experiment names code, or for whose
    program another one is planned now."""
    run = RunDirectory(directory)
    result = read_result(run.result)
    if result.status != "ok":
        raise ConfigError(f"explain: got {directory}, whose run ended with status '{result.status}'; expected 'ok'")
    experiment = own_experiment(directory)
    named = hardware if hardware is not None else run.hardware if run.hardware.is_file() else None
    if named is not None:
        experiment = load_experiment(experiment, hardware=str(named))
    activity = directory if run.activity.is_file() and result.backend == "executor" else None
    chosen = None if named is None else ChosenProfile(load_profile(named), str(named))
    prediction = predict(experiment, progress, chosen, activity=activity, limits=False)
    if prediction.result.program_digest != result.program_digest:
        raise ConfigError(
            f"explain: got {directory}, whose program {result.program_digest[:12]} differs from the one that is "
            f"planned now, {prediction.result.program_digest[:12]}: graph, partition or simgnn have changed; run again"
        )
    return _explained(prediction, (run, result), progress)


def own_experiment(directory: Path) -> Experiment:
    """Load the experiment of a run directory. One that names code of the user's is refused: a run directory never
    causes code to be imported."""
    model = load_toml(RunDirectory(directory).experiment).get("model", {})
    if ":" in str(model.get("kind", "")):
        raise ConfigError(
            f"explain: got {directory}, whose model.kind = '{model['kind']}' is code of your own; expected a model of "
            "simgnn, as a run directory never causes code to be imported: name the experiment's file, with --activity "
            f"{directory}"
        )
    return recorded_experiment(directory, load_experiment("vanilla"))


def _explained(prediction: Prediction, run: tuple[RunDirectory, Result] | None, progress: Progress) -> Explained:
    result, simulation = prediction.result, prediction.simulation
    if result.status != "ok" or result.epoch_s_median is None:
        raise BackendError(f"explain: nothing to explain, as memory runs out: {result.message}")
    median = result.epoch_s_median
    jitter_s = max(median - simulation.epoch_s_median, 0.0) if prediction.spread.jitter_known else 0.0
    predicted = _epoch_of(prediction, simulation.columns, simulation.epoch_s, jitter_s)
    measured, measured_s = None, None
    if run is not None and run[1].backend == "executor":
        table = read_table(run[0].trace, TRACE_SCHEMA)
        columns = {name: table.column(name).to_numpy() for name in TRACE_SCHEMA.names}
        measured, measured_s = _epoch_of(prediction, columns, run[1].epoch_s, 0.0), run[1].epoch_s_median
    with reported(getattr(prediction.prepared.experiment, slot) for slot in SLOTS):
        progress.stage("predicting evenly spread work")
        even = even_work(prediction)
        effects = [*effects_of_numbers(prediction, progress), *effects_of_options(prediction, progress)]
    changed = [one for one in effects if _largest_change(one, median) >= NO_EFFECT or one.refused]
    explanation = Explanation(
        name=result.name,
        hardware=result.hardware,
        ranks=result.ranks,
        epoch_s=median,
        epoch_s_interval=result.epoch_s_interval,
        predicted=predicted,
        measured=measured,
        measured_s=measured_s,
        even_work=even,
        links=_links(prediction),
        effects=sorted(changed, key=lambda one: (-one.gain(median), -_largest_change(one, median), one.key)),
        without_effect=[one.key for one in effects if one not in changed],
        uncalibrated=result.uncalibrated,
        notes=list(result.notes),
    )
    return Explained(explanation, prediction)


def _largest_change(effect: Effect, epoch_s: float) -> float:
    known = [seconds for seconds in (effect.better_s, effect.worse_s) if seconds is not None]
    return max((abs(seconds / epoch_s - 1.0) for seconds in known), default=0.0)


def _epoch_of(prediction: Prediction, columns: Trace, epoch_s: Sequence[float], jitter_s: float) -> ExplainedEpoch:
    """Explain a typical epoch of a trace, simulated or measured, of the predicted program."""
    simulation, machine = prediction.simulation, prediction.machine
    program, sizes = simulation.program, Sizes(simulation.program, prediction.replay.activity)
    epoch = typical_epoch(epoch_s, kinds_of(program.calendar, len(epoch_s))[-1].epochs)
    path = critical_path(simulation.compiled, columns, sizes, epoch)
    parts = time_spent(path, list(steps_of(path, machine, sizes, prediction.prepared.stats)), jitter_s)
    waits, on_path = waits_between(program, columns, epoch), seconds_by_rank(path)
    computed = _compute_s(program, columns, epoch)
    return ExplainedEpoch(
        epoch=epoch,
        epoch_s=sum(part.seconds for part in parts),
        path=[PathPart(**part._asdict()) for part in parts],
        ranks=[
            RankWaits(
                rank=rank,
                compute_s=float(computed[rank]),
                on_path_s=on_path.get(rank, 0.0),
                waits_s=float(waits[rank].sum()),
                longest_for=int(waits[rank].argmax()) if waits[rank].any() else None,
                waited_for_s=float(waits[:, rank].sum()),
            )
            for rank in range(program.ranks)
        ],
        waits=waits.tolist(),
    )


def _compute_s(program: Program, columns: Trace, epoch: int) -> NDArray[np.float64]:
    """Seconds that each rank computes in a training epoch, [P]."""
    mine = (columns["step"] >= 0) & (columns["epoch"] == epoch) & computing_ops(program)[columns["op_id"]]
    lasted = (columns["ended_s"] - columns["issued_s"])[mine]
    computed = np.zeros(program.ranks)
    np.add.at(computed, columns["rank"][mine], lasted)
    return computed


def _links(prediction: Prediction) -> list[LinkUse]:
    traffic, machine = prediction.result.traffic, prediction.machine
    rates = {link.name: link.capacity_bytes_per_s for link in machine.links}
    found = []
    for one in [] if traffic is None else traffic.by_link:
        rate = rates[one.busiest]
        used = one.busiest_bytes / rate / prediction.simulation.epoch_s_median
        found.append(LinkUse(**one.model_dump(), bytes_per_s=rate, utilisation=used))
    return found
