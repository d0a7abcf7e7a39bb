"""Base class of partitioners that change the parts of another one so that they suit the devices of the ranks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simgnn.graph.graph import Graph
from simgnn.hardware.price.device_times import DeviceTimes
from simgnn.policy import Assignment, Partitioner
from simgnn.program.sizes import IntArray

if TYPE_CHECKING:
    from simgnn.partition.statistics.partition_stats import PartitionStats

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Shares of a part's halo rows at which its memory is known, descending."""


class PartMemory(BaseModel):
    """Memory of the program on one part, in bytes. ``at_shares``: with each of :data:`SHARES` of its halo rows and all
    its edges; ``edge_bytes``: what an edge less saves; ``fixed_bytes``: the part of it that no part of a graph changes,
    such as parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    at_shares: tuple[float, ...] = Field(min_length=len(SHARES), max_length=len(SHARES))
    edge_bytes: float = Field(ge=0)
    fixed_bytes: float = Field(ge=0)

    def without(self, rows: int, edges: int, halo_rows: int) -> float:
        """Return the bytes without ``rows`` of ``halo_rows`` rows and without ``edges`` edges. Peaks of memory are
        convex in both, so that this is at least what the program needs, if others send as many rows as before."""
        kept = 1.0 - rows / halo_rows if halo_rows else 1.0
        return float(np.interp(kept, SHARES[::-1], self.at_shares[::-1])) - edges * self.edge_bytes


class LayerWidths(NamedTuple):
    """Widths of a layer's rows: those that it sums over edges, and those before and after its product."""

    summed: int
    before: int
    after: int


class FittedPartitioner(Partitioner, ABC):
    """A partitioner that starts from the parts of another one, gives them to ranks, and drops halo rows of parts.

    The planner fills in ``devices`` and, where a part may not fit into memory, ``memory``, by :meth:`fitted`. Both may
    be stated, too: then no hardware profile is read for them."""

    fits_devices: ClassVar[bool] = True

    devices: tuple[DeviceTimes, ...] | None = Field(
        default=None,
        description="times of five operations and memory of each rank's device; default: read off the hardware profile",
    )
    memory: tuple[PartMemory, ...] | None = Field(
        default=None,
        description="memory of each part by the share of its halo rows that is kept; default: that of the program, "
        "where a part may not fit",
    )
    budget_bytes: int = Field(
        default=0, ge=0, le=2**62,
        description="memory that each rank may take, where its device has more; default: placement.device_bytes; 0: "
        "none",
    )  # fmt: skip

    def fitted(self, devices: Sequence[DeviceTimes], layers: Sequence[LayerWidths]) -> Self:
        """A copy for ranks on ``devices`` that train ``layers``."""
        return self.model_copy(update={"devices": tuple(devices)})

    def within(self, budget_bytes: int) -> Self:
        """A copy for ranks that may not take more than ``budget_bytes`` (0: all that their devices have), the budget
        that the placement states."""
        return self.model_copy(update={"budget_bytes": budget_bytes})

    def budgets(self) -> IntArray:
        """Return the memory that the program may take on each rank, int64 [P]: what its device has, less what is
        reserved, or the stated budget if that is less."""
        assert self.devices is not None
        free = np.array([device.memory_bytes - self.reserved_bytes for device in self.devices], dtype=np.int64)
        return np.minimum(free, self.budget_bytes) if self.budget_bytes else free

    def remembering(self, memory: Sequence[PartMemory]) -> Self:
        """A copy for parts that take this much ``memory``, by number of the part."""
        return self.model_copy(update={"memory": tuple(memory)})

    def filled(self) -> dict[str, Any]:
        table = self.model_dump(mode="json", include={"devices", "memory"}, exclude_none=True)
        if self.budget_bytes:
            table["budget_bytes"] = self.budget_bytes
        return {name: table[name] for name in sorted(table)}

    @property
    @abstractmethod
    def reserved_bytes(self) -> int:
        """Memory of each rank's device that the program must leave free."""

    @abstractmethod
    def starts_from(self, hosts: IntArray) -> Partitioner:
        """The partitioner whose parts this one starts from. ``hosts`` int64 [P]: the host of each rank."""

    @abstractmethod
    def placed(self, edges: IntArray, hosts: IntArray, seed: int) -> IntArray:
        """The part that each rank gets, int64 [P], on the host that the part was made for. ``edges`` [P]: local edges
        of each part."""

    @abstractmethod
    def costs(self, rows: IntArray, edges: IntArray, halo_edges: IntArray, hosts: IntArray) -> NDArray[np.float64]:
        """The cost of each rank, float64 [P], which is to be even on each host, in units of its own. ``rows`` [P]:
        owned vertices; ``edges`` [P]: local edges, ``halo_edges`` of them from halo rows."""

    @abstractmethod
    def refined(self, graph: Graph, owner: NDArray[np.int32], hosts: IntArray, seed: int) -> Assignment:
        """The parts ``owner`` int32 [V] of :meth:`starts_from`, given to ranks, without the halo rows that are
        dropped."""

    @abstractmethod
    def row_tables(
        self, graph: Graph, owner: NDArray[np.int32], halos: Sequence[IntArray], hosts: IntArray
    ) -> dict[str, IntArray]:
        """Tables ``ROW_EDGES`` and ``ROW_ORDER`` of the parts ``owner`` int32 [V] of :meth:`starts_from`, for
        :meth:`refined_statistics`. ``halos``: the vertices of the halo rows of each part, in their order."""

    @abstractmethod
    def refined_statistics(self, stats: "PartitionStats", seed: int) -> "PartitionStats":
        """The statistics of what :meth:`refined` makes of parts, from statistics of these that have the tables of
        :meth:`row_tables`."""

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        owner = self.starts_from(hosts).divide(graph, hosts, seed, spill).owner
        return self.refined(graph, np.asarray(owner, dtype=np.int32), hosts, seed)
