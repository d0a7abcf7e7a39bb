"""Measured runs in the repository, against which CI scores the simulator, and the worst score that it accepts."""

from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from simgnn.errors import ConfigError
from simgnn.schema_faults import sentences
from simgnn.spelling import nearest
from simgnn.study.validate.ground_truth import TruthFolder
from simgnn.study.validate.suite import Bars
from simgnn.tomlfile import load_toml


def kept_folder() -> Path:
    """The folder of the measured runs: one folder a suite."""
    return Path(str(resources.files("simgnn.study"))) / "truth"


def truth_folder(name: str) -> Path:
    """The folder of the measured runs of a shipped suite.

    Raises :class:`ConfigError` when there is none, or none with a bound: without one no score can fail.
    """
    kept = kept_folder()
    known = sorted(path.name for path in kept.iterdir() if path.is_dir()) if kept.is_dir() else []
    if name not in known:
        raise ConfigError(
            f"--rescore: no runs are kept of '{name}'{nearest(name, known)}; kept are: {', '.join(known) or 'none'}; "
            "name the folder of a finished validation with --out"
        )
    if load_bound(TruthFolder(kept / name).bound) is None:
        raise ConfigError(
            f"--rescore: got {kept / name} without a {TruthFolder(kept / name).bound.name}, expected the worst score "
            "that is accepted, such as median_error = 0.1; write it, or name the folder with --out"
        )
    return kept / name


def load_bound(path: Path) -> Bars | None:
    """The worst score that is accepted against measured runs, from a file of bars; None where there is no file.

    Raises :class:`ConfigError` with every fault, and for a file that states no bar.
    """
    if not path.is_file():
        return None
    try:
        bound = Bars.model_validate(load_toml(path))
    except ValidationError as error:
        raise ConfigError([f"{path}: {line}" for line in sentences(Bars, error)]) from None
    if not bound.stated():
        known = ", ".join(Bars.model_fields)
        raise ConfigError(f"{path}: got no bound, so no score can fail; expected one or more of {known}")
    return bound
