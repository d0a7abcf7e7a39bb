"""Whence ranks of a run took the rows of their mini-batches.

A rank notes by place what it moved into a batch or a cache, counted where rows were put: never read off the program.
Along a route that brings other rows in every turn it notes by sender with which size it has received:

- where ids are asked for (rows of ``distdgl``, requests to draw): how many ids it asked that sender for;
- where rows come unasked (scheduled rows, fills of a cache, neighbours that answer requests): what the program tells of
  the pair, for receives are posted with these sizes. A sender that holds another number of rows in all ends the run.

``batches.parquet`` of a run tells sums of these numbers where that of a prediction tells the program's.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.program.program import Program
from simgnn.program.sizes import IntArray

LOCAL, HIT, PULLED, CACHED = "local", "hit", "pulled", "cached"
"""Places: rows moved into a batch from the memory of the rank's host, from the cache of hot rows, and from what other
hosts sent; rows that other hosts sent, moved into a cache."""
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
"""What ranks write down while they train."""


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
        """Of a rank's ``turns``, counted from the run's first, ascending; what it staged for later ones is left out."""
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
        """Whether the rank got to tell of each turn, [turns]."""
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
