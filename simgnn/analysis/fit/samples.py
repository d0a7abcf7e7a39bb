"""Read and check the samples file that ``python -m executor.microbench`` writes."""

from collections.abc import Hashable, Sequence
from datetime import datetime
from math import sqrt
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from simgnn.errors import HardwareError
from simgnn.schema_faults import sentences


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sample(_Strict):
    """One measurement: mean seconds of a primitive at these sizes. ``hosts``: numbers of the hosts whose ranks took
    part, ``ranks`` in all; ``active``: ranks that worked at once on a host.

    ``last_s``: time of the slowest rank. ``mad_s``: median absolute deviation of the repeats. ``locality``:
    :func:`simgnn.graph.locality.reuse_profile` of the index stream (None: no indices). ``jitter_s``, ``drift_s``:
    standard deviation between repeats, of each rank by itself and common to all (None: too few repeats).
    """

    primitive: str
    form: str
    sizes: dict[str, float]
    hosts: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    ranks: PositiveInt
    active: PositiveInt
    threads: PositiveInt
    seconds: PositiveFloat
    last_s: PositiveFloat
    mad_s: float = Field(ge=0)
    repeats: PositiveInt
    locality: tuple[float, ...] | None = None
    jitter_s: float | None = Field(default=None, ge=0)
    drift_s: float | None = Field(default=None, ge=0)


class Cache(_Strict):
    """A data cache as seen by one core; ``sharers`` cores use one instance."""

    level: PositiveInt
    size_bytes: PositiveInt
    sharers: PositiveInt
    source: str


class Facts(_Strict):
    """Properties of the measured machine that were read from the system, not timed."""

    host: str
    system: str
    cpu_model: str
    cores: PositiveInt
    sockets: PositiveInt | None = None
    memory_bytes: PositiveInt
    caches: tuple[Cache, ...]
    python: str
    torch: str
    device: str
    allocator: bool = False
    device_name: str | None = None
    device_memory_bytes: PositiveInt | None = None
    device_caches: tuple[Cache, ...] = ()
    devices: PositiveInt | None = None


class MeasuredHost(_Strict):
    """A host that took part: its ranks, and the properties that its first rank read there."""

    ranks: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    facts: Facts


class SampleFile(_Strict):
    """All samples of one group of ranks that measured together. ``hosts``: indexed by :attr:`Sample.hosts`."""

    format: Literal["simgnn-samples"]
    version: Literal[2]
    started: datetime
    hosts: Annotated[tuple[MeasuredHost, ...], Field(min_length=1)]
    backend: str
    ranks: PositiveInt
    threads: PositiveInt
    quick: bool
    samples: tuple[Sample, ...]

    def rank_hosts(self) -> tuple[int, ...]:
        at = {rank: number for number, host in enumerate(self.hosts) for rank in host.ranks}
        return tuple(at[rank] for rank in range(self.ranks))

    def of_hosts(self, *hosts: int) -> list[Sample]:
        """Return the samples in which ranks of exactly these hosts took part."""
        return [sample for sample in self.samples if sample.hosts == hosts]


def read_samples(path: Path) -> SampleFile:
    """Read one samples file. Raises :class:`HardwareError` if it cannot be read or is invalid."""
    try:
        return SampleFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise HardwareError(f"samples file {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise HardwareError(
            f"{path} is not a samples file that this version reads: {sentences(SampleFile, error)[0]}; "
            "measure again with `simgnn calibrate`"
        ) from error


def pool_passes(files: Sequence[SampleFile]) -> list[SampleFile]:
    """Merge repeated passes into one file per group of ranks, in order of first appearance. A single pass is unchanged.

    The time of a sample becomes the mean over passes, weighted by repeats. The deviation between passes is added to the
    drift (the part of the deviation that affects all ranks alike). The merged file has the date of the last pass.
    Raises :class:`HardwareError` for passes of different machines, torch versions or thread counts.
    """
    groups: dict[int, list[SampleFile]] = {}
    for file in files:
        groups.setdefault(file.ranks, []).append(file)
    return [passes[0] if len(passes) == 1 else _pool(passes) for passes in groups.values()]


def _pool(passes: Sequence[SampleFile]) -> SampleFile:
    first = passes[0]
    for other in passes[1:]:
        if _where(first) != _where(other):
            raise HardwareError(
                f"passes with {first.ranks} ranks differ: got {_where(other)} after {_where(first)}, expected the same "
                "hosts, devices, torch, threads and sizes. Calibrate again with --fresh."
            )
    probes: dict[Hashable, list[Sample]] = {}
    for file in passes:
        for s in file.samples:
            key = s.primitive, s.form, tuple(sorted(s.sizes.items())), s.hosts, s.ranks, s.active, s.threads
            probes.setdefault(key, []).append(s)
    samples = tuple(_mean(samples) for samples in probes.values())
    return first.model_copy(update={"started": max(file.started for file in passes), "samples": samples})


def _where(file: SampleFile) -> dict[str, object]:
    read = ("host", "cores", "device", "torch", "allocator")
    hosts = [({name: getattr(host.facts, name) for name in read}, host.ranks) for host in file.hosts]
    return {"hosts": hosts, "threads": file.threads, "backend": file.backend, "quick": file.quick}


def _mean(samples: Sequence[Sample]) -> Sample:
    def mean(values: Sequence[float], samples: Sequence[Sample]) -> float:
        weighted = sum(value * sample.repeats for value, sample in zip(values, samples, strict=True))
        return weighted / sum(sample.repeats for sample in samples)

    seconds = mean([sample.seconds for sample in samples], samples)
    between = mean([(sample.seconds - seconds) ** 2 for sample in samples], samples)
    known = [sample for sample in samples if sample.jitter_s is not None]
    jitter, drift = ([getattr(s, name) or 0.0 for s in known] for name in ("jitter_s", "drift_s"))
    return samples[0].model_copy(
        update={
            "seconds": seconds,
            "last_s": mean([sample.last_s for sample in samples], samples),
            "mad_s": mean([sample.mad_s for sample in samples], samples),
            "repeats": sum(sample.repeats for sample in samples),
            "jitter_s": sqrt(mean([own**2 for own in jitter], known)) if known else None,
            "drift_s": sqrt(mean([common**2 for common in drift], known) + between) if known else None,
        }
    )
