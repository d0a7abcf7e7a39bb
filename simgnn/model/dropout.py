"""Dropout as numbers: how large a share of the elements is dropped, in steps that a mask can draw. No torch here."""

STEPS = 1 << 16
"""A mask draws 16 bits an element, so that shares are whole numbers of 65,536ths."""


def dropped_steps(share: float) -> int:
    """The share of the elements that is dropped, in 0..1, as the nearest number of ``STEPS``."""
    return round(share * STEPS)


def kept_share(steps: int) -> float:
    """Share of the elements that is kept where ``steps`` of ``STEPS`` are dropped; exact in float32 too."""
    return (STEPS - steps) / STEPS
