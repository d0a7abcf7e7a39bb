"""Loads experiments for the functions of :mod:`simgnn.api`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simgnn.experiment.load import load_experiment as load
from simgnn.experiment.schema import Experiment
from simgnn.outputs import named_path

PathLike = str | os.PathLike[str]


def load_experiment(
    experiment: PathLike | Experiment,
    *,
    hardware: PathLike | None = None,
    ranks: int | None = None,
    epochs: int | None = None,
    set: Mapping[str, Any] | None = None,
) -> Experiment:
    """Load and check an experiment: a TOML file, the name of a shipped system, or an experiment that is to be changed.

    ``hardware``: a profile, by name or file (what :func:`simgnn.calibrate` returns is one, too). ``ranks``: the ranks
    of all hosts. ``set``: values by key, as ``{"train.epochs": 20}``; relative paths in them start at the working
    directory. Raises :class:`~simgnn.errors.ConfigError` with all faults at once."""
    given = experiment if isinstance(experiment, Experiment) else os.fspath(experiment)
    profile = None if hardware is None else os.fspath(hardware)
    return load(given, set or {}, ranks=ranks, epochs=epochs, hardware=profile)


def path_of(given: PathLike | None, option: str) -> Path | None:
    """Return ``given`` as a path; None stays None. Raises :class:`~simgnn.errors.ConfigError` if it is empty."""
    return None if given is None else named_path(os.fspath(given), option)
