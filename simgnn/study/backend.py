"""What a study needs of the commands: to calibrate, predict, prepare and run. ``simgnn.cli.validate`` supplies it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from simgnn.experiment.schema import Experiment
from simgnn.hardware.machine import Machine
from simgnn.partition.stats import PartitionStats
from simgnn.program.program import Program
from simgnn.record.result import Result


@dataclass(frozen=True)
class Predicted:
    """A prediction and what it was made of."""

    result: Result
    program: Program
    stats: PartitionStats
    machine: Machine


class Backend(Protocol):
    """Each of these is one command's work. They raise :class:`simgnn.errors.SimgnnError`."""

    def calibrate(self, ranks: Sequence[int], quick: bool, out: Path) -> None:
        """Measure this machine and write its profile to ``out``."""

    def predict(self, experiment: Experiment) -> Predicted:
        """Simulate an experiment on the profile that it names."""

    def prepare(self, experiment: Experiment, out: Path) -> None:
        """Write the run directory of an experiment, ready to be started."""

    def run(self, directory: Path, testbed: Path | None) -> Result:
        """Train a prepared run directory in fresh processes, on this machine or inside a testbed that is up."""

    def canary(self) -> float:
        """Seconds that a fixed piece of reference work takes now, in a fresh process."""
