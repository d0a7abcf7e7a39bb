"""The routes of halo rows by where an epoch takes them from: a cache on the device, memory of the host, their owner."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.halo_cache.membership import Chosen, HaloRows
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.sizes import Column, IntArray

HALO = "halo"
"""All halo rows, from their owners to the ranks that need them. The routes below have some of its rows."""
CACHED, SHARED, MISSED = "halo/cached", "halo/shared", "halo/missed"
"""Where an epoch between two refreshes takes its halo rows from: the receiver's device; where they are not there, the
memory that the ranks of its host share; else from their owners, so that they travel."""
HELD = "halo/held"
"""All rows that are not missed."""
IN_HOST, REST = "halo/in_host", "halo/rest"
"""Where a refresh takes them from: the memory of the host; or their owners. The latter include rows of other hosts that
the first rank that needs them writes into the memory of its host."""
BOTH = "halo/both"
"""Rows that lie in both: in a refresh whose rows are for later epochs, the device reads these anew from the memory of
the host, to keep them."""
STORED, RELAYED = "halo/stored", "halo/relayed"
"""One row for each vertex in the memory of a host: those whose owner is on the host, who writes them; and those that
their receiver writes."""
IN_MEMORY = Column("halo/in_memory")
"""The rows in the memory of each rank's host."""


def leaving(route: str) -> Column:
    """The rows of a route of chosen rows that a rank sends."""
    return Column(f"{route}/leaving")


def arriving(route: str) -> Column:
    """The rows of a route of chosen rows that a rank receives."""
    return Column(f"{route}/arriving")


@dataclass(frozen=True)
class CachedRows:
    """The halo rows of all ranks by where they are cached. ``cached``: on the device of their holder; ``shared``: their
    vertex is in the memory of their holder's host; bool [n] each, and both may be set. ``delayed``: a refresh uses
    cached rows as they are."""

    halo: HaloRows
    cached: Chosen
    shared: Chosen
    delayed: bool = False

    @cached_property
    def written(self) -> Chosen:
        """One row for each vertex in the memory of a host, bool [n]."""
        return self.halo.once_a_host(self.shared)

    @cached_property
    def relayed(self) -> Chosen:
        """Those of :attr:`written` whose owner is on another host, bool [n]."""
        found: Chosen = self.written & (self.halo.hosts[self.halo.owner] != self.halo.host)
        return found

    @cached_property
    def slots(self) -> IntArray:
        """The place of each row in the memory of its host, int64 [n]; 0 for rows that are not there. Rows of one writer
        lie together, own ones first, in the order in which it reads or receives them."""
        halo, rows = self.halo, np.flatnonzero(self.written)
        relayed = self.relayed[rows]
        writer, host = np.where(relayed, halo.holder[rows], halo.owner[rows]), halo.host[rows]
        ordered = rows[np.lexsort((rows, relayed, writer, host))]
        members = np.bincount(halo.host[ordered], minlength=int(halo.hosts.max(initial=0)) + 1)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(members) - members, members)
        of_vertex = np.zeros(int(halo.on_host.max(initial=-1)) + 1, np.int64)
        of_vertex[halo.on_host[ordered]] = place
        return of_vertex[halo.on_host]

    def add_to(self, builder: ProgramBuilder) -> None:
        """Add all routes, the columns of their rows, and the memory of their lists."""
        shared, wire, slots = self.shared, self.halo.on_the_wire, self.slots
        held = self.cached | shared
        routes = {CACHED: self.cached, HELD: held, MISSED: ~held}
        if shared.any():
            routes |= {
                SHARED: shared & ~self.cached, IN_HOST: shared, REST: ~shared | self.relayed,
                STORED: self.written & ~self.relayed, RELAYED: self.relayed,
            }  # fmt: skip
            if self.delayed:
                routes[BOTH] = shared & self.cached
            on_hosts = np.bincount(self.halo.host[self.written], minlength=int(self.halo.hosts.max()) + 1)
            builder.column(IN_MEMORY.name, on_hosts[self.halo.hosts])
        for name, chosen in routes.items():
            placed = slots[wire] if name in (SHARED, IN_HOST, BOTH, STORED, RELAYED) else None
            builder.rows_of(name, HALO, chosen[wire], placed)
            # rows and places among those that travel, of what a rank sends and of what it receives
            word = ITEM_BYTES["int64"] * (2 if placed is None else 3)
            builder.keep(f"lists of {name}", (leaving(name), word), (arriving(name), word))
