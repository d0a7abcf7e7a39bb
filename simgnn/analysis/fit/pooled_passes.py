"""Samples of several passes over the same probes, pooled: a machine that changes speed is measured at several times."""

from collections.abc import Hashable, Sequence
from math import sqrt

from simgnn.analysis.fit.samples import Sample, SampleFile
from simgnn.errors import HardwareError


def pool_passes(files: Sequence[SampleFile]) -> list[SampleFile]:
    """One file for each group of ranks, in order of first appearance; groups measured once are returned as they are.

    A probe's time becomes the mean of its passes, each weighted by its repeats; what the passes differ by is added to
    its drift (the part of its deviation that hits all ranks alike). A file counts as of its last pass. Raises
    :class:`HardwareError` for passes of different machines, torches or threads.
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
                "hosts, devices, torch, threads and sizes: calibrate again with --fresh"
            )
    found: dict[Hashable, list[Sample]] = {}
    for file in passes:
        for sample in file.samples:
            found.setdefault(_probe(sample), []).append(sample)
    samples = tuple(_mean(samples) for samples in found.values())
    return first.model_copy(update={"started": max(file.started for file in passes), "samples": samples})


def _where(file: SampleFile) -> dict[str, object]:
    """What passes have in common."""
    read = ("host", "cores", "device", "torch", "allocator")
    hosts = [({name: getattr(host.facts, name) for name in read}, host.ranks) for host in file.hosts]
    return {"hosts": hosts, "threads": file.threads, "backend": file.backend, "quick": file.quick}


def _probe(sample: Sample) -> Hashable:
    sizes = tuple(sorted(sample.sizes.items()))
    return sample.primitive, sample.form, sizes, sample.hosts, sample.ranks, sample.active, sample.threads


def _mean(samples: Sequence[Sample]) -> Sample:
    weights = [sample.repeats for sample in samples]
    seconds = _weighted([sample.seconds for sample in samples], weights)
    between = _weighted([(sample.seconds - seconds) ** 2 for sample in samples], weights)
    told = [(sample, weight) for sample, weight in zip(samples, weights, strict=True) if sample.jitter_s is not None]
    inside = [(sample.jitter_s or 0.0, sample.drift_s or 0.0) for sample, _ in told]
    counts = [weight for _, weight in told]
    return samples[0].model_copy(
        update={
            "seconds": seconds,
            "last_s": _weighted([sample.last_s for sample in samples], weights),
            "mad_s": _weighted([sample.mad_s for sample in samples], weights),
            "repeats": sum(weights),
            "jitter_s": sqrt(_weighted([own**2 for own, _ in inside], counts)) if told else None,
            "drift_s": sqrt(_weighted([common**2 for _, common in inside], counts) + between) if told else None,
        }
    )


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
