"""Ops that bring a mini-batch's input rows to its rank: one chain, each op after the one before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from simgnn.emit.batches.names import FEATURES, PLACES
from simgnn.emit.batches.on_rank import OfOne, RankAction
from simgnn.emit.builder import ProgramBuilder, accesses
from simgnn.policy import Action, Array, PolicyContext
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Dependency, Nature, Op, Transfer
from simgnn.program.sizes import Column, Route

Phase = Literal["forward", "setup"]


class LocateRows(RankAction[Callable[[PolicyContext, Array], tuple[Array, Array]]]):
    """Find a batch's input rows on other hosts: (rank, row on that rank) int64 [k] each, ordered by rank."""


class ServeRows(RankAction[OfOne]):
    """Gather the rows that other ranks need for a step's batches, ordered by rank."""


class StageInputs(RankAction[Callable[..., tuple[Array]]]):
    """Copy the rows of this host, and pulled rows if there are any, into the batch's input rows."""


def sent(route: str) -> Column:
    """Return the column that counts the rows that each rank sends along a route."""
    return Column(f"{route}/sent")


def received(route: str) -> Column:
    """Return the column that counts the rows that each rank receives along a route."""
    return Column(f"{route}/received")


def add_route(builder: ProgramBuilder, name: str, route: Route) -> None:
    """Add a route [pairs, epochs, steps], or [pairs], and the columns of the rows that each rank sends and receives."""
    builder.routes[name] = route
    for column, ends in ((sent(name), route.source), (received(name), route.target)):
        total = np.zeros((len(builder.hosts), *route.rows.shape[1:]), np.int64)
        np.add.at(total, ends, route.rows)
        builder.column(column.name, total)


@dataclass
class Staging:
    """Collects the ops of the staging chain. Rows have ``width`` elements of the training dtype."""

    builder: ProgramBuilder
    width: int
    ops: list[Op] = field(default_factory=list)

    @property
    def row_bytes(self) -> int:
        return self.width * self.builder.item_bytes

    def add(self, op: Op) -> None:
        """Append an op to the chain."""
        behind = (Dependency(self.ops[-1].name),) if self.ops else ()
        self.ops.append(replace(op, after=(*behind, *op.after)))

    def send(
        self, name: str, route: str, action: type[Action[Any]], phase: Phase = "forward", lasting: bool = False
    ) -> str:
        """Send rows, gathered by ``action``, to the ranks that wait for them, along a route whose sizes both ends know.

        Returns the buffer of the received rows. ``lasting``: see :class:`Buffer`."""
        builder = self.builder
        builder.keep_rows_of(route, sent(route))
        served = builder.buffer(f"{name}/served", sent(route), self.width, space="host", lasting=lasting)
        pulled = builder.buffer(f"{name}/pulled", received(route), self.width, space="host", lasting=lasting)
        moved: dict[str, Any] = {"transfer": Transfer(self.row_bytes), "route": route, "phase": phase}
        self._pick(f"{name}/serve", OpKind.COPY, accesses([FEATURES]), Access(served), sent(route), action, **moved)
        ends = accesses([served]), accesses([pulled])
        self.add(Op(f"{name}/exchange", OpKind.EXCHANGE, Nature.FETCHING, *ends, category="comm", **moved))
        return pulled

    def to_device(
        self, name: str, reads: Sequence[Access], writes: Access, rows: Column, action: type[Action[Any]],
        phase: Phase = "forward",
    ) -> None:  # fmt: skip
        """Copy rows from the host's memory to their places on the device."""
        transfer = Transfer(self.row_bytes, rows)
        self._pick(name, OpKind.H2D, reads, writes, rows, action, transfer=transfer, phase=phase)

    def on_device(
        self, name: str, reads: Sequence[Access], writes: Access, rows: Column, action: type[Action[Any]]
    ) -> None:
        """Copy rows within the device to their places."""
        self._pick(name, OpKind.SELECT, reads, writes, rows, action)

    def _pick(
        self, name: str, kind: OpKind, reads: Sequence[Access], writes: Access, rows: Column,
        action: type[Action[Any]], **fields: Any,
    ) -> None:  # fmt: skip
        """Add an op that gathers ``rows`` rows one by one."""
        fields |= {"module": PLACES, "action": action.label, "category": "comm_overhead"}
        work = (self.builder.row_work("gather", rows, self.width),)
        self.add(Op(name, kind, Nature.STAGING, tuple(reads), (writes,), work=work, **fields))
