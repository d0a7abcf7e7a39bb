"""Which hardware profile a command uses when none is named."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgnn.experiment.schema import Experiment
    from simgnn.hardware.profile import Profile

FALLBACK_PROFILE = "cpu-generic"
"""Shipped profile for a machine that was never calibrated."""


@dataclass(frozen=True)
class ChosenProfile:
    """A profile, its name or path, and whether it stands in for a calibration that was never made."""

    profile: "Profile"
    label: str
    uncalibrated: bool


def last_calibration() -> Path:
    """Where ``simgnn calibrate`` keeps this machine's last profile."""
    from simgnn.partition.folder import cache_folder

    return cache_folder(None) / "calibration" / "last.toml"


def choose_profile(experiment: "Experiment") -> ChosenProfile:
    """The profile that the experiment names; else this machine's last calibration; else a shipped one, uncalibrated."""
    from simgnn.hardware.profile import load_profile

    named = experiment.hardware.profile
    if named is not None:
        return ChosenProfile(load_profile(named), named, False)
    last = last_calibration()
    if last.is_file():
        return ChosenProfile(load_profile(str(last)), str(last), False)
    return ChosenProfile(load_profile(FALLBACK_PROFILE), FALLBACK_PROFILE, True)


def default_cluster(profile: "Profile") -> tuple[int, int]:
    """Hosts and ranks per host of an experiment that names none: all hosts of the profile, a rank on every device."""
    return len(profile.hosts), min(len(host.devices) for host in profile.hosts)
