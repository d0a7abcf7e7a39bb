"""Numbers of a profile: a value with unit, source, and uncertainty."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log1p
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StrictStr, model_validator
from pydantic_core import CoreSchema, core_schema

from simgnn.units import example, format_quantity, parse

Source = Literal["measured", "published", "datasheet", "assumed"]
"""Where a number comes from. measured: by a calibration of this hardware; published: printed by others; datasheet:
promised by the manufacturer; assumed: none of these, and results report it."""
SOURCES: tuple[Source, ...] = ("measured", "published", "datasheet", "assumed")
LARGEST, SMALLEST = 1e24, 1e-24
"""Limits in SI units. No machine has numbers beyond them, and products of larger numbers overflow."""
LARGEST_SPREAD = 10.0
"""Largest standard deviation of a logarithm. Measured ones are below one. At ten, the 90 % interval spans seven orders
of magnitude on either side."""


def read_number(text: Any, dimension: str, positive: bool = False, most: float = LARGEST) -> float:
    """Parse the text of a field into an SI number of at most ``most``. ``positive``: zero is not allowed."""
    number = parse(text, dimension)
    if positive and number == 0:
        raise ValueError(f"got '{text}', expected more than zero, such as '{example(dimension)}'")
    if number > most or (positive and number < SMALLEST):
        way, limit, end = ("large", "at most", most) if number > most else ("small", "at least", SMALLEST)
        raise ValueError(
            f"got '{text}', which is too {way} for any machine; expected {limit} {format_quantity(end, dimension)}"
        )
    return number


class Strict(BaseModel):
    """Base class of the tables of a profile: frozen, and unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Unit:
    """Annotation of a float field that is text with a unit in the file and an SI number in memory."""

    dimension: str
    positive: bool = True
    most: float = LARGEST

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(text: Any) -> float:
            return read_number(text, self.dimension, self.positive, self.most)

        def write(number: float) -> str:
            return format_quantity(number, self.dimension)

        return core_schema.no_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )


Bytes = Annotated[float, Unit("bytes")]
BytesOrNone = Annotated[float, Unit("bytes", positive=False)]
BytesPerSecond = Annotated[float, Unit("bytes/s")]
Seconds = Annotated[float, Unit("s", positive=False)]
Hertz = Annotated[float, Unit("Hz")]
Watts = Annotated[float, Unit("W", positive=False)]
Cores = Annotated[float, Unit("cores")]
Ratio = Annotated[float, Unit("ratio", positive=False)]
Factor = Annotated[float, Unit("ratio")]
Spread = Annotated[float, Unit("ratio", positive=False, most=LARGEST_SPREAD)]
"""A relative standard deviation."""


class Number(Strict):
    """Base class of numbers with a source. ``spread``: relative standard deviation. ``range``: measured message sizes
    in bytes, smallest and largest. ``note``: the exact origin of the number."""

    dimension: ClassVar[str]

    source: Source
    spread: Spread | None = None
    range: tuple[BytesOrNone, BytesOrNone] | None = None
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError("range: expected two sizes, the smaller first")
        return self

    @classmethod
    def of(
        cls,
        value: float,
        source: Source,
        *,
        spread: float | None = None,
        range: tuple[float, float] | None = None,
        note: str | None = None,
    ) -> Self:
        """Build a number from SI values: ``Bandwidth.of(22.7e9, "published")``."""
        return cls.model_validate(
            {
                "value": format_quantity(value, cls.dimension),
                "source": source,
                "spread": None if spread is None else format_quantity(spread, "ratio"),
                "range": None if range is None else [format_quantity(end, "bytes") for end in range],
                "note": note,
            }
        )


class Size(Number):
    dimension = "bytes"
    value: Bytes


class Bandwidth(Number):
    dimension = "bytes/s"
    value: BytesPerSecond


class Duration(Number):
    dimension = "s"
    value: Seconds


class Power(Number):
    dimension = "W"
    value: Watts


class Frequency(Number):
    dimension = "Hz"
    value: Hertz


class CoreCount(Number):
    """A number of cores. It may be a fraction, such as the CPU quota of a container."""

    dimension = "cores"
    value: Cores


class Point(Strict):
    """One point of a curve over size: at ``size`` bytes, the factor ``share`` (100 %: no change)."""

    size: BytesOrNone
    share: Factor


class Points(Strict):
    """A curve of factors over size: linear in the logarithm of the size between points, constant outside them."""

    source: Source
    points: Annotated[tuple[Point, ...], Field(min_length=1)]
    spread: Spread | None = None
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        sizes = [point.size for point in self.points]
        if any(later <= earlier for earlier, later in pairwise(sizes)):
            raise ValueError("points: expected strictly ascending sizes")
        return self

    @classmethod
    def of(cls, sizes: list[float], shares: list[float], source: Source, spread: float | None = None) -> Self:
        """Build a curve from ascending sizes in bytes and factors (1.0 = 100 %)."""
        points = [
            {"size": format_quantity(size, "bytes"), "share": format_quantity(share, "ratio")}
            for size, share in zip(sizes, shares, strict=True)
        ]
        table = {"source": source, "points": points}
        return cls.model_validate(table if spread is None else {**table, "spread": format_quantity(spread, "ratio")})

    def at(self, nbytes: float) -> float:
        """Return the factor at a size, interpolated between points."""
        earlier = self.points[0]
        if nbytes <= earlier.size:
            return earlier.share
        for point in self.points[1:]:
            if nbytes <= point.size:
                low, high = log1p(earlier.size), log1p(point.size)
                weight = (log1p(nbytes) - low) / (high - low)
                return earlier.share + weight * (point.share - earlier.share)
            earlier = point
        return earlier.share


def sourced(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key path, part) for every part of a table that has a source: numbers, curves and other tables."""
    if isinstance(value, Mapping):
        entries: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, tuple):
        entries = enumerate(value)
    elif isinstance(value, Strict):
        if getattr(value, "source", None) is not None:
            yield key, value
        entries = ((name, getattr(value, name)) for name in type(value).model_fields)
    else:
        return
    for name, entry in entries:
        yield from sourced(entry, f"{key}.{name}")
