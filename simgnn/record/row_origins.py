"""Where each rank of a run got the rows of its mini-batches: local memory, cache, or which other rank.

A rank counts the rows that it moves into a batch or a cache, by place, where it writes them; it never copies these
numbers from the program. For a route that brings other rows in every turn it records the number of rows by sender:

- where it asks for ids (rows of ``distdgl``, requests to draw): how many ids it asked that sender for;
- where rows come unasked (scheduled rows, fills of a cache, neighbours that answer requests): the program's size of the
  pair, with which it posts the receive. A sender that holds another number of rows ends the run.

``batches.parquet`` of a run holds sums of these numbers; that of a prediction holds the program's.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.program.program import Program
from simgnn.program.sizes import IntArray

LOCAL, HIT, PULLED, CACHED = "local", "hit", "pulled", "cached"
"""Places that rows are counted at: moved into a batch from the memory of the rank's host, from the cache of hot rows,
from what other hosts sent; and moved into a cache from what other hosts sent."""
NOBODY = -1
"""In ``peer``: no single other rank."""
TAKEN_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("epoch", pa.int32()),
        pa.field("step", pa.int32()),
        pa.field("place", pa.int32()),  # which of places_of(program)
        pa.field("peer", pa.int32()),  # who sent what arrived along a route
        pa.field("rows", pa.int64()),
    ]
)
"""The counts that ranks write while they train."""


def places_of(program: Program) -> tuple[str, ...]:
    """Names of all places that rows are counted at: the four above, then the program's routes."""
    return (LOCAL, HIT, PULLED, CACHED, *sorted(program.sizes.routes))


@dataclass(frozen=True)
class TakenRows:
    """What a rank counted in some turns: columns of ``TAKEN_SCHEMA``; ``turn``: position of each among these turns."""

    places: tuple[str, ...]
    ranks: int
    turns: int
    turn: IntArray
    place: NDArray[np.int32]
    peer: NDArray[np.int32]
    rows: IntArray

    @classmethod
    def of(cls, program: Program, table: pa.Table, rank: int, turns: IntArray) -> "TakenRows":
        """The counts of a rank in ``turns`` (numbers from the run's first, ascending), without rows staged for later
        turns."""
        columns = {name: table[name].to_numpy() for name in TAKEN_SCHEMA.names}
        count = columns["epoch"].astype(np.int64) * program.calendar.steps + columns["step"]
        found = np.searchsorted(turns, count)
        mine = (columns["rank"] == rank) & np.isin(count, turns)
        return cls(
            places_of(program), program.ranks, len(turns), found[mine],
            *(columns[name][mine] for name in ("place", "peer", "rows")),
        )  # fmt: skip

    @property
    def told(self) -> NDArray[np.bool_]:
        """Whether the rank recorded each turn, bool [turns]; a rank that was lost did not."""
        return np.bincount(self.turn[self._at(LOCAL)], minlength=self.turns) > 0

    def moved(self, place: str) -> IntArray:
        """Rows moved from a place, or into one, in each turn, int64 [turns]."""
        total = np.zeros(self.turns, np.int64)
        at = self._at(place)
        np.add.at(total, self.turn[at], self.rows[at])
        return total

    def arrived(self, route: str) -> IntArray:
        """Rows that arrived along a route, from each rank in each turn, int64 [turns, P]; zeros where there is none."""
        total = np.zeros((self.turns, self.ranks), np.int64)
        if route in self.places:
            at = self._at(route)
            np.add.at(total, (self.turn[at], self.peer[at]), self.rows[at])
        return total

    def _at(self, place: str) -> NDArray[np.bool_]:
        return np.asarray(self.place == self.places.index(place))
