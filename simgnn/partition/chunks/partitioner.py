"""Base class of partitioners that divide each partition into chunks."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from simgnn.graph.graph import Graph
from simgnn.hardware.price.transfer_rates import TransferRates
from simgnn.partition.chunks.orders import Candidate
from simgnn.partition.chunks.volumes import PeerRows
from simgnn.policy import Assignment, Partitioner
from simgnn.program.sizes import IntArray


@dataclass(frozen=True)
class ChunkSettings:
    """How partitions are divided into chunks, and how the order of chunks is chosen: all that the chunks of a given
    partition depend on. ``vertex_weight``: work of a vertex beside its in-edges; ``with_self``: a chunk needs the rows
    of its own vertices, too; ``candidates``, ``peer_rows``, ``rates``: see
    :func:`simgnn.partition.chunks.reorganise.reorganise`."""

    chunks: int
    vertex_weight: float
    with_self: bool
    candidates: tuple[Candidate, ...]
    peer_rows: PeerRows
    rates: TransferRates | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rates = None if self.rates is None else self.rates.model_dump(mode="json")
        return {
            "chunks": self.chunks,
            "vertex_weight": self.vertex_weight,
            "with_self": self.with_self,
            "candidates": list(self.candidates),
            "peer_rows": self.peer_rows,
            "rates": rates,
        }

    @property
    def chooses(self) -> bool:
        """Whether there is more than the initial order to choose from."""
        return bool(set(self.candidates) - {"initial"})


class ChunkedPartitioner(Partitioner, ABC):
    """A partitioner that takes the parts of another one and divides each into chunks. What does not ask for chunks sees
    the other one's parts: the partition is the same to the last bit.

    The planner fills in ``rates`` where the order of chunks depends on them. They may be stated, too: then no hardware
    profile is read for them."""

    chunked: ClassVar[bool] = True

    rates: TransferRates | None = Field(
        default=None,
        description="bytes per second from the host to a device, between devices, and of use again in place, by which "
        "an order of chunks is chosen; default: read off the hardware profile",
    )

    @abstractmethod
    def parts_of(self, hosts: IntArray) -> Partitioner:
        """The partitioner whose parts are divided into chunks. ``hosts`` int64 [P]: the host of each rank."""

    @property
    @abstractmethod
    def stated_chunks(self) -> int | None:
        """The stated number of chunks of each part; None: as many as memory asks for."""

    @abstractmethod
    def in_chunks(self, chunks: int) -> Self:
        """A copy that states this number of chunks."""

    @abstractmethod
    def settings(self, chunks: int | None = None) -> ChunkSettings:
        """How parts are divided into chunks; ``chunks``: as many instead of the stated number."""

    def timed(self, rates: TransferRates) -> Self:
        """A copy that chooses the order of chunks by ``rates``."""
        return self.model_copy(update={"rates": rates})

    def filled(self) -> dict[str, Any]:
        return {} if self.rates is None else {"rates": self.rates.model_dump(mode="json", exclude_none=True)}

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        return self.parts_of(hosts).divide(graph, hosts, seed, spill)
