"""The budget ``placement.device_bytes``: whether every rank's device holds no more."""

from simgnn.experiment.schema import Experiment
from simgnn.program.sizes import IntArray


def shortfall(experiment: Experiment, held: IntArray) -> str:
    """Describe which rank needs more than the budget of the experiment, how much, and what to do; "" if none does or
    there is no budget. ``held`` int64 [P]: the most bytes that each rank's device holds."""
    budget, most = experiment.placement.device_bytes, int(held.max())
    if not budget or most <= budget:
        return ""
    return (
        f"placement.device_bytes: rank {int(held.argmax())} needs {most:,} B on its device, budget {budget:,} B; "
        f"expected at least {most:,} B, more ranks (--ranks) or narrower layers (model.hidden)"
    )
