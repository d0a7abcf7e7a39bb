"""Converts quantities with units, such as "22.7 GB/s", to SI numbers and back, exactly.

A number without a unit is rejected: 400 may be bits or bytes. Inside the package all numbers are SI: bytes, seconds,
watts. Decimal prefixes are powers of 1000 (kB, MB), binary ones of 1024 (KiB, MiB); a bit is an eighth of a byte.
"""

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any

from simgnn.spelling import nearest

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
_TIME = {"fs": -15, "ps": -12, "ns": -9, "us": -6, "µs": -6, "μs": -6, "ms": -3, "s": 0}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?)\s*(.*?)\s*")
COUNTS = ("calls", "flops", "edges", "rows", "elements", "vertices", "passes", "ranks", "cores", "messages")
"""Countable things; the unit is the noun, in the singular or the plural ("2 cores")."""

Scales = Mapping[str, Decimal]


def _metric(unit: str, prefixes: Iterable[str] = _DECIMAL, scale: Decimal = Decimal(1)) -> dict[str, Decimal]:
    return {prefix + unit: scale * Decimal(10) ** _DECIMAL[prefix] for prefix in prefixes}


_SIZES = {**_metric("B"), **{f"{prefix}B": Decimal(2) ** power for prefix, power in _BINARY.items()}}
_TIMES = {unit: Decimal(10) ** power for unit, power in _TIME.items()}
_DIMENSIONS: Mapping[str, Scales] = MappingProxyType(
    {
        "bytes": _SIZES,
        "bytes/s": {
            **{f"{unit}/s": scale for unit, scale in _SIZES.items()},
            **{f"{unit}/s": scale for unit, scale in _metric("bit", scale=Decimal("0.125")).items()},
        },
        "s": {**_TIMES, "min": Decimal(60), "h": Decimal(3600)},
        "W": {"mW": Decimal("0.001"), **_metric("W", ("", "k", "M"))},
        "flop/s": _metric("flop/s"),
        "Hz": _metric("Hz", ("", "k", "M", "G")),
        "ratio": {"%": Decimal("0.01")},
    }
)
_WORDS = {
    "bytes": ("a size", "80 GiB"),
    "bytes/s": ("a bandwidth", "22.7 GB/s"),
    "s": ("a time", "25 us"),
    "W": ("a power", "300 W"),
    "flop/s": ("a rate of arithmetic", "19.5 Tflop/s"),
    "Hz": ("a frequency", "2.5 GHz"),
    "ratio": ("a share in percent", "3 %"),
}
"""Name of the quantities of each dimension, and an example."""
_RECIPROCALS = {"s/flop": "flop/s", "s/B": "bytes/s"}
"""Costs that may also be written as rates: "20 GB/s" means "50 ps/B"."""


def parse(text: object, dimension: str) -> float:
    """Convert a quantity with a unit to its SI number.

    ``dimension``: "bytes", "bytes/s" (bits are converted), "s", "W", "flop/s", "Hz", "ratio" (percent), a count such as
    "edges", or a cost "s/<thing>" such as "s/B". Raises ValueError, which states what was found and what was expected,
    for a bare number, an unknown unit, and a negative or infinite number.
    """
    expected = f"expected {_describe(dimension)[0]} with its unit, such as '{example(dimension)}'"
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"got {_shown(text)}, {expected}")
    if not isinstance(text, str):
        raise ValueError(f"got the bare number {text}, {expected}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"got {_shown(text)}, {expected}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"got '{text.strip()}' without a unit, {expected}")
    value = _convert(Decimal(number), unit, dimension, text)
    if not math.isfinite(value):
        raise ValueError(f"got '{text}', which is too large; {expected}")
    if value < 0:
        raise ValueError(f"got '{text}', expected a number that is not negative")
    return value


def _convert(number: Decimal, unit: str, dimension: str, text: str) -> float:
    scales = units(dimension)
    if unit in scales:
        return float(number * scales[unit])
    rates = units(_RECIPROCALS[dimension]) if dimension in _RECIPROCALS else {}
    if unit in rates:
        if number <= 0:
            raise ValueError(f"got '{text}', expected a rate above zero")
        return float(1 / (number * rates[unit]))
    known = [*scales, *rates]
    meant = re.sub(r"b(?:ps|/s)$", "bit/s", unit)  # a small b is a bit: never suggest eight times as much
    raise ValueError(
        f"got '{text}': unknown unit '{unit}'{nearest(meant, known, 0.4)}; known units: {', '.join(known)}"
    )


