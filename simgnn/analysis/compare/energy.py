"""Energy of an epoch on both sides of a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simgnn.record.energy import EnergyFigure, sum_of, why_unknown


@dataclass(frozen=True)
class EnergyDifference:
    """Mean energy of a training epoch, of all devices that ranks compute on; None where a side does not know it, which
    ``predicted_unknown`` and ``measured_unknown`` explain. Of two directories of one kind the first stands in the place
    of the prediction."""

    predicted_J: float | None  # noqa: N815  the unit is part of the name
    measured_J: float | None  # noqa: N815
    predicted_unknown: str
    measured_unknown: str

    @classmethod
    def of(cls, predicted: Sequence[EnergyFigure], measured: Sequence[EnergyFigure]) -> "EnergyDifference":
        """From the figures of two results."""
        return cls(
            sum_of(predicted, "device", "epoch_mean_J"),
            sum_of(measured, "device", "epoch_mean_J"),
            why_unknown(predicted, "device"),
            why_unknown(measured, "device"),
        )

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None where a side is unknown or nothing was used."""
        if self.predicted_J is None or not self.measured_J:
            return None
        return (self.predicted_J - self.measured_J) / self.measured_J

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "predicted_J": self.predicted_J,
            "measured_J": self.measured_J,
            "error": self.error,
            "predicted_unknown": self.predicted_unknown,
            "measured_unknown": self.measured_unknown,
        }
