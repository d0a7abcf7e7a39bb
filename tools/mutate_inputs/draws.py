"""Draws from seeded generators, and the values that mutations put in place of others."""

from collections.abc import Sequence
from typing import TypeVar

from numpy.random import Generator

Of = TypeVar("Of")

NUMBERS = (
    "0", "-1", "1e400", "-1e400", "nan", "inf", "-inf", "1e-400", "1e308", "2147483648", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "18446744073709551616", "9" * 5000, "1." + "3" * 5000, "-0", "0.5",
    "1e3", "00", "0x10", "1_0", "²", "٣", "1,5", "", " ", "true", "null", '"7"', "[]", "{}", "\0", "1970-01-01",
)  # fmt: skip
"""Texts in place of a number, in files of text."""
WORDS = (
    "", " ", "\0", "a\0b", "x" * 100_000, "../..", "/dev/zero", "~nobody-at-all/x", "ü\u202e", "\ud7ff", "nan", "-1",
    "#", "'", '"', "\\", "{}", "$SIMGNN_DATA", "$NOWHERE/x", "synthetic:rmat", "stats:", "stats:.", "a:b", "é" * 300,
    "%s%n",
)  # fmt: skip
"""Values of text."""
KEYS = ("", "x", "a.b", "a\0b", "ü", "__class__", "k" * 10_000, "0")
"""Names of keys, columns and arrays."""
DEPTHS = (40, 900, 100_000)
"""Levels of nested lists or tables."""


class NoRoomError(Exception):
    """Raised by an edit that does not apply to a file, such as one of numbers in a file without any."""


def one_of(rng: Generator, choices: Sequence[Of]) -> Of:
    """Draw an element. Raises :class:`NoRoomError` from nothing."""
    if not len(choices):
        raise NoRoomError
    return choices[int(rng.integers(len(choices)))]


def shown(value: object) -> str:
    """Format a value for the description of a mutation."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:30]}... ({len(text)} characters)"
