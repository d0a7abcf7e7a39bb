"""How the cache of hot rows of the next epoch is filled while an epoch runs: a piece of its slots in each step.

Source: RapidGNN's vectorised pull (docs/systems/rapidgnn.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.program.sizes import IntArray
from simgnn.sampling.fetches.fetch_lists import GatherPart
from simgnn.sampling.fetches.fetch_plan import FetchPlan


@dataclass(frozen=True)
class Pieces:
    """What each step brings of a cache, by slot. ``step`` int64 [n]: the step that fills it; ``kept`` bool [n]: its row
    is in the cache before too, and is copied from there."""

    step: IntArray
    kept: NDArray[np.bool_]

    @classmethod
    def of(cls, hot: NDArray[Any], before: NDArray[Any], steps: int, only_new: bool) -> "Pieces":
        """The pieces of the cache ``hot`` [n] (ids by slot) after ``before`` [m]. ``only_new``: rows of both are
        kept."""
        size = -(-len(hot) // steps)
        kept = np.isin(hot, before) if only_new else np.zeros(len(hot), np.bool_)
        return cls(np.arange(len(hot)) // max(size, 1), kept)

    def pulled(self, senders: IntArray, ranks: int, steps: int) -> IntArray:
        """Rows that each rank sends at each step, int64 [P, steps]; ``senders`` int64 [n], by slot."""
        fresh = ~self.kept
        counts = np.bincount(senders[fresh] * steps + self.step[fresh], minlength=ranks * steps)
        return counts.reshape(ranks, steps).astype(np.int64)

    def copied(self, steps: int) -> IntArray:
        """Rows that are kept at each step, int64 [steps]."""
        return np.bincount(self.step[self.kept], minlength=steps).astype(np.int64)


@dataclass(frozen=True)
class Refill:
    """What fills the cache of one rank, piece after piece. ``slots`` int64 [k]: slots that are pulled, in each piece
    sender after sender, slots ascending; ``rows`` [k]: their rows on the senders' hosts; ``senders`` int64 [k].
    ``kept`` int64 [c] slots are copied from the slots ``kept_from`` int64 [c] of the present cache. ``pulled_bounds``,
    ``kept_bounds`` int64 [T + 1]: where pieces begin."""

    slots: IntArray
    rows: NDArray[Any]
    senders: IntArray
    pulled_bounds: IntArray
    kept: IntArray
    kept_from: IntArray
    kept_bounds: IntArray

    def pulled(self, step: int) -> slice:
        """The pulled slots of a step's piece."""
        return slice(int(self.pulled_bounds[step]), int(self.pulled_bounds[step + 1]))

    def copied(self, step: int) -> slice:
        """The kept slots of a step's piece."""
        return slice(int(self.kept_bounds[step]), int(self.kept_bounds[step + 1]))

    def of_sender(self, step: int, sender: int) -> NDArray[Any]:
        """Rows, on its host, that a sender sends in a step, in the order that the requester expects."""
        piece = self.pulled(step)
        return np.asarray(self.rows[piece][self.senders[piece] == sender])


def refill(coming: GatherPart, present: GatherPart | None, steps: int) -> Refill:
    """How the cache of ``coming`` is filled in ``steps`` pieces; rows may be copied from the cache of ``present``
    (None: all are pulled)."""
    hot, senders = np.asarray(coming.hot), np.asarray(coming.hot_senders, dtype=np.int64)
    before = hot[:0] if present is None else np.asarray(present.hot)
    pieces = Pieces.of(hot, before, steps, present is not None)
    kept, pulled = np.flatnonzero(pieces.kept), np.flatnonzero(~pieces.kept)
    pulled = pulled[np.lexsort((pulled, senders[pulled], pieces.step[pulled]))]
    return Refill(
        slots=pulled,
        rows=np.asarray(coming.hot_rows)[pulled],
        senders=senders[pulled],
        pulled_bounds=_bounds(pieces.step[pulled], steps),
        kept=kept,
        kept_from=_places(before, hot[kept]),
        kept_bounds=_bounds(pieces.step[kept], steps),
    )


def refill_of(fetches: FetchPlan, epoch: int, rank: int, steps: int, delta: bool) -> Refill:
    """How a rank's cache of ``epoch`` is filled during the epoch before; that of epoch 0 before training, with
    ``steps`` = 1."""
    present = fetches.hot(epoch - 1, rank) if delta and epoch else None
    return refill(fetches.hot(epoch, rank), present, steps)


def _places(held: NDArray[Any], wanted: NDArray[Any]) -> IntArray:
    """Position of each of ``wanted`` [n] in ``held`` [k], which has all of them once: int64 [n]."""
    order = np.argsort(held, kind="stable")
    return order[np.searchsorted(held[order], wanted)]


def _bounds(pieces: IntArray, steps: int) -> IntArray:
    """First place of each piece and the end, from the ascending piece of each."""
    return np.searchsorted(pieces, np.arange(steps + 1)).astype(np.int64)
