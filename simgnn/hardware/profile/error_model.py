"""By how much prices miss that rest on no measurement of the machine: standard deviations by family, fitted to errors
on groups that were left out (``python -m tools.fit_errors``), and the machine whose curves are carried to others.

The variance of a price is that of the number behind it plus ``per_octave`` squared for each doubling between what was
measured and what is asked for, as errors of independent doublings add up. Constants are in ``hwprofiles/reference``.
"""

import datetime
from collections.abc import Mapping, Sequence
from functools import cache
from math import hypot, sqrt
from typing import Annotated, Literal

from pydantic import Field, StrictInt, StrictStr, ValidationError, field_validator, model_validator

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import SIZES
from simgnn.hardware.profile.communication import Spreads, check_ascending
from simgnn.hardware.profile.library import shipped_folder
from simgnn.hardware.profile.profile import Profile, load_profile, load_table
from simgnn.hardware.profile.quantities import Ratio, Spread, Strict
from simgnn.schema_faults import sentences
from simgnn.units import parse

LEVEL = 0.9
QUANTILE = 1.6448536269514722
"""Quantile of the standard normal: a share LEVEL of the distribution is within plus or minus this value."""
FOLDER = "reference"
"""Folder beside the shipped profiles that holds the error model and the reference machine."""


class Family(Strict):
    """Errors of one kind of price. ``spread``: relative standard deviation of a price that rests on no measurement of
    the machine (None: such prices rest on one). ``per_octave``: what each doubling of the distance from the nearest
    measurement adds, by size of the message; one step where size does not matter (None: no distance is defined).
    ``range``: sizes and features (SI) of the measurements behind the spread of work, where it rests on few.

    ``groups``, ``errors``: groups left out in turn, and errors on them. ``coverage``: the share of these errors inside
    90 % intervals whose constants were fitted without the group. ``width``: median width of these intervals, high over
    low. ``narrowest``: the same of the narrowest interval of one constant factor with that coverage. None: too few
    groups to leave one out; ``note`` says by which rule the width was chosen.
    """

    spread: Spread | None = None
    per_octave: Spreads | None = None
    range: dict[StrictStr, tuple[float, float]] = Field(default_factory=dict)
    groups: Annotated[StrictInt, Field(ge=1)]
    errors: Annotated[StrictInt, Field(ge=1)]
    coverage: Ratio | None = None
    width: Ratio | None = None
    narrowest: Ratio | None = None
    note: StrictStr

    @field_validator("range", mode="before")
    @classmethod
    def _read_range(cls, table: Mapping[str, Sequence[str]]) -> dict[str, tuple[float, float]]:
        return {
            name: (parse(ends[0], range_of(name)), parse(ends[1], range_of(name))) for name, ends in dict(table).items()
        }

    @model_validator(mode="after")
    def _sensible(self) -> "Family":
        if self.spread is None and self.per_octave is None:
            raise ValueError("expected spread, per_octave, or both")
        check_ascending("per_octave", self.per_octave or ())
        return self

    def beyond(self, octaves: float, nbytes: float = 0.0) -> float:
        """Return the standard deviation that this distance from the nearest measurement adds, at a message size."""
        if octaves <= 0.0 or self.per_octave is None:
            return 0.0
        reached = [step for step in self.per_octave if step.size <= nbytes]
        return (reached[-1] if reached else self.per_octave[0]).share * sqrt(octaves)


class ErrorModel(Strict):
    """The errors of all families of prices, by name, and how they were fitted."""

    format: Literal[1] = 1
    date: datetime.date
    made_by: StrictStr
    families: dict[StrictStr, Family]

    def of(self, name: str) -> Family:
        """Return a family. Raises :class:`HardwareError` for one that the file lacks."""
        if name not in self.families:
            raise HardwareError(f"{FOLDER}/errors.toml: no family '{name}'; it has: {', '.join(self.families)}")
        return self.families[name]

    def of_work(self, kind: str, primitive: str) -> Family:
        """Return the family of assumed curves of a primitive on a device of this kind ("cpu", "gpu")."""
        return self.of(f"work/{kind}/{primitive}")


def range_of(name: str) -> str:
    """Return the unit family of a size or of the feature ``flops`` in the range of a family."""
    return SIZES[name].dimension if name in SIZES else name


def combined(*spreads: float | None) -> float | None:
    """Combine independent standard deviations; None only if all are unknown."""
    known = [spread for spread in spreads if spread is not None]
    return hypot(*known) if known else None


@cache
def error_model() -> ErrorModel:
    """Return the shipped error model. Raises :class:`HardwareError` for a damaged file."""
    path = shipped_folder() / FOLDER / "errors.toml"
    try:
        return ErrorModel.model_validate(load_table(path))
    except ValidationError as error:
        raise HardwareError("\n".join(f"{path}: {fault}" for fault in sentences(ErrorModel, error))) from None


@cache
def reference_machine() -> Profile:
    """Return the profile of the measured machine whose curves price work that other CPUs have no curve of."""
    return load_profile(shipped_folder() / FOLDER / "vm-xeon-2.toml")
