"""Simulated time in integer picoseconds. Seconds are converted where prices enter and where the trace is written."""

from simgnn.errors import BackendError, HardwareError

PICOSECONDS = 1_000_000_000_000
"""Ticks of the clock per second."""
FOREVER_PS = 1 << 61
"""The last instant that the clock can represent, about 27 days. A run that reaches it raises an error."""
DAY_S = 86_400


def to_ps(seconds: float, what: str) -> int:
    """Convert seconds to ticks, rounded to the nearest. ``what`` names the priced thing in an error message."""
    if not 0.0 <= seconds < FOREVER_PS / PICOSECONDS:
        raise HardwareError(
            f"{what} takes {seconds:.4g} s by the hardware profile, expected 0 to {FOREVER_PS // PICOSECONDS} s. "
            f"Look in the profile for a rate that is too low or a time that is too long, or simulate less work."
        )
    return round(seconds * PICOSECONDS)


def too_long() -> BackendError:
    """Return the error for a run that has not ended when the clock reaches its largest value, :data:`FOREVER_PS`."""
    return BackendError(
        f"the run is not over after {FOREVER_PS / PICOSECONDS / DAY_S:.0f} days of simulated time, the most that the "
        f"simulator's clock can count. Simulate fewer epochs (train.epochs), make the model smaller (model.layers, "
        f"model.hidden), or check the rates in the hardware profile."
    )
