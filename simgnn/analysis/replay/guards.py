"""Recorded guards on another partition, or past the end of their record: shares of blocks that were sent.

Source: docs/systems/sancus.md. The share of each epoch and sync point is carried over, and each root sends whenever
its running sum of shares reaches one; roots begin apart, so that what is sent is spread over them. Past the record
shares follow a curve: a block that moves by r of its bound an epoch is sent every r**-kappa epochs, and r settles
(:mod:`simgnn.analysis.replay.extrapolation`). Deviation: the curve is fitted to the shares, since changes are not
recorded.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.replay.extrapolation import FEWEST, fit_curve
from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray

WINDOWS = 8
"""Shares of a few roots are coarse: means over this part of a record, and at least SHORTEST epochs, are fitted."""
SHORTEST = 3


class OwnerGuard(NamedTuple):
    """Whose block a guard sends, and at which sync point: (layer, phase)."""

    point: tuple[int, str]
    root: int


def guards_of(program: Program) -> dict[str, OwnerGuard]:
    """The guards of a program's broadcasts, by decision: their roots decide whether to send."""
    return {
        op.guard.decision: OwnerGuard((op.layer, op.phase), op.root)
        for _, op in program.ops
        if op.guard is not None and op.root is not None
    }


def carried_guards(
    recorded: Mapping[str, IntArray], there: Program, here: Program, epochs: int, same: bool
) -> dict[str, IntArray]:
    """Guards of ``here``, int64 [P, epochs, 1] by name, from those recorded of the program ``there``.

    ``same``: the record is of this partition, so that it holds as far as it goes. Raises :class:`ConfigError` for a
    sync point or guard that was not recorded, or guards on which ranks differ.
    """
    sends: dict[tuple[int, str], dict[int, NDArray[np.int64]]] = {}
    for name, (point, root) in guards_of(there).items():
        values = recorded.get(name)
        if values is None:
            raise ConfigError(
                f"--activity: guard '{name}' of the run's own program was not recorded: the record is incomplete; "
                "record it again"
            )
        if np.any(values != values[:1]) or np.any(values < 0):
            raise ConfigError(
                f"--activity: guard '{name}' was not decided alike by all ranks in every epoch: the run did not end "
                "well; record it again"
            )
        sends.setdefault(point, {})[root] = values[0, :, 0]
    result = {}
    for name, (point, root) in guards_of(here).items():
        if point not in sends:
            raise ConfigError(
                f"--activity: no guard of layer {point[0]}, {point[1]}, was recorded; "
                "expected a run of this experiment: the same model, communication and freshness"
            )
        shares = _continued(np.mean(list(sends[point].values()), axis=0), epochs)
        values = _realised(shares, root, here.ranks)
        if same:
            kept = sends[point][root][:epochs]
            values[: len(kept)] = kept
        result[name] = np.broadcast_to(values[None, :, None], (here.ranks, epochs, 1))
    return result


def way_of_shares(recorded: int) -> str:
    """What follows so many ``recorded`` epochs, in words."""
    if recorded - 1 >= FEWEST:
        return "a curve fitted to the shares of blocks that were sent"
    return f"the mean share of blocks that were sent (fewer than {FEWEST} epochs after the first determine no curve)"


def _continued(shares: NDArray[np.float64], epochs: int) -> NDArray[np.float64]:
    """Shares [E] of a record continued to ``epochs``. The first epoch, which sends everything, says nothing of later
    ones; a short record goes on at its mean."""
    later, more = shares[1:], max(0, epochs - len(shares))
    if not len(later):
        found = np.full(more, shares.mean())
    elif not later.any():
        found = np.zeros(more)
    elif len(later) < FEWEST:
        found = np.full(more, later.mean())
    else:
        span = max(SHORTEST, len(later) // WINDOWS)
        counted = np.convolve(np.ones_like(later), np.ones(span), "same")
        smooth = np.convolve(later, np.ones(span), "same") / counted
        curve = fit_curve(smooth, np.ones_like(later))
        found = curve.at(np.arange(len(shares), epochs, dtype=np.float64), np.ones(more))
    return np.concatenate((shares[:epochs], found))


def _realised(shares: NDArray[np.float64], root: int, ranks: int) -> NDArray[np.int64]:
    """Whether a root sends in each epoch: whenever its sum of shares passes a whole number; all do in the first."""
    # shares are quotients of small numbers: what misses a whole number by rounding has reached it
    sums = np.floor(np.cumsum(np.append(root / ranks, shares)) + 1e-9)
    found: NDArray[np.int64] = (np.diff(sums) > 0).astype(np.int64)
    found[:1] = 1
    return found
