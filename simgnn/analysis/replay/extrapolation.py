"""Extrapolate decisions past the end of a record: fractions of rows that are sent, shares of blocks that are broadcast.

A row is sent when it has moved by more than a threshold epsilon. If it moves by r per epoch, relative to its size, this
takes epsilon / r epochs when it drifts, (epsilon / r)**2 when it walks at random. So about (r / epsilon)**kappa of all
rows are sent, kappa in 1..2, with the epsilon that its controller would reach. Source: docs/systems/cdfgnn.md (our own
model; not in the paper). Deviation: fractions are of the nonzero rows, and the fit leaves out the first epoch.

Guards (docs/systems/sancus.md) decide whether a rank (root) broadcasts its block. The share of roots that do is carried
over for each epoch and sync point. A root sends whenever its running sum of shares reaches a whole number; the sums
start apart, which spreads the broadcasts. A block that moves by r of its bound per epoch is sent every r**-kappa
epochs. Deviation: the curve is fitted to the shares, since changes are not recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from simgnn.emit.freshness import Thresholds
from simgnn.errors import ConfigError
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray

Floats = NDArray[np.float64]
LEAST = 1e-4
"""Fractions below count as this in a fit of logarithms."""
LAST = 10
"""Epochs whose mean goes on where no curve can be fitted."""
FEWEST = 8
"""Fewer recorded epochs after the first determine no curve."""
WINDOWS = 8
"""Shares of a few roots are coarse: means over this part of a record, and at least SHORTEST epochs, are fitted."""
SHORTEST = 3


@dataclass(frozen=True)
class Curve:
    """Fraction of rows sent in epoch e >= 1: f(e) = min(1, (r(e) / epsilon(e))**kappa), where rows change by r(e) =
    settled + excess exp(-e / decay_epochs) per epoch. In epoch 0 all rows are sent."""

    excess: float
    settled: float
    decay_epochs: float
    kappa: float

    def at(self, epochs: Floats, epsilon: Floats) -> Floats:
        moved = self.settled + self.excess * np.exp(-epochs / self.decay_epochs)
        return np.minimum(1.0, (moved / epsilon) ** self.kappa)


def fit_curve(fractions: Floats, epsilon: Floats) -> Curve:
    """Fit a curve to the fractions of epochs 1, 2, ..., by least squares of logarithms. An epoch in which all rows were
    sent adds an error only if the curve is below 1 there."""
    epochs = np.arange(1, len(fractions) + 1, dtype=np.float64)
    logs = np.log(np.maximum(fractions, LEAST))
    full = fractions >= 1.0

    def misses(numbers: Floats) -> Floats:
        found = np.log(np.maximum(_curve(numbers).at(epochs, epsilon), LEAST))
        return np.where(full, np.minimum(found, 0.0), found - logs)

    scale = float(np.median(epsilon))
    low = [np.log(1e-6 * scale), np.log(1e-9 * scale), np.log(0.5), 1.0]
    high = [np.log(1e6 * scale), np.log(1e3 * scale), np.log(10.0 * len(fractions)), 2.0]
    starts = [
        (np.log(scale * big), np.log(scale * max(float(fractions[-LAST:].mean()), 1e-3)), np.log(decay), 1.5)
        for big in (1.0, 10.0)
        for decay in (3.0, max(4.0, len(fractions) / 4))
    ]
    tried = [least_squares(misses, np.clip(start, low, high), bounds=(low, high)) for start in starts]
    return _curve(min(tried, key=lambda one: float(one.cost)).x)


def _curve(numbers: Floats) -> Curve:
    excess, settled, decay = np.exp(numbers[:3])
    return Curve(float(excess), float(settled), float(decay), float(numbers[3]))


def continue_fractions(
    fractions: Floats, thresholds: Thresholds | None, accuracies: Sequence[float] | None, epochs: int, seed: int,
    period: int = 1,
) -> Floats:  # fmt: skip
    """Continue recorded fractions float64 [E] to ``epochs`` epochs as :func:`way_on` says.

    ``accuracies``: training accuracy of each recorded epoch (None: the threshold never moves). The first epoch sends
    everything and is ignored. If nothing was sent after it, nothing will be. The curve is scaled to the largest
    fraction of any epoch, as far from training vertices gradients are zero and never sent.
    """
    recorded, told = len(fractions), fractions[1:] if len(fractions) > 1 else fractions
    most = float(fractions.max(initial=0.0))
    epsilon = epsilons(thresholds, accuracies, epochs, seed)
    if period > 1:
        later = np.full(epochs - recorded, fractions[-period:].mean())
    elif not told.any():
        later = np.zeros(epochs - recorded)
    elif no_curve(recorded, epsilon):
        later = np.full(epochs - recorded, told[-LAST:].mean())
    else:
        curve = fit_curve(told / most, epsilon[1:recorded])
        later = most * curve.at(np.arange(recorded, epochs, dtype=np.float64), epsilon[recorded:])
    return np.concatenate((fractions, later))


def no_curve(recorded: int, epsilon: Floats) -> str | None:
    """Return why no curve can be fitted to ``recorded`` epochs with thresholds ``epsilon``; None if one can be."""
    if recorded - 1 < FEWEST:
        return f"fewer than {FEWEST} epochs after the first determine no curve"
    return "a threshold of 0 has no curve" if np.any(epsilon <= 0) else None


def way_on(recorded: int, epsilon: Floats, period: int = 1) -> str:
    """Describe how ``recorded`` epochs are continued: by the mean of the last ``period`` if epochs differ, else by a
    curve, or by the mean of the last LAST epochs."""
    if period > 1:
        return f"the mean of its last {period}, after which epochs repeat"
    why = no_curve(recorded, epsilon)
    return "a curve fitted to it" if why is None else f"the mean of its last {min(LAST, max(1, recorded - 1))} ({why})"


def epsilons(thresholds: Thresholds | None, accuracies: Sequence[float] | None, epochs: int, seed: int) -> Floats:
    """Return the threshold of each epoch, float64 [epochs], that the controller sets from recorded accuracies and then
    from extrapolated ones; without a controller (None), 0."""
    if thresholds is None:
        return np.zeros(epochs)
    state, found = thresholds.start(), []
    known = list(accuracies or ())
    more = continue_accuracies(known, epochs, seed) if known else np.zeros(epochs)
    for epoch in range(epochs):
        found.append(float(state.epsilon))
        state = thresholds.adjusted(state, float(more[epoch]) if known else None)
    return np.array(found)


def continue_accuracies(known: Sequence[float], epochs: int, seed: int) -> Floats:
    """Continue accuracies to [epochs]: the known ones, then top (1 - exp(-e / tau)) fitted to them, with their noise.

    Without noise the threshold would only rise. The noise of an epoch depends on the seed and the epoch alone.
    """
    series = np.asarray(known[:epochs], dtype=np.float64)
    if len(series) == epochs:
        return series
    at = np.arange(1, len(series) + 1, dtype=np.float64)

    def misses(numbers: Floats) -> Floats:
        return np.asarray(numbers[0] * (1 - np.exp(-at / np.exp(numbers[1]))) - series)

    fit = least_squares(misses, [float(series.max(initial=0.5)), np.log(max(2.0, len(series) / 10))])
    top, tau = float(fit.x[0]), float(np.exp(fit.x[1]))
    steps = np.diff(series[len(series) // 2 :])
    noise = float(np.std(steps)) / np.sqrt(2.0) if len(steps) > 1 else 0.0
    later = np.arange(len(series) + 1, epochs + 1, dtype=np.float64)
    drawn = np.array([np.random.default_rng([seed, int(epoch)]).standard_normal() for epoch in later])
    return np.concatenate((series, np.clip(top * (1 - np.exp(-later / tau)) + noise * drawn, 0.0, 1.0)))


class OwnerGuard(NamedTuple):
    """Where a guard decides on a broadcast: its sync point (layer, phase), and the rank that owns the block."""

    point: tuple[int, str]
    root: int


def guards_of(program: Program) -> dict[str, OwnerGuard]:
    """Return the guards of a program's broadcasts, by the name of the decision."""
    return {
        op.guard.decision: OwnerGuard((op.layer, op.phase), op.root)
        for _, op in program.ops
        if op.guard is not None and op.root is not None
    }


