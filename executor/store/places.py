"""Where the row of a vertex lies, as a rank sees it: partition, serving rank, position."""

from dataclasses import dataclass
from functools import cached_property

import torch

from simgnn.errors import BackendError, GraphError
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving


@dataclass(frozen=True)
class Places:
    """Rows by gid for ``rank``: partition q of ``maps`` lies at host q of ``serving``. Raises :class:`BackendError`
    where there are not as many partitions as hosts."""

    rank: int
    maps: IdMaps
    serving: Serving

    def __post_init__(self) -> None:
        if self.maps.parts != self.serving.parts:
            raise BackendError(
                f"the store got {self.maps.parts} partitions for {self.serving.parts} hosts; expected one for each"
            )

    @property
    def host(self) -> int:
        """The host, and partition, of this rank."""
        return self.serving.hosts[self.rank]

    @property
    def rows(self) -> int:
        """Rows that this host holds."""
        return len(self.maps.core(self.host))

    @cached_property
    def _starts(self) -> torch.Tensor:
        return torch.from_numpy(self.maps.node_map)

    @cached_property
    def _servers(self) -> torch.Tensor:
        return torch.from_numpy(self.serving.servers[self.rank])

    def part_of(self, gids: torch.Tensor) -> torch.Tensor:
        """Partition, int64 [k], of ``gids`` int64 [k]; :class:`GraphError` for one that is none of 0..V-1."""
        if gids.dtype != torch.int64 or gids.dim() != 1:
            raise GraphError(f"gids: expected int64 [k], got {gids.dtype} {list(gids.shape)}")
        return torch.from_numpy(self.maps.part_of(gids.numpy()))

    def position_of(self, gids: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Place of each among the rows of its partition, int64 [k]."""
        return gids - self._starts[part]

    def server_of(self, part: torch.Tensor) -> torch.Tensor:
        """The rank that serves each partition to this one; this one, for its own."""
        return self._servers[part]
