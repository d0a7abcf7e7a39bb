"""Non-negative least squares on log residuals, with a fixed outlier rule and a cross-validated spread.

A time is modelled as ``features @ coefficients``, where every term is a physical cost in seconds. The objective is the
squared log ratio of model to measurement, so that relative errors count equally for short and long ops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError

FloatArray = NDArray[np.float64]
FOLDS = 5
MAD_TO_SIGMA = 1.4826
OUTLIER_SIGMAS = 4.0
OUTLIER_FLOOR = float(np.log(1.25))
OUTLIER_SHARE = 0.1
"""Outlier rule: after a first fit, samples are excluded whose log residual is further from the median than both 4
robust sigmas (1.4826 MAD) and a factor of 1.25. At most a tenth of the samples is excluded, the worst first. Then the
fit is repeated once."""


@dataclass(frozen=True)
class Fit:
    """Fitted coefficients [k] >= 0, and errors of held-out samples, each predicted by a fit without it.

    ``spread``: robust sigma (1.4826 MAD) of log residuals; ``mean_error``: mean |log residual|; ``median_error``:
    median relative error; ``worst``: largest |log residual|. ``used``: samples fitted; ``left_out``: outliers.
    """

    coefficients: FloatArray
    spread: float
    mean_error: float
    median_error: float
    worst: float
    used: int
    left_out: int


def solve(features: FloatArray, seconds: FloatArray, what: str, groups: Sequence[str] | None = None) -> Fit:
    """Fit ``seconds`` [n] by non-negative combinations of ``features`` [n, k].

    ``groups`` [n]: samples with the same value are held out together (samples of one graph); None: five folds. Raises
    :class:`HardwareError`, which names ``what``, for samples that are too few, not positive, not finite or of one size.
    """
    keep = _inliers(features, seconds, what)
    if groups is None:  # dealt out in order of time, so that every fold has short and long samples
        folds = np.argsort(np.argsort(seconds[keep], kind="stable")) % FOLDS
    else:
        folds = np.unique(np.array(groups), return_inverse=True)[1][keep]
    held_out = _cross_validate(features[keep], seconds[keep], folds)
    centred = np.abs(held_out - np.median(held_out))
    return Fit(
        coefficients=_minimise(features[keep], seconds[keep]),
        spread=float(MAD_TO_SIGMA * np.median(centred)),
        mean_error=float(np.mean(np.abs(held_out))),
        median_error=float(np.median(np.abs(np.expm1(held_out)))),
        worst=float(np.max(np.abs(held_out))),
        used=int(keep.sum()),
        left_out=int(len(keep) - keep.sum()),
    )


def costs(features: FloatArray, seconds: FloatArray, what: str) -> FloatArray:
    """Return the coefficients of :func:`solve` [k] without cross-validation."""
    keep = _inliers(features, seconds, what)
    return _minimise(features[keep], seconds[keep])


def _inliers(features: FloatArray, seconds: FloatArray, what: str) -> NDArray[np.bool_]:
    """Select the samples that are no outliers, bool [n]."""
    samples, terms = features.shape
    if samples <= terms:
        raise HardwareError(
            f"{what}: {samples} samples cannot fit a curve of {terms} terms; expected at least {terms + 1}: "
            "measure more sizes (calibrate without --quick)"
        )
    if not (np.all(np.isfinite(features)) and np.all(np.isfinite(seconds))):
        raise HardwareError(f"{what}: some times or sizes are not finite; measure again")
    if np.any(seconds <= 0) or np.any(features < 0):
        raise HardwareError(f"{what}: got times that are not positive, or negative sizes; measure again")
    if terms > 1 and np.all(features == features[0]):
        raise HardwareError(f"{what}: all {samples} samples have the same size; measure several sizes")
    residuals = np.log(features @ _minimise(features, seconds)) - np.log(seconds)
    distance = np.abs(residuals - np.median(residuals))
    limit = max(OUTLIER_SIGMAS * MAD_TO_SIGMA * float(np.median(distance)), OUTLIER_FLOOR)
    suspects = np.argsort(distance)[::-1][: int(samples * OUTLIER_SHARE)]
    keep = np.ones(samples, dtype=bool)
    keep[suspects] = distance[suspects] <= limit
    return keep


def _minimise(features: FloatArray, seconds: FloatArray) -> FloatArray:
    """Coefficients with the least squared log residual, starting from non-negative least squares on relative errors.

    Columns are scaled by their largest fraction of a time. Terms that start at zero get a small value, so that the
    solver can raise or drop them.
    """
    # SciPy's optimizers: loaded when a calibration is fitted
    from scipy import optimize

    relative = features / seconds[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    scaled = relative / scale
    start, _ = optimize.nnls(scaled, np.ones(len(seconds)))
    start = np.maximum(start, 1e-3)
    tiny = 1e-12

    def residuals(unknown: FloatArray) -> FloatArray:
        return np.asarray(np.log(np.maximum(scaled @ unknown, tiny)))

    def slope(unknown: FloatArray) -> FloatArray:
        return np.asarray(scaled / np.maximum(scaled @ unknown, tiny)[:, None])

    result = optimize.least_squares(residuals, start, jac=slope, bounds=(0.0, np.inf), x_scale="jac")
    found = np.asarray(result.x, dtype=np.float64)
    found[found * scaled.max(axis=0) < 1e-6] = 0.0  # a share below a millionth of any time is the solver's own noise
    return np.asarray(found / scale)


def _cross_validate(features: FloatArray, seconds: FloatArray, folds: NDArray[np.int64]) -> FloatArray:
    """Log residual of each sample [n] in a fit without the fold of the sample.

    If a fold leaves too few samples, all are used: a profile from few samples is better than none.
    """
    terms = features.shape[1]
    held_out = np.empty(len(seconds))
    for fold in np.unique(folds):
        test = folds == fold
        enough = np.count_nonzero(~test) > terms
        fitted = _minimise(features[~test], seconds[~test]) if enough else _minimise(features, seconds)
        held_out[test] = np.log(np.maximum(features[test] @ fitted, 1e-12)) - np.log(seconds[test])
    return held_out
