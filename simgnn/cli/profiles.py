"""Which hardware profile a command uses when none is named, and the cluster that a profile stands for."""

from dataclasses import dataclass

from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.library import calibration_path
from simgnn.hardware.profile.profile import Profile, load_profile

FALLBACK_PROFILE = "cpu-100gbe-8"
"""Shipped profile that stands in for a machine that was never calibrated; its result says uncalibrated."""


@dataclass(frozen=True)
class ChosenProfile:
    """A profile, its name or path, and whether it stands in for a calibration that was never made."""

    profile: Profile
    label: str
    fallback: bool

    @property
    def uncalibrated(self) -> bool:
        """Whether its times were not measured on the machine that it describes."""
        return self.fallback or not self.profile.calibrated


def choose_profile(experiment: Experiment) -> ChosenProfile:
    """The profile that the experiment names; else this machine's last calibration; else a shipped one."""
    known = known_profile(experiment)
    return known or ChosenProfile(load_profile(FALLBACK_PROFILE), FALLBACK_PROFILE, True)


def known_profile(experiment: Experiment) -> ChosenProfile | None:
    """The profile that the experiment names, or this machine's last calibration, or None."""
    named = experiment.hardware.profile
    if named is not None:
        return ChosenProfile(load_profile(named), named, False)
    last = calibration_path()
    return ChosenProfile(load_profile(last), str(last), False) if last.is_file() else None


def default_cluster(profile: Profile) -> tuple[int, int]:
    """Hosts and ranks per host of an experiment that names none: all hosts of the profile, with a rank on every device.

    A machine whose cores are its device was calibrated with some numbers of ranks: the largest. A testbed declares it.
    """
    hosts = [host for _, host in profile.topology.host_names()]
    each = min(sum(placed.count for placed in host.devices) for host in hosts)
    return len(hosts), profile.usual_ranks(each)
