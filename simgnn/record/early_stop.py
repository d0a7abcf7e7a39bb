"""Early stopping: training ends when the validation accuracy has not improved for a while."""

from collections.abc import Sequence
from dataclasses import dataclass

from simgnn.record.result import Accuracy, EarlyStop


@dataclass(frozen=True)
class Patience:
    """Ends training after ``evaluations`` evaluations in a row without a better validation accuracy; 0: never.

    Only evaluations after every ``every``-th epoch count. The last epoch of a run is evaluated whatever its number, and
    a run that goes on after it must stop where one long run would."""

    evaluations: int
    every: int

    def over(self, accuracy: Sequence[Accuracy]) -> EarlyStop | None:
        """Return why training ends after the evaluations so far, None if it goes on. Ranks whose evaluations are the
        same decide the same."""
        known = regular(accuracy, self.every)
        if not self.evaluations or not known:
            return None
        best = max(known, key=lambda found: (found.validation, -found.epoch))
        waited = sum(found.epoch > best.epoch for found in known)
        if waited < self.evaluations:
            return None
        assert best.validation is not None
        return EarlyStop(
            epoch=known[-1].epoch, best_epoch=best.epoch, best_validation=best.validation, evaluations=waited
        )


def regular(accuracy: Sequence[Accuracy], every: int) -> list[Accuracy]:
    """Return the evaluations with a validation accuracy after every ``every``-th epoch; 0: none."""
    return [found for found in accuracy if every and found.epoch % every == 0 and found.validation is not None]
