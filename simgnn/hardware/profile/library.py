"""Where profiles lie: a path, then the folders of ``$SIMGNN_HWPROFILES``, then the ones shipped in ``hwprofiles``."""

import os
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

from simgnn.errors import HardwareError
from simgnn.spelling import nearest

SUFFIX = ".toml"
CACHE_NAME = "SIMGNN_CACHE"
KEPT_FOR = timedelta(days=1)
"""How long samples of an interrupted calibration are used. Later the machine may have changed."""


def shipped_folder() -> Path:
    """The folder of the profiles that come with the package."""
    return Path(str(files("hwprofiles")))


def calibration_path() -> Path:
    """Where the last calibration of this machine is kept: ``$SIMGNN_CACHE`` (default ~/.cache/simgnn)/hardware.toml."""
    folder = Path(os.environ.get(CACHE_NAME) or "~/.cache/simgnn").expanduser()
    return folder / f"hardware{SUFFIX}"


def known_profiles() -> dict[str, Path]:
    """Every profile that has a name; the first folder that has a name wins."""
    named = os.environ.get("SIMGNN_HWPROFILES", "").split(os.pathsep)
    folders = [*(Path(part).expanduser() for part in named if part), shipped_folder()]
    return {path.stem: path for folder in reversed(folders) for path in sorted(folder.glob(f"*{SUFFIX}"))}


def find_profile(name: str) -> Path:
    """The file of a profile that is given by path or by name, or a :class:`HardwareError` that lists the names."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    known = known_profiles()
    if name in known:
        return known[name]
    if path.suffix == SUFFIX or os.sep in name:
        raise HardwareError(f"{name}: no such hardware profile; expected a file, or one of: {', '.join(sorted(known))}")
    raise HardwareError(
        f"hardware.profile: got '{name}'{nearest(name, known)}; expected a file or one of: {', '.join(sorted(known))}; "
        "measure this machine with `simgnn calibrate`"
    )
