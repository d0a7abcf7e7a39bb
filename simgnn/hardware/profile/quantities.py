"""Numbers of a profile: a value with its unit, where it comes from and how far it can be trusted."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log1p
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StrictStr, model_validator
from pydantic_core import CoreSchema, core_schema

from simgnn.units import example, format_quantity, parse

Source = Literal["measured", "published", "datasheet", "assumed"]
"""measured: on the hardware itself by a calibration; published: by others, in print; datasheet: what the maker
promises; assumed: neither, and results say so."""
SOURCES: tuple[Source, ...] = ("measured", "published", "datasheet", "assumed")
LARGEST, SMALLEST = 1e24, 1e-24
"""In SI units; beyond them no machine has a number, and products of numbers overflow."""
LARGEST_SPREAD = 10.0
"""Standard deviations are those of logarithms, and measured ones are below one. With ten, the 90 % interval is seven
orders of magnitude wide on either side."""


def read_number(text: Any, dimension: str, positive: bool = False, most: float = LARGEST) -> float:
    """The SI number of a field's text, up to ``most``; ``positive``: something is divided by it."""
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
    """A frozen table of a profile that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Unit:
    """Marks a float field that is text with a unit in the file and an SI number inside."""

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
Watts = Annotated[float, Unit("W", positive=False)]
Cores = Annotated[float, Unit("cores")]
Ratio = Annotated[float, Unit("ratio", positive=False)]
Factor = Annotated[float, Unit("ratio")]
Spread = Annotated[float, Unit("ratio", positive=False, most=LARGEST_SPREAD)]
"""A standard deviation as a share."""


class Number(Strict):
    """Base of sourced numbers. ``spread``: standard deviation as a share of the value. ``range``: sizes of messages,
    in bytes, between which it was measured. ``note``: where exactly it comes from."""

    dimension: ClassVar[str]

    source: Source
    spread: Spread | None = None
    range: tuple[BytesOrNone, BytesOrNone] | None = None
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError("range: expected the smaller size first")
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
        """From SI numbers: ``Bandwidth.of(22.7e9, "published")``."""
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


class CoreCount(Number):
    """Cores; a quota of a container may be a fraction."""

    dimension = "cores"
    value: Cores


class Point(Strict):
    """One point of a curve over size: at ``size`` bytes, ``share`` of the reference (100 %: no change)."""

    size: BytesOrNone
    share: Factor


class Points(Strict):
    """A smooth curve over size: linear in the logarithm of the size between points, constant outside them."""

    source: Source
    points: Annotated[tuple[Point, ...], Field(min_length=1)]
    spread: Spread | None = None
    note: StrictStr | None = None

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        sizes = [point.size for point in self.points]
        if any(later <= earlier for earlier, later in pairwise(sizes)):
            raise ValueError("points: expected sizes that ascend, none twice")
        return self

    @classmethod
    def of(cls, sizes: list[float], shares: list[float], source: Source, spread: float | None = None) -> Self:
        """From bytes and factors (1.0 = 100 %), sizes ascending."""
        points = [
            {"size": format_quantity(size, "bytes"), "share": format_quantity(share, "ratio")}
            for size, share in zip(sizes, shares, strict=True)
        ]
        table = {"source": source, "points": points}
        return cls.model_validate(table if spread is None else {**table, "spread": format_quantity(spread, "ratio")})

    def at(self, nbytes: float) -> float:
        """The factor at a size."""
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
    """(key path, part) of every part of a table that states a source: numbers, curves and the like."""
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
