"""Energy in a result: of devices, of hosts beside their devices, and of memory; measured, estimated or unavailable.

Both backends use the same formulas on a curve of joules over time, read at the ends of the run and of its epochs.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

Floats = NDArray[np.float64]
Part = Literal["device", "host", "memory"]
PART_NAMES: dict[Part, str] = {
    "device": "energy of the devices",
    "host": "energy of processors beside them",
    "memory": "energy of memory modules",
}
SAMPLES_AN_EPOCH = 2
"""Number of samples that the shortest epoch must span for energies of single epochs to be reported."""


class EnergyFigure(BaseModel):
    """Energy of one part of the machines. Joules, seconds and watts; null where ``status`` is "unavailable".

    ``part``: "device": what ranks compute on, a GPU or the processors of a host; "host": the processors of a host
    beside its GPUs; "memory": a host's memory modules. ``name``, ``host``: which one; ``ranks``: the ranks that share
    it. ``status``: "measured", "estimated" (power states over simulated time) or "unavailable". ``source``: what it was
    read or computed from; if unavailable, the reason.

    ``total_J`` over ``duration_s``: from the first op of a run to the end of the last, evaluations included.
    ``epoch_mean_J``, ``epoch_min_J``, ``epoch_max_J``: of training epochs, without evaluations. Power is assumed
    constant between two samples; minimum and maximum are null where epochs are too short for the samples.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    part: Part
    name: str
    host: str | None
    ranks: list[int]
    status: Literal["measured", "estimated", "unavailable"]
    source: str
    total_J: float | None = None  # noqa: N815  the unit is part of the name
    duration_s: float | None = None
    mean_power_W: float | None = None  # noqa: N815
    epoch_mean_J: float | None = None  # noqa: N815
    epoch_min_J: float | None = None  # noqa: N815
    epoch_max_J: float | None = None  # noqa: N815
    sample_s: float | None = None  # longest time between two samples; 0: a closed form


def energy_over(
    joules: Callable[[Floats], Floats], span: tuple[float, float], epochs: Floats, sample_s: float
) -> dict[str, Any]:
    """Compute the numeric fields of an :class:`EnergyFigure`.

    ``joules`` returns the energy used until given moments (seconds); ``span``: start and end of the run; ``epochs``
    float64 [E, 2]: start and end of training epochs; ``sample_s``: longest time between two samples.
    """
    begin, end = joules(np.array(span))
    duration = span[1] - span[0]
    each = joules(epochs[:, 1]) - joules(epochs[:, 0])
    shortest = float(np.min(epochs[:, 1] - epochs[:, 0], initial=np.inf))
    apart = len(each) > 0 and shortest >= SAMPLES_AN_EPOCH * sample_s
    return {
        "total_J": float(end - begin),
        "duration_s": duration,
        "mean_power_W": float(end - begin) / duration if duration > 0 else None,
        "epoch_mean_J": float(each.mean()) if len(each) else None,
        "epoch_min_J": float(each.min()) if apart else None,
        "epoch_max_J": float(each.max()) if apart else None,
        "sample_s": sample_s,
    }


def sum_of(figures: Sequence[EnergyFigure], part: Part, field: str) -> float | None:
    """Sum a field over all figures of a part; None where one of them lacks it, or where there is no figure."""
    values = [getattr(figure, field) for figure in figures if figure.part == part]
    return float(sum(values)) if values and None not in values else None


def why_unknown(figures: Sequence[EnergyFigure], part: Part) -> str:
    """Reason why a part's energy is unknown, from the first figure without energy; "" where it is known."""
    of_part = [figure for figure in figures if figure.part == part]
    if not of_part:
        return "not recorded"
    return next((figure.source for figure in of_part if figure.total_J is None), "")


def joules_text(value: float) -> str:
    """Format energy with a unit that suits its size."""
    for factor, unit in ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.3g} J"


def describe(figures: Sequence[EnergyFigure], part: Part) -> str:
    """Describe a part's energy in words: total over the run, mean power, mean of an epoch; or why it is unknown."""
    total, power, epoch = (sum_of(figures, part, name) for name in ("total_J", "mean_power_W", "epoch_mean_J"))
    if total is None:
        return f"unknown: {why_unknown(figures, part)}"
    parts = [joules_text(total)]
    parts += [] if power is None else [f"{power:.4g} W on average"]
    parts += [] if epoch is None else [f"{joules_text(epoch)} an epoch"]
    return ", ".join(parts)
