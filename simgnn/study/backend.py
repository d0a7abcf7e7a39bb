"""What a study needs of the commands: to calibrate, prepare, predict and run. ``simgnn.cli.commands.validate`` supplies
it."""

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
    """What predicting a prepared experiment needs without its graph: statistics of the partition; on mini-batches the
    sizes of every batch, and with how many hot rows they were counted."""

    stats: PartitionStats
    sizes: BatchSizes | None = None
    hot_rows: int = 0

    @classmethod
    def of(cls, prepared: Prepared) -> "Counted":
        """Of an experiment that was prepared with its graph."""
        assert prepared.partition is not None
        stats, batches = prepared.partition.stats, prepared.batches
        return cls(stats) if batches is None else cls(stats, batches.sizes, batches.placement.cached_rows)


class Backend(Protocol):
    """Each of these is one command's work. They raise :class:`simgnn.errors.SimgnnError`."""

    def calibrate(self, ranks: Sequence[int], quick: bool, passes: int, out: Path) -> None:
        """Measure this machine, ``passes`` times over, and write its profile to ``out``, whole or not at all."""

    def declare(self, testbed: Path, base: Path, out: Path) -> None:
        """Write the profile of a testbed as its file declares it, on the devices of the profile ``base``."""

    def check(self, experiment: Experiment) -> frozenset[str]:
        """Go through all that preparing and predicting an experiment takes short of a profile, and write no run
        directory; the primitives of its work."""

    def prepare(self, experiment: Experiment, out: Path) -> Counted:
        """Write the run directory of an experiment, ready to be started."""

    def predict(self, experiment: Experiment, profile: Profile, counted: Path | None = None) -> Predicted:
        """Simulate an experiment whose graph is a statistics file, on batches of the sizes in the file ``counted``."""

    def check_testbed(self) -> None:
        """Raise :class:`simgnn.errors.ConfigError` where this machine cannot have testbeds, before any work."""

    def up(self, testbed: Path) -> None:
        """Bring a testbed up. What raises leaves nothing to be taken down."""

    def down(self, testbed: Path) -> None:
        """Remove a testbed that :meth:`up` has brought up, whatever became of it since."""

    def run(self, directory: Path, testbed: Path | None) -> Result:
        """Train a prepared run directory in fresh processes, on this machine or inside a testbed that is up."""

    def canary(self) -> float:
        """Seconds that a fixed piece of reference work takes now, in a fresh process."""

    def tell(self, text: str) -> None:
        """A line of progress."""
