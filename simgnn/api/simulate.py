"""Predicts an experiment on a hardware profile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simgnn.api.experiments import PathLike, load_experiment, path_of
from simgnn.api.predict import Prediction, predict, write_prediction
from simgnn.experiment.schema import Experiment
from simgnn.planner.directory import check_free
from simgnn.progress import Progress, progress_of


def simulate(
    experiment: PathLike | Experiment,
    *,
    hardware: PathLike | None = None,
    ranks: int | None = None,
    epochs: int | None = None,
    set: Mapping[str, Any] | None = None,
    activity: PathLike | None = None,
    out: PathLike | None = None,
    force: bool = False,
    thorough: bool = False,
    progress: Progress | Callable[[str], None] | None = None,
) -> Prediction:
    """Predict how long an experiment takes, what it sends and how much memory it needs; loads no torch.

    ``experiment``, ``hardware``, ``ranks``, ``epochs``, ``set``: as in :func:`simgnn.load_experiment`; without a
    profile, this machine's last calibration. ``activity``: a run whose decisions are replayed. ``out``: run directory
    to write, ``force``: also in place of an earlier one. ``thorough``: check what limits the epoch also where
    that takes many simulations. ``progress`` gets lines of text, as ``print`` does.

    If memory runs out, ``result.status`` is "oom" and there are no times. Raises
    :class:`~simgnn.errors.SimgnnError` for what cannot be predicted."""
    loaded = load_experiment(experiment, hardware=hardware, ranks=ranks, epochs=epochs, set=set)
    recorded, directory = path_of(activity, "--activity"), path_of(out, "--out")
    return simulate_loaded(loaded, recorded, directory, force, thorough, progress_of(progress))


def simulate_loaded(
    experiment: Experiment,
    activity: Path | None,
    directory: Path | None,
    force: bool,
    thorough: bool,
    progress: Progress,
    record: Sequence[str] = (),
) -> Prediction:
    """Predict a loaded experiment as :func:`simulate` does. ``record``: words of the command that the error message
    names where a recorded run is missing (default: of the experiment by its name)."""
    if directory is not None:
        check_free(directory, force)
    prediction = predict(experiment, progress, activity=activity, thorough=thorough, record=record)
    if directory is None:
        return prediction
    return replace(prediction, directory=write_prediction(prediction, directory, force))
