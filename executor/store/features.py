"""Named rows of all vertices, pulled by gid.

Ops of the program pull a step's input rows, and count and time them: op ``fetch`` makes the same round of request and
reply as :meth:`FeatureStore.pull`, and op ``exchange`` sends rows that were planned ahead. Use the store's own methods
for data outside of steps, such as labels, which are pulled when a run begins.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.handlers.wire import request_rows
from executor.state.buffers import TORCH_TYPES
from executor.state.context import GroupHandle
from executor.store.shared import shared_rows
from simgnn.errors import GraphError
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving

BLOCK_ROWS = 1 << 16
"""Number of rows copied at once when shared memory is filled."""


@dataclass(frozen=True)
class Places:
    """The location of the row of each vertex, for ``rank``: host q of ``serving`` holds partition q of ``maps``."""

    rank: int
    maps: IdMaps
    serving: Serving

    @property
    def host(self) -> int:
        """The host of this rank, which has the same number as its partition."""
        return self.serving.hosts[self.rank]

    @property
    def rows(self) -> int:
        """The number of rows that this host holds."""
        return len(self.maps.core(self.host))

    def part_of(self, gids: torch.Tensor) -> torch.Tensor:
        """Return the partition, int64 [k], of ``gids`` int64 [k]. Raises :class:`GraphError` for an unknown gid."""
        return torch.from_numpy(self.maps.part_of(gids.numpy()))

    def position_of(self, gids: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Return the position of each gid among the rows of its partition, int64 [k]."""
        return gids - torch.from_numpy(self.maps.node_map)[part]

    def server_of(self, part: torch.Tensor) -> torch.Tensor:
        """Return the rank that serves each partition to this rank; for its own partition, that is this rank."""
        return torch.from_numpy(self.serving.servers[self.rank])[part]


class FeatureStore:
    """One rank's access to the store. ``group``: all P ranks, on the CPU. One thread per rank makes all calls."""

    def __init__(self, places: Places, group: GroupHandle) -> None:
        assert group.members == tuple(range(places.serving.ranks)), "the store's group is all ranks"
        self.places = places
        self.group = group
        self._tables: dict[str, torch.Tensor] = {}

    def share(self, name: str, width: int, dtype: str, load: Callable[[], NDArray[Any]]) -> None:
        """Store rows under ``name``; every rank calls it. ``load``: called only by the first rank of each host, returns
        the host's rows [n, width] in the order of their gids, of ``dtype``; they may be memory-mapped. Raises, on all
        ranks, :class:`GraphError` for other rows and :class:`BackendError` if shared memory is missing or too small."""
        shape = self.places.rows, width

        def fill(table: torch.Tensor) -> None:
            rows = load()
            if rows.shape != shape or rows.dtype.name != dtype:
                raise GraphError(
                    f"rows '{name}' of host {self.places.host}: expected dense {dtype} {list(shape)}, "
                    f"got {type(rows).__name__} {rows.dtype.name} {list(rows.shape)}"
                )
            for start in range(0, len(rows), BLOCK_ROWS):
                # a copy: torch takes no read-only array, and a mapped file need not fit in memory twice
                block = np.array(rows[start : start + BLOCK_ROWS])
                table[start : start + len(block)] = torch.from_numpy(block)

        writer = self.places.serving.writer(self.places.host)
        self._tables[name] = shared_rows(shape, TORCH_TYPES[dtype], writer, fill, self.group)

    def table(self, name: str) -> torch.Tensor:
        """Return this host's rows [n, F], in place: all ranks of the host see changes that one of them makes."""
        return self._tables[name]

    def pull(self, name: str, gids: torch.Tensor) -> torch.Tensor:
        """Return the rows [k, F] of ``gids`` int64 [k], in their order. Every rank calls it. A gid that occurs several
        times is requested as often. With one host nothing is sent. Raises :class:`GraphError` for an unknown gid."""
        table, part = self.table(name), self.places.part_of(gids)
        position = self.places.position_of(gids, part)
        if self.places.serving.parts == 1:
            return table.index_select(0, position)
        own = part == self.places.host
        here, remote = own.nonzero().view(-1), own.logical_not().nonzero().view(-1)
        rows = table.new_empty((len(gids), table.shape[1]))
        rows.index_copy_(0, here, table.index_select(0, position[here]))
        reply = request_rows(table, self.places.server_of(part[remote]), position[remote], self.group)
        return rows.index_copy_(0, remote[reply.places], reply.rows)
