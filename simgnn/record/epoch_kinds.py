"""The kinds of epochs of a run whose epochs differ, and its typical epoch: the mean over a period of all kinds."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgnn.program.calendar import Calendar

Times = NDArray[Any]
"""Array of times: seconds float64, or ticks int64."""


class Alike(NamedTuple):
    """Epochs of one kind: their template, its share of a typical epoch, and which epochs of the run they are."""

    template: str
    share: float
    epochs: NDArray[np.int64]


def kinds_of(calendar: Calendar, epochs: int) -> tuple[Alike, ...]:
    """Return the kinds of the epochs of a run after the first (of the only epoch, if there is one), rarest first.

    A kind that a short run does not reach has no part in its typical epoch."""
    return kinds_among(calendar, range(1, epochs) if epochs > 1 else range(epochs))


def kinds_among(calendar: Calendar, epochs: Iterable[int]) -> tuple[Alike, ...]:
    """Return the kinds of some epochs of a run, rarest first; shares are those of the kinds among them."""
    found: dict[str, list[int]] = {}
    for epoch in epochs:
        found.setdefault(calendar.kind(epoch), []).append(epoch)
    reached = {name: share for name, share in calendar.shares.items() if name in found}
    total = sum(reached.values())
    return tuple(Alike(name, share / total, np.array(found[name])) for name, share in reached.items())


def typical(values: Times, kinds: Sequence[Alike]) -> Times:
    """Return the mean over a period of the median of each kind of epoch. ``values`` [epochs, ...]."""
    return np.asarray(sum(alike.share * np.median(values[alike.epochs], axis=0) for alike in kinds))


def typical_s(epoch_s: Sequence[float], calendar: Calendar) -> float:
    """Return :func:`typical` of the seconds of each epoch: their median after the first, if all are of one kind."""
    return float(typical(np.array(epoch_s), kinds_of(calendar, len(epoch_s))))
