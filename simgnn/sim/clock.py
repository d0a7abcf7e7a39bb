"""Simulated time: integer picoseconds. Seconds exist only at the edges (prices in, trace out)."""

from simgnn.errors import BackendError, HardwareError

PICOSECONDS = 1_000_000_000_000
"""Ticks of the clock per second."""
FOREVER_PS = 1 << 61
"""The furthest instant that the clock may reach, about 27 days; beyond it a run is refused."""
DAY_S = 86_400


def to_ps(seconds: float, what: str) -> int:
    """A duration in ticks, rounded to the nearest; ``what`` names it in the error for a price that is no duration."""
    if not 0.0 <= seconds < FOREVER_PS / PICOSECONDS:
        raise HardwareError(
            f"{what} was priced at {seconds:.4g} s, expected a time between 0 and {FOREVER_PS // PICOSECONDS} s; "
            f"look for a rate that is too low or a time that is too long in the hardware profile, or ask for less"
        )
    return round(seconds * PICOSECONDS)


def too_long() -> BackendError:
    """The error of a run that is still under way when the clock ends."""
    return BackendError(
        f"the run is not over after {FOREVER_PS / PICOSECONDS / DAY_S:.0f} days of simulated time, the most that the "
        f"simulator's clock of picoseconds counts; expected a shorter run: simulate fewer epochs (train.epochs), make "
        f"the model smaller (model.layers, model.hidden), or check the rates of the hardware profile"
    )
