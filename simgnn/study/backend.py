"""Interface to the commands that a study needs: calibrate, prepare, predict and run (:mod:`simgnn.api.backend`)."""

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
    """A prediction, with the program and the machine that it was made from."""

    result: Result
    program: Program
    machine: Machine


@dataclass(frozen=True)
class Counted:
    """Replaces the graph when a prepared experiment is predicted: statistics of the partition and, for mini-batches,
    the sizes of every batch, counted with a cache of ``hot_rows`` remote rows on each rank."""

    stats: PartitionStats
    sizes: BatchSizes | None = None
    hot_rows: int = 0

    @classmethod
    def of(cls, prepared: Prepared) -> "Counted":
        assert prepared.partition is not None
        stats, batches = prepared.partition.stats, prepared.batches
        return cls(stats) if batches is None else cls(stats, batches.sizes, batches.placement.cached_rows)


class Backend(Protocol):
    """Commands that a study calls. Each method may raise :class:`simgnn.errors.SimgnnError`."""

    def calibrate(self, ranks: Sequence[int], quick: bool, passes: int, out: Path) -> None:
        """Measure this machine in ``passes`` passes, and write the profile to ``out``, complete or not at all."""

    def declare(self, testbed: Path, base: Path, out: Path) -> None:
        """Write the profile of a testbed: links as the testbed's file declares, devices of the profile ``base``."""

    def check(self, experiment: Experiment) -> None:
        """Raise an error unless an experiment can be prepared and predicted."""

    def prepare(self, experiment: Experiment, out: Path) -> Counted:
        """Write the run directory of an experiment, ready to be started."""

    def predict(self, experiment: Experiment, profile: Profile, counted: Path | None = None) -> Predicted:
        """Simulate an experiment on a statistics file. ``counted``: a file with the sizes of its batches."""

    def check_testbed(self) -> None:
        """Raise :class:`simgnn.errors.ConfigError` if this machine cannot run testbeds."""

    def up(self, testbed: Path) -> None:
        """Start a testbed. If this raises, there is nothing to remove."""

    def down(self, testbed: Path) -> None:
        """Remove a testbed that :meth:`up` started, even if it has failed since."""

    def run(self, directory: Path, testbed: Path | None) -> Result:
        """Train a prepared run directory in new processes, on this machine or inside a running testbed."""

    def canary(self) -> float:
        """Measure the seconds of a fixed piece of reference work, in a new process."""

    def tell(self, text: str) -> None:
        """Report a line of progress."""
