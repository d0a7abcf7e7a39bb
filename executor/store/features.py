"""Named rows of all vertices, pulled by gid.

A step's input rows are pulled by ops of the program, which count and time them: op ``fetch`` makes the same round as
:meth:`FeatureStore.pull`, op ``exchange`` brings rows that were planned ahead. Calls of the store are for what is no
part of a step: labels of a rank's training vertices are pulled when a run begins. Gradients of rows that are learned
(``placement.sparse_embedding``) are pushed by ops, too: :mod:`executor.minibatch.embeddings`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.handlers.wire import request_rows
from executor.state.buffers import TORCH_TYPES
from executor.state.context import GroupHandle
from executor.store.places import Places
from executor.store.shared import shared_rows
from simgnn.errors import BackendError, GraphError

BLOCK_ROWS = 1 << 16
"""Rows that are copied at once when shared memory is filled."""


class FeatureStore:
    """One rank's end of the store. ``group``: all P ranks; its calls are made by one thread, in one order on all ranks.

    A wrong call on one rank raises there; the others learn of it as of any rank that is lost.
    """

    def __init__(self, places: Places, group: GroupHandle) -> None:
        expected = tuple(range(places.serving.ranks))
        if group.members != expected or group.device.type != "cpu":
            raise BackendError(
                f"the store needs a group of all {len(expected)} ranks on the CPU (Gloo: ids and rows lie in host "
                f"memory); got {group.members} on {group.device.type}"
            )
        self.places = places
        self.group = group
        self._tables: dict[str, torch.Tensor] = {}

    def share(self, name: str, width: int, dtype: str, load: Callable[[], NDArray[Any]]) -> None:
        """Hold rows under ``name``; every rank calls it. ``load``: called by the first rank of each host only, gives
        the host's rows [n, width] in the order of their gids, of ``dtype``; they may be memory-mapped.

        Raises :class:`GraphError` for other rows, :class:`BackendError` where shared memory is missing or too small; on
        all ranks when it happens on one.
        """
        if name in self._tables or width < 1 or dtype not in TORCH_TYPES:
            raise BackendError(
                f"the store got rows '{name}' of width {width} and dtype '{dtype}'; expected a new name, a width of at "
                f"least 1 and a dtype of {', '.join(TORCH_TYPES)}"
            )
        shape = self.places.rows, width

        def fill(table: torch.Tensor) -> None:
            rows = load()
            if not isinstance(rows, np.ndarray) or rows.shape != shape or rows.dtype.name != dtype:
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
        """This host's rows [n, F], in place: what one of its ranks writes there, all see."""
        if name not in self._tables:
            raise BackendError(f"the store has no rows '{name}'; it has: {', '.join(sorted(self._tables)) or 'none'}")
        return self._tables[name]

    def pull(self, name: str, gids: torch.Tensor) -> torch.Tensor:
        """The rows [k, F] of ``gids`` int64 [k], in their order and as often as they are named there. Every rank calls
        it.

        Rows of other hosts travel as often as they are named. With one host nothing is called on the group. Raises
        :class:`GraphError` for a gid that is none of 0..V-1.
        """
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