def format_quantity(value: float, dimension: str) -> str:
    """Format ``value`` (finite, not negative) as text that :func:`parse` reads back exactly. Sizes with at most two
    decimals in a binary unit use it ("35.75 MiB"); others use the largest decimal unit that is not above them."""
    assert 0 <= value < math.inf, f"{value} is not a quantity"
    exact = Decimal(repr(float(value)))
    scales = units(dimension)
    if dimension == "bytes":
        for prefix, power in reversed(_BINARY.items()):
            hundredths = value * 100 / 2**power
            if 2**power <= value < 2 ** (power + 10) and hundredths % 1 == 0:
                return f"{hundredths / 100:g} {prefix}B"
    # one spelling a scale, decimal prefixes, no bits, no minutes
    unused = ("bit/s", "iB", "iB/s", "min", "h")
    names = [unit for unit in scales if unit.isascii() and not unit.endswith(unused)]
    names = [dimension] if dimension in COUNTS else names
    choices = sorted((scales[unit], unit) for unit in names)
    fitting = [entry for entry in choices if (entry[0] <= exact if exact else entry[0] == 1)]
    scale, unit = fitting[-1] if fitting else choices[0]
    number = (exact / scale).normalize()
    text = f"{number:f}" if -6 < number.adjusted() < 15 else f"{number:e}"
    return f"{text} {unit}"


def readable_bytes(value: float) -> str:
    """Format a number of bytes for reading: four digits in a binary unit, "66.42 GiB"."""
    scale, unit = _binary_unit(value)
    return f"{value / scale:,.4g} {unit}"


def share_of_bytes(value: float, whole: float) -> str:
    """Format bytes as a part of a whole: "66.4 of 80 GiB (83 %)", or "96 MiB of 80 GiB (0.12 %)"."""
    (own, smaller), (scale, unit) = _binary_unit(value), _binary_unit(whole)
    share = 100 * value / whole
    percent = "< 0.01" if 0 < share < 0.01 else f"{share:.0f}" if share >= 1 else f"{share:.2g}"
    part = _three_digits(value / own) if unit == smaller else f"{_three_digits(value / own)} {smaller}"
    return f"{part} of {_three_digits(whole / scale)} {unit} ({percent} %)"


def _three_digits(value: float) -> str:
    """Format a number of a binary unit, below 1,024, with three digits, and whole ones from 1,000 on with four."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _binary_unit(value: float) -> tuple[float, str]:
    fitting = [(2.0**power, f"{prefix}B") for prefix, power in _BINARY.items() if abs(value) >= 2**power]
    return max(fitting, default=(1.0, "B"))


@cache
def units(dimension: str) -> Scales:
    """Return every unit of a dimension with its size in SI."""
    if dimension in _DIMENSIONS:
        return _DIMENSIONS[dimension]
    if dimension in COUNTS:
        return {dimension: Decimal(1), _singular(dimension): Decimal(1)}
    if dimension.startswith("s/"):
        return {f"{unit}/{dimension[2:]}": scale for unit, scale in _TIMES.items()}
    raise AssertionError(f"no dimension '{dimension}'")


def cost_of(unit: str) -> str:
    """Return the dimension of a cost in seconds for each ``unit``: "B" -> "s/B", "edges" -> "s/edge"."""
    return f"s/{_singular(unit) if unit in COUNTS else unit}"


def example(dimension: str) -> str:
    """Return an example of a quantity of a dimension, as it is written in a file."""
    return _describe(dimension)[1]


def _describe(dimension: str) -> tuple[str, str]:
    """Return the name of a dimension's quantities, and an example."""
    if dimension in _WORDS:
        return _WORDS[dimension]
    thing = dimension.removeprefix("s/")
    return (f"a number of {thing}", f"16 {thing}") if thing == dimension else (f"a cost per {thing}", f"25 ns/{thing}")


def _singular(noun: str) -> str:
    return {"vertices": "vertex", "passes": "pass"}.get(noun, noun.removesuffix("s"))


def _shown(value: Any) -> str:
    text = f"'{value}'" if isinstance(value, str) else "a table" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
