"""Simulated time: integer picoseconds. Seconds exist only at the edges (prices in, trace out)."""

from simgnn.errors import BackendError

PICOSECONDS = 1_000_000_000_000
"""Ticks of the clock per second."""
FOREVER_PS = 1 << 61
"""The furthest instant that the clock may reach, about 27 days; beyond it a run counts as stuck."""


def to_ps(seconds: float, what: str) -> int:
    """A duration in ticks, rounded to the nearest; ``what`` names it in the error for a price that is no duration."""
    if not 0.0 <= seconds < FOREVER_PS / PICOSECONDS:
        raise BackendError(
            f"{what} was priced at {seconds!r} s, expected a time between 0 and {FOREVER_PS // PICOSECONDS} s; "
            f"look for a zero or missing rate in the hardware profile"
        )
    return round(seconds * PICOSECONDS)
