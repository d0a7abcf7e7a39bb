"""Devices of a profile: memory, cores, caches, power, and the curves that give the time of each primitive."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from simgnn.hardware.primitives import PRIMITIVES, SIZES, feature_names, unit_of
from simgnn.hardware.profile.quantities import CoreCount, Frequency, Power, Size, Source, Spread, Strict, read_number
from simgnn.schema_faults import UNREADABLE
from simgnn.spelling import nearest
from simgnn.units import cost_of, format_quantity

Count = Annotated[StrictInt, Field(ge=1)]


class Cache(Strict):
    """A data cache. ``shared_by``: the cores that share one instance; None: the device has a single instance."""

    size: Size
    shared_by: CoreCount | None = None

    def bytes_each(self, cores: float | None, concurrency: float) -> float:
        """Return the cache bytes of one of ``concurrency`` ranks that are spread evenly over the ``cores`` of the
        device, and so over the instances of the cache."""
        if cores is None or self.shared_by is None:
            return self.size.value / max(concurrency, 1.0)
        instances = max(cores / self.shared_by.value, 1.0)
        return self.size.value / max(concurrency / instances, 1.0)


class Curve(Strict):
    """Time of one primitive at one concurrency: ``sum of cost x feature`` (:mod:`simgnn.hardware.price.work`).

    ``concurrency``: ranks that worked on the device at once, each with ``threads`` threads. ``costs``: seconds per unit
    of each feature. ``range``: the smallest and largest measured value of sizes or features; prices outside are flagged
    as extrapolated. ``spread``: standard deviation of measured over predicted time. ``jitter`` and ``drift``: standard
    deviation between repeats, relative to the time, of one rank alone and of all ranks together (None: not measured).
    """

    primitive: StrictStr
    concurrency: Count = 1
    threads: Count = 1
    source: Source
    spread: Spread | None = None
    jitter: Spread | None = None
    drift: Spread | None = None
    samples: Annotated[StrictInt, Field(ge=0)] | None = None
    note: StrictStr | None = None
    costs: Annotated[dict[StrictStr, float], Field(min_length=1)]
    range: dict[StrictStr, tuple[float, float]] = Field(default_factory=dict)

    @field_validator("primitive")
    @classmethod
    def _known(cls, primitive: str) -> str:
        if primitive not in PRIMITIVES:
            known = ", ".join(PRIMITIVES)
            raise ValueError(f"got '{primitive}', expected one of {known}{nearest(primitive, PRIMITIVES)}")
        return primitive

    @field_validator("costs", mode="plain")
    @classmethod
    def _read_costs(cls, table: Any, info: ValidationInfo) -> dict[str, float]:
        row = PRIMITIVES[_primitive_of(info)]
        if not isinstance(table, Mapping) or not table:
            raise ValueError("expected a table of costs, such as { call = '3 us/call', bytes = '20 GB/s' }")
        faults, costs = [], {}
        for name, text in table.items():
            base, slash, _ = name.partition("/")
            if name not in row.plain and not (slash and base in row.per_cache):
                choices = [*row.plain, *(f"{entry}/<cache>" for entry in row.per_cache)]
                faults.append(
                    f"{name}: not a feature of {row.name}{nearest(name, choices)}; known: {', '.join(choices)}"
                )
                continue
            try:
                costs[name] = read_number(text, cost_of(unit_of(name)))
            except ValueError as error:
                faults.append(f"{name}: {error}")
        if not faults and not any(costs.values()):
            faults.append("all costs are zero, expected at least one above zero")
        if faults:
            raise ValueError("; ".join(faults))
        return costs

    @field_validator("range", mode="plain")
    @classmethod
    def _read_range(cls, table: Any, info: ValidationInfo) -> dict[str, tuple[float, float]]:
        primitive = _primitive_of(info)
        if not isinstance(table, Mapping):
            raise ValueError("expected a table of ranges, such as { rows = ['16 rows', '1e6 rows'] }")
        faults, ranges = [], {}
        for name, ends in table.items():
            dimension = range_dimension(name, primitive)
            if dimension is None:
                choices = [*SIZES, *feature_names(primitive)]
                faults.append(f"{name}: neither a size nor a feature of {primitive}{nearest(name, choices)}")
            elif not isinstance(ends, list | tuple) or len(ends) != 2:
                faults.append(f"{name}: expected the smallest and the largest value, such as ['16 {dimension}', ...]")
            else:
                try:
                    low, high = (read_number(end, dimension) for end in ends)
                except ValueError as error:
                    faults.append(f"{name}: {error}")
                    continue
                if low > high:
                    faults.append(f"{name}: got [{ends[0]}, {ends[1]}], expected the smaller value first")
                ranges[name] = (low, high)
        if faults:
            raise ValueError("; ".join(faults))
        return ranges

    @model_validator(mode="after")
    def _complete(self) -> Self:
        absent = [name for name in ("spread", "samples") if getattr(self, name) is None]
        absent += [] if self.range else ["range"]
        if self.source == "measured" and absent:
            raise ValueError(
                f"source is 'measured', but {', '.join(absent)} is missing; a measured curve must state it"
            )
        return self

    @field_serializer("costs")
    def _write_costs(self, costs: dict[str, float]) -> dict[str, str]:
        return _costs_as_text(costs)

    @field_serializer("range")
    def _write_range(self, ranges: dict[str, tuple[float, float]]) -> dict[str, list[str]]:
        return _range_as_text(ranges, self.primitive)

    @property
    def caches(self) -> tuple[str, ...]:
        """Names of the caches in the costs or ranges."""
        names = {name.partition("/")[2] for name in (*self.costs, *self.range)}
        return tuple(sorted(names - {""}))

    @classmethod
    def of(
        cls,
        primitive: str,
        costs: Mapping[str, float],
        source: Source,
        *,
        spread: float | None = None,
        jitter: float | None = None,
        drift: float | None = None,
        range: Mapping[str, tuple[float, float]] | None = None,
        **fields: int | str | None,
    ) -> Self:
        """Build a curve from SI numbers: costs in seconds per unit of a feature, ranges in SI units. ``fields``: all
        other fields of the curve, unchanged."""
        shares = {"spread": spread, "jitter": jitter, "drift": drift}
        table = {
            "primitive": primitive,
            "source": source,
            **fields,
            **{name: None if share is None else format_quantity(share, "ratio") for name, share in shares.items()},
            "costs": _costs_as_text(costs),
            "range": _range_as_text(range or {}, primitive),
        }
        return cls.model_validate(table)


def _costs_as_text(costs: Mapping[str, float]) -> dict[str, str]:
    return {name: format_quantity(cost, cost_of(unit_of(name))) for name, cost in costs.items()}


def _range_as_text(ranges: Mapping[str, tuple[float, float]], primitive: str) -> dict[str, list[str]]:
    written = {}
    for name, ends in ranges.items():
        dimension = range_dimension(name, primitive)
        assert dimension is not None, f"{name} is neither a size nor a feature of {primitive}"
        written[name] = [format_quantity(float(end), dimension) for end in ends]
    return written


def range_dimension(name: str, primitive: str) -> str | None:
    """Return the unit family of a size or feature in ``range``; None if the primitive has neither."""
    if name in SIZES:
        return SIZES[name].dimension
    cache = name.partition("/")[2]
    if name not in feature_names(primitive, (cache,) if cache else ()):
        return None
    return {"B": "bytes", "flop": "flops"}.get(unit_of(name), unit_of(name))


def _primitive_of(info: ValidationInfo) -> str:
    if "primitive" not in info.data:
        raise PydanticCustomError(UNREADABLE, "cannot be checked until 'primitive' is valid")
    return str(info.data["primitive"])


class Device(Strict):
    """One kind of device. ``peer_to_peer``: whether GPUs reach each other's memory without a copy through the host.

    ``cores``: CPU cores that all ranks of the host share; None for a GPU. ``sockets``: number of CPU sockets that this
    device stands for; ranks may move between them. ``clock``: nominal (base) clock of a CPU, which scales
    work that was only measured on other machines. None: not stated, as for power.
    """

    kind: Literal["cpu", "gpu"]
    model: StrictStr | None = None
    memory: Size
    cores: CoreCount | None = None
    sockets: Count | None = None
    clock: Frequency | None = None
    idle_power: Power | None = None
    active_power: Power | None = None
    peer_to_peer: StrictBool = True
    caches: dict[StrictStr, Cache] = Field(default_factory=dict)
    curves: tuple[Curve, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = []
        if self.kind == "cpu" and self.cores is None:
            faults.append("cores: missing; a CPU needs { value = '8 cores', source = '...' }")
        idle, active = self.idle_power, self.active_power
        if idle is not None and active is not None and idle.value > active.value:
            faults.append(
                f"idle_power: got {format_quantity(idle.value, 'W')}, which is above active_power, "
                f"{format_quantity(active.value, 'W')}; expected at most active_power"
            )
        seen: set[tuple[str, int, int]] = set()
        for curve in self.curves:
            key = (curve.primitive, curve.concurrency, curve.threads)
            if key in seen:
                faults.append(
                    f"curves: two curves of {key[0]} for concurrency {key[1]} and {key[2]} threads; expected one"
                )
            seen.add(key)
            for name in curve.caches:
                if name not in self.caches:
                    known = ", ".join(self.caches) or "none"
                    faults.append(
                        f"curves: {curve.primitive} counts misses of cache '{name}', which the device does not have"
                        f"{nearest(name, self.caches)}; its caches: {known}"
                    )
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def staged(self) -> bool:
        """Whether messages of the device are copied through host memory: it is a GPU without peer-to-peer access."""
        return self.kind == "gpu" and not self.peer_to_peer

    def cache_shares(self, names: Iterable[str], concurrency: float) -> dict[str, float]:
        """Return the bytes of each named cache that one of ``concurrency`` ranks has."""
        cores = None if self.cores is None else self.cores.value
        return {name: self.caches[name].bytes_each(cores, concurrency) for name in names}

    def curves_of(self, primitive: str) -> tuple[Curve, ...]:
        return tuple(curve for curve in self.curves if curve.primitive == primitive)
