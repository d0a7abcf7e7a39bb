"""What every freshness is: how a sync of a communication is carried out."""

from abc import ABC, abstractmethod
from typing import ClassVar

from simgnn.policies.base import Policy
from simgnn.policies.codec.base import Codec
from simgnn.policies.sync import Sync
from simgnn.program.builder import ProgramBuilder


class Freshness(Policy, ABC):
    """A choice of slot ``freshness``."""

    slot: ClassVar[str] = "freshness"

    @abstractmethod
    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        """Emit the ops of a sync: which rows are sent, how ``codec`` encodes them, what becomes of those that are
        not sent."""