def carried_guards(
    recorded: Mapping[str, IntArray], there: Program, here: Program, epochs: int, same: bool
) -> dict[str, IntArray]:
    """Carry decisions whether to broadcast (guards) over from ``there`` to ``here``: int64 [P, epochs, 1] by name.

    ``same``: both have the same partition, so recorded epochs are copied. Raises :class:`ConfigError` for a sync point
    or guard that was not recorded, or guards on which ranks differ.
    """
    sends: dict[tuple[int, str], dict[int, NDArray[np.int64]]] = {}
    for name, (point, root) in guards_of(there).items():
        values = recorded.get(name)
        if values is None:
            raise ConfigError(
                f"--activity: the record is incomplete: it lacks the decision '{name}' (whether to broadcast a block); "
                "record the run again"
            )
        if np.any(values != values[:1]) or np.any(values < 0):
            raise ConfigError(
                f"--activity: ranks do not agree on '{name}' (whether to broadcast a block) in all epochs; record again"
            )
        sends.setdefault(point, {})[root] = values[0, :, 0]
    result = {}
    for name, (point, root) in guards_of(here).items():
        if point not in sends:
            raise ConfigError(
                f"--activity: no decisions to broadcast blocks were recorded for layer {point[0]}, {point[1]}; "
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
    if recorded - 1 >= FEWEST:
        return "a curve fitted to the shares of blocks that were sent"
    return f"the mean share of blocks that were sent (fewer than {FEWEST} epochs after the first determine no curve)"


def _continued(shares: NDArray[np.float64], epochs: int) -> NDArray[np.float64]:
    """Continue shares [E] of blocks that are sent to ``epochs``. The first epoch sends everything and is ignored; a
    short record continues with its mean."""
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
    """Whether a root sends in each epoch: in the first, then whenever its sum of shares passes a whole number."""
    # shares are quotients of small numbers: what misses a whole number by rounding has reached it
    sums = np.floor(np.cumsum(np.append(root / ranks, shares)) + 1e-9)
    found: NDArray[np.int64] = (np.diff(sums) > 0).astype(np.int64)
    found[:1] = 1
    return found
