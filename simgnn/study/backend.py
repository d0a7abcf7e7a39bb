"""What a study needs of the commands: to calibrate, prepare, predict and run (:mod:`simgnn.cli.backend`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.prepare import Prepared
from simgnn.program.program import Program
from simgnn.record.result import Result
from simgnn.sampling.batches.sizes import BatchSizes


@dataclass(frozen=True)
class Predicted:
    """A prediction and what it was made of."""

    result: Result
    program: Program
    machine: Machine


@dataclass(frozen=True)
class Counted:
    """What predicting a prepared experiment without its graph needs: statistics of the partition, and for mini-batches
    the sizes of every batch and the number of hot rows that they were counted with."""

    stats: PartitionStats
    sizes: BatchSizes | None = None
    hot_rows: int = 0

    @classmethod
    def of(cls, prepared: Prepared) -> "Counted":
        assert prepared.partition is not None
        stats, batches = prepared.partition.stats, prepared.batches
        return cls(stats) if batches is None else cls(stats, batches.sizes, batches.placement.cached_rows)


class Backend(Protocol):
    """Each method is one command's work and may raise :class:`simgnn.errors.SimgnnError`."""

    def calibrate(self, ranks: Sequence[int], quick: bool, passes: int, out: Path) -> None:
        """Measure this machine, ``passes`` times over, and write its profile to ``out``, whole or not at all."""

    def declare(self, testbed: Path, base: Path, out: Path) -> None:
        """Write the profile of a testbed as its file declares it, on the devices of the profile ``base``."""

    def check(self, experiment: Experiment) -> None:
        """Check that an experiment can be prepared and predicted."""

    def prepare(self, experiment: Experiment, out: Path) -> Counted:
        """Write the run directory of an experiment, ready to be started."""

    def predict(self, experiment: Experiment, profile: Profile, counted: Path | None = None) -> Predicted:
        """Simulate an experiment whose graph is a statistics file, on batches of the sizes in the file ``counted``."""

    def check_testbed(self) -> None:
        """Raise :class:`simgnn.errors.ConfigError` where this machine cannot have testbeds, before any work."""

    def up(self, testbed: Path) -> None:
        """Bring a testbed up. Nothing is left to be taken down when this raises."""

    def down(self, testbed: Path) -> None:
        """Remove a testbed that :meth:`up` has brought up, whatever became of it since."""

    def run(self, directory: Path, testbed: Path | None) -> Result:
        """Train a prepared run directory in fresh processes, on this machine or inside a testbed that is up."""

    def canary(self) -> float:
        """Seconds that a fixed piece of reference work takes now, in a fresh process."""

    def tell(self, text: str) -> None:
        """Report a line of progress."""
