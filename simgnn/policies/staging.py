"""Ops that bring a mini-batch's rows to its rank: one chain, each op after the one before."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from simgnn.policies.minibatch import FEATURES, PLACES
from simgnn.program.builder import ProgramBuilder, accesses
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Dependency, Nature, Op, Transfer, Work
from simgnn.program.sizes import Column, Route

Phase = Literal["forward", "setup"]


def sent(route: str) -> Column:
    """Rows that each rank sends along a route."""
    return Column(f"{route}/sent")


def received(route: str) -> Column:
    """Rows that each rank is sent along a route."""
    return Column(f"{route}/received")


def add_route(builder: ProgramBuilder, name: str, route: Route) -> None:
    """Add a route [pairs, epochs, steps], or [pairs], and the columns of what each rank sends and is sent along it."""
    builder.routes[name] = route
    for column, ends in ((sent(name), route.source), (received(name), route.target)):
        total = np.zeros((len(builder.hosts), *route.rows.shape[1:]), np.int64)
        np.add.at(total, ends, route.rows)
        builder.column(column.name, total)


@dataclass
class Staging:
    """Collects the chain. Rows are ``width`` wide, of the training dtype."""

    builder: ProgramBuilder
    width: int
    ops: list[Op] = field(default_factory=list)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.builder.item_bytes

    def add(self, op: Op) -> None:
        """Put an op behind all that are there."""
        behind = (Dependency(self.ops[-1].name),) if self.ops else ()
        self.ops.append(replace(op, after=(*behind, *op.after)))

    def gathered(self, rows: Column) -> tuple[Work, ...]:
        """The work of picking rows one by one."""
        return (Work("gather", {"rows": rows, "width": self.width, "item_bytes": self.builder.item_bytes}),)

    def send(self, name: str, route: str, face: str, phase: Phase = "forward", lasting: bool = False) -> str:
        """Rows that others wait for are picked and sent along a route whose sizes both ends know; returns the buffer of
        those that arrive. The executor asks ``face`` of the placement which rows. ``lasting``: see :class:`Buffer`."""
        builder = self.builder
        served = builder.buffer(f"{name}/served", sent(route), self.width, space="host", lasting=lasting)
        pulled = builder.buffer(f"{name}/pulled", received(route), self.width, space="host", lasting=lasting)
        self.add(
            Op(
                f"{name}/serve",
                OpKind.COPY,
                Nature.STAGING,
                accesses([FEATURES]),
                accesses([served]),
                work=self.gathered(sent(route)),
                transfer=Transfer(self.row_bytes),
                route=route,
                module=PLACES,
                phase=phase,
                category="comm_overhead",
                options={"face": face},
            )
        )
        self.add(
            Op(
                f"{name}/exchange",
                OpKind.EXCHANGE,
                Nature.FETCHING,
                accesses([served]),
                accesses([pulled]),
                transfer=Transfer(self.row_bytes),
                route=route,
                phase=phase,
                category="comm",
            )
        )
        return pulled

    def to_device(
        self, name: str, reads: Sequence[Access], writes: Access, rows: Column, face: str, phase: Phase = "forward"
    ) -> None:
        """Rows in the host's memory go to where they belong on the device."""
        self.add(
            Op(
                name,
                OpKind.H2D,
                Nature.STAGING,
                tuple(reads),
                (writes,),
                work=self.gathered(rows),
                transfer=Transfer(self.row_bytes, rows),
                module=PLACES,
                phase=phase,
                category="comm_overhead",
                options={"face": face},
            )
        )

    def on_device(self, name: str, reads: Sequence[Access], writes: Access, rows: Column, face: str) -> None:
        """Rows on the device are copied to where they belong."""
        self.add(
            Op(
                name,
                OpKind.SELECT,
                Nature.STAGING,
                tuple(reads),
                (writes,),
                work=self.gathered(rows),
                module=PLACES,
                category="comm_overhead",
                options={"face": face},
            )
        )
