"""Find profile files: by path, in the folders of ``$SIMGNN_HWPROFILES``, then among the shipped ones."""

import os
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

from simgnn.errors import HardwareError
from simgnn.outside import expanded
from simgnn.spelling import nearest

SUFFIX = ".toml"
CACHE_NAME = "SIMGNN_CACHE"
KEPT_FOR = timedelta(days=1)
"""How long the samples of an interrupted calibration are reused. After that the machine may have changed."""


def shipped_folder() -> Path:
    """Return the folder of the profiles that are part of the package."""
    return Path(str(files("hwprofiles")))


def calibration_path() -> Path:
    """Return the file of the last calibration: ``$SIMGNN_CACHE`` (default ~/.cache/simgnn)/hardware.toml."""
    folder = Path(os.environ.get(CACHE_NAME) or "~/.cache/simgnn").expanduser()
    return folder / f"hardware{SUFFIX}"


def known_profiles() -> dict[str, Path]:
    """Return the files of all named profiles. Earlier folders take precedence for equal names."""
    named = os.environ.get("SIMGNN_HWPROFILES", "").split(os.pathsep)
    folders = [*(Path(part).expanduser() for part in named if part), shipped_folder()]
    return {path.stem: path for folder in reversed(folders) for path in sorted(folder.glob(f"*{SUFFIX}"))}


def find_profile(name: str) -> Path:
    """Return the file of a profile by path or name. Raises :class:`HardwareError` that lists the known names."""
    path = expanded(name)
    if path.is_file():
        return path
    known = known_profiles()
    if name in known:
        return known[name]
    if path.suffix == SUFFIX or os.sep in name:
        raise HardwareError(f"{name}: no such hardware profile; expected a file, or one of: {', '.join(sorted(known))}")
    raise HardwareError(
        f"hardware.profile: got '{name}'{nearest(name, known)}; expected a file or one of: {', '.join(sorted(known))}. "
        "Measure this machine with `simgnn calibrate`."
    )
