"""How well communication is predicted at sizes that were not measured: every size is held out once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simgnn.analysis.fit.samples import Sample

FEWEST_SIZES = 3
"""Of fewer no floor is told from a rate, so that with no more than these none can be held out."""
Predictor = Callable[[Sample], float]
"""Seconds to the last rank of a sample."""


@dataclass(frozen=True)
class CallErrors:
    """Errors relative to what was measured, of samples predicted by a fit that saw none of their size: ``median`` and
    ``worst`` (None: there are too few sizes to hold one out); ``samples``: how many were measured."""

    median: float | None
    worst: float | None
    samples: int

    def shown(self) -> list[str]:
        """Samples, median and worst, as tables show them."""
        return [str(self.samples), *("-" if error is None else f"{error:.1%}" for error in (self.median, self.worst))]


Errors = dict[tuple[str, int], CallErrors]
"""(kind of probe, ranks) -> its errors."""


def held_out(samples: Sequence[Sample], fit: Callable[[float], Predictor]) -> CallErrors:
    """Errors of ``samples``. ``fit(size)``: what a fit predicts that has seen no message of ``size`` bytes."""
    sizes = sorted({sample.sizes["bytes"] for sample in samples})
    if len(sizes) <= FEWEST_SIZES:
        return CallErrors(None, None, len(samples))
    errors: list[float] = []
    for size in sizes:
        predict = fit(size)
        errors += [abs(predict(s) / s.last_s - 1.0) for s in samples if s.sizes["bytes"] == size]
    return CallErrors(float(np.median(errors)), max(errors), len(samples))


def without(samples: Sequence[Sample], size: float) -> list[Sample]:
    """The samples of all other sizes."""
    return [sample for sample in samples if sample.sizes["bytes"] != size]
