"""Base classes of policies that train chunk by chunk: what brings a chunk's rows, and what stays on the host."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from simgnn.emit.batches.on_rank import OfOne, RankAction
from simgnn.emit.batches.placement import Placement
from simgnn.policy import Action, CommunicationTraits, Moves

Intermediates = Literal["hybrid", "recompute"]
"""What backward starts from: sums that were kept on the host (hybrid), or input rows, from which everything is computed
again (recompute)."""
Topology = Literal["resident", "streamed"]
"""Where the edges of chunks lie: on devices, or on hosts, from where each step copies those of its chunk."""


class ChunkCommunication(CommunicationTraits, ABC):
    """A choice of slot ``communication`` that moves rows of chunks between hosts and devices.

    ``reuses``: rows that the batch before left in the merged buffer stay there; ``peers``: a row that several ranks
    need is loaded by its owner alone, from whose device the others read it."""

    moves: ClassVar[Moves] = "chunks"
    dense_inputs: ClassVar[bool] = True

    @property
    def acts(self) -> bool:
        """Always true: ranks ask which rows they move."""
        return True

    @property
    @abstractmethod
    def reuses(self) -> bool: ...

    @property
    @abstractmethod
    def peers(self) -> bool: ...

    def resends_inputs(self) -> bool:
        """Input rows move in every epoch, as those of all layers."""
        return True


class TakeEdges(RankAction[OfOne]):
    """Choose the edges of the chunk of a step among those of all chunks, which lie in the buffer that its op reads."""

    starts_from_zeros: ClassVar[bool] = False


class ChunkPlacement(Placement, ABC):
    """A placement that keeps rows in the memory of hosts; devices hold one layer of one chunk at a time."""

    serves: ClassVar[tuple[Moves, ...]] = ("chunks",)
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (TakeEdges,)

    @abstractmethod
    def kept(self, attends: bool, built_in: bool) -> Intermediates:
        """What backward starts from, for layers that attend or not, of simgnn's own or the user's."""

    @abstractmethod
    def edges_lie(self) -> Topology:
        """Where the edges of chunks lie."""
