"""What every choice of slot ``schedule`` is, and what mini-batches ask of it: how far ahead they are staged."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from simgnn.policy import ScheduleTraits
from simgnn.program.ops import Dependency


@dataclass(frozen=True)
class StepEnds:
    """Ops of a step by name. ``staged``: the last that brings rows; ``released``: the last that reads a batch;
    ``trained``: the last of all."""

    staged: str
    released: str
    trained: str


class Schedule(ScheduleTraits, ABC):
    """A choice of slot ``schedule``: which op runs when."""

    @abstractmethod
    def fitted(self, batches: int) -> "Schedule":
        """The same for a run of so many batches: none is waited for, and room made for, that the run does not have."""

    @property
    @abstractmethod
    def drawing_threads(self) -> int:
        """Batches that are drawn at once."""

    @property
    @abstractmethod
    def drawn_batches(self) -> int:
        """Batches whose blocks are held at once, the one in training included."""

    @abstractmethod
    def staged_batches(self, steps: int) -> int:
        """Batches whose input rows are held on the device at once, the one in training included, where an epoch has so
        many ``steps``."""

    @property
    @abstractmethod
    def pushes_beside(self) -> bool:
        """Whether what a step pushes may travel while the next step runs."""

    @abstractmethod
    def before_draw(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """What a batch's blocks wait for."""

    @abstractmethod
    def before_rows(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """What a batch's rows wait for, besides its blocks."""

    @abstractmethod
    def before_epoch(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """What the rows of an epoch's first batch wait for besides; nothing where epochs are like steps."""
