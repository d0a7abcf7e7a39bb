"""Fit the device table of a profile: properties read from the host, and a cost curve for each primitive and level.

A level is how many ranks work at the same time, and with how many threads each.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.fit.samples import Cache, Facts, Sample
from simgnn.analysis.fit.solver import Fit, solve
from simgnn.errors import HardwareError
from simgnn.hardware.price.work import features
from simgnn.hardware.primitives import PRIMITIVES, SPMM
from simgnn.hardware.profile.devices import Cache as ProfileCache
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.quantities import CoreCount, Size
from simgnn.hardware.topology.topology import Edge, Host, Placed

FloatArray = NDArray[np.float64]

FEWEST_CACHED_LEVEL = 2
"""Lowest cache level with terms in curves. Prefetching hides the misses of the first level."""
REACH = "TLB"
"""Name under which a profile holds the reach of address translation as one more cache. Each access to rows further
apart costs a page table walk, on virtual machines the largest part of a random read. No file states it."""
REACH_MIB = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SWITCH = "switch"
"""The node that links the GPUs of a host."""


@dataclass(frozen=True)
class CurveFit:
    curve: Curve
    fit: Fit


def fit_device(facts: Facts, samples: Sequence[Sample]) -> tuple[Device, list[CurveFit]]:
    """Fit a device and its curves. Raises :class:`HardwareError` for samples that do not determine a curve."""
    gpu = is_gpu(facts)
    cores = cores_of(facts)
    caches = with_reach(samples, profile_caches(facts.device_caches if gpu else facts.caches), cores)
    curves = fit_curves(samples, caches, cores)
    # ranks are not pinned to sockets, so measurements average over all: one device stands for them
    sockets = "" if (facts.sockets or 1) == 1 else f", on {facts.sockets} sockets, over which ranks roam"
    note = f"cores that this process may use{sockets}"
    device = Device(
        kind="gpu" if gpu else "cpu",
        model=facts.device_name if gpu else facts.cpu_model,
        memory=Size.of(facts.device_memory_bytes or facts.memory_bytes, "measured", note="read from the system"),
        cores=None if gpu else CoreCount.of(facts.cores, "measured", note=note),
        sockets=None if gpu else facts.sockets,
        caches=caches,
        curves=tuple(entry.curve for entry in curves),
    )
    return device, curves


def is_gpu(facts: Facts) -> bool:
    return facts.device != "cpu"


def cores_of(facts: Facts) -> float | None:
    """Return the number of cores that the ranks of a host share; None if they use GPUs."""
    return None if is_gpu(facts) else float(facts.cores)


def profile_caches(caches: Sequence[Cache]) -> dict[str, ProfileCache]:
    """Return the caches from the second level on as entries of a profile, by name ("L2")."""
    return {
        f"L{cache.level}": ProfileCache(
            size=Size.of(cache.size_bytes, "measured", note=f"read from {cache.source}"),
            shared_by=CoreCount.of(cache.sharers, "measured"),
        )
        for cache in caches
        if cache.level >= FEWEST_CACHED_LEVEL
    }


def with_reach(
    samples: Sequence[Sample], caches: Mapping[str, ProfileCache], cores: float | None
) -> dict[str, ProfileCache]:
    """Return the caches and :data:`REACH`, of the size in REACH_MIB with the least errors at held-out aggregations."""
    spmm = [sample for sample in samples if sample.primitive == SPMM.name]
    if not spmm:
        return dict(caches)
    candidates = []
    for size in REACH_MIB:
        note = "fitted: beyond it a random read costs a walk through the page tables"
        reach = ProfileCache(
            size=Size.of(float(size << 20), "measured", note=note),
            shared_by=None if cores is None else CoreCount.of(1, "measured"),
        )
        together = {**caches, REACH: reach}
        curves = fit_curves(spmm, together, cores)
        candidates.append((sum(entry.fit.mean_error for entry in curves), size, together))
    return min(candidates, key=lambda one: one[:2])[2]


def fit_curves(samples: Sequence[Sample], caches: Mapping[str, ProfileCache], cores: float | None) -> list[CurveFit]:
    """Fit a curve for every primitive and level in the samples.

    ``cores``: number of cores that the ranks share (None: a GPU). Raises :class:`HardwareError` if the samples of a
    primitive do not determine its curve.
    """
    levels: dict[tuple[str, int, int], list[Sample]] = {}
    for sample in samples:
        if sample.primitive in PRIMITIVES:
            levels.setdefault((sample.primitive, sample.active, sample.threads), []).append(sample)
    order = list(PRIMITIVES)
    return [
        _fit_level(levels[key], caches, cores) for key in sorted(levels, key=lambda key: (order.index(key[0]), key[1:]))
    ]


def _fit_level(samples: Sequence[Sample], caches: Mapping[str, ProfileCache], cores: float | None) -> CurveFit:
    primitive, active, threads = samples[0].primitive, samples[0].active, samples[0].threads
    table = _features(samples, {name: cache.bytes_each(cores, active) for name, cache in caches.items()})
    names = [name for name in terms_of(primitive, tuple(caches)) if np.any(table[name] > 0)]
    columns = np.column_stack([table[name] for name in names])
    seconds = np.array([sample.seconds for sample in samples])
    fit = solve(columns, seconds, f"{primitive}, {active} ranks at once", _groups(samples))
    costs = {name: float(f"{cost:.4g}") for name, cost in zip(names, fit.coefficients, strict=True) if cost > 0}
    ranges = {}
    for name in PRIMITIVES[primitive].ranged:
        # less work than measured costs a call; a row narrower than any that was measured is extrapolated
        values = table[name] if name in table else np.array([sample.sizes.get(name, 0.0) for sample in samples])
        ranges[name] = (float(values.min()) if name == "width" else 0.0, float(values.max()))
    curve = Curve.of(
        primitive,
        costs,
        "measured",
        concurrency=active,
        threads=threads,
        spread=fit.spread,
        jitter=_pooled(seconds, [sample.jitter_s for sample in samples]),
        drift=_pooled(seconds, [sample.drift_s for sample in samples]),
        samples=fit.used,
        range=ranges,
        note=f"median error {fit.median_error:.1%}, worst {np.expm1(fit.worst):.0%}, cross-validated; "
        f"{fit.left_out} outliers left out",
    )
    return CurveFit(curve, fit)


def _pooled(seconds: FloatArray, deviations: Sequence[float | None]) -> float | None:
    """Root mean square of the relative deviations of samples, weighted by their times, since long ops dominate an
    epoch. None: no sample was repeated often enough."""
    known = [(time, found) for time, found in zip(seconds.tolist(), deviations, strict=True) if found is not None]
    if not known:
        return None
    square = sum(found * found / time for time, found in known) / sum(time for time, _ in known)
    return float(f"{np.sqrt(square):.3g}")


def terms_of(primitive: str, caches: tuple[str, ...]) -> list[str]:
    """Return the features that the curve of a primitive may use on a device with these caches: bytes that miss each
    cache, rows that miss :data:`REACH`, and by how many bytes the data exceed each of the other caches."""
    of_caches = {
        "missed_bytes": caches,
        "missed_rows": [cache for cache in caches if cache == REACH],
        "beyond_bytes": [cache for cache in caches if cache != REACH],
    }
    names: list[str] = []
    for term in PRIMITIVES[primitive].terms:
        names += [f"{term}/{cache}" for cache in of_caches[term]] if term in of_caches else [term]
    return names


def _groups(samples: Sequence[Sample]) -> list[str] | None:
    """Name the group of each sample, which is held out as a whole: one graph, or one layer shape; None: no groups."""
    primitive = PRIMITIVES[samples[0].primitive]
    if primitive.by_form:
        return [sample.form.removesuffix("-reversed") for sample in samples]
    if primitive.by_shape:
        return [str(sorted(sample.sizes[name] for name in primitive.by_shape)) for sample in samples]
    return None


def _features(samples: Sequence[Sample], caches: Mapping[str, float]) -> dict[str, FloatArray]:
    primitive = samples[0].primitive
    names = set(samples[0].sizes)
    if any(set(sample.sizes) != names for sample in samples):
        raise HardwareError(
            f"samples of '{primitive}' do not all state the same sizes; measure again with `simgnn calibrate`"
        )
    sizes = {name: np.array([sample.sizes[name] for sample in samples]) for name in sorted(names)}
    profiles = [sample.locality for sample in samples]
    locality = None if any(profile is None for profile in profiles) else np.array(profiles, dtype=np.float64)
    return features(primitive, sizes, locality, caches)


def host_of(facts: Facts, device: str, link: str | None) -> tuple[Host, str]:
    """Return a host of the topology, and its node that other hosts reach. ``device``, ``link``: names of their types.

    Ranks on a CPU share its loopback. GPUs are connected to one switch, by links of the measured rate. If one rank
    measured alone (``link`` None), the device has no link, as the rate between two ranks is unknown.
    """
    memory = Size.of(facts.memory_bytes, "measured", note="read from the system")
    if not is_gpu(facts):
        edges = () if link is None else (Edge(between=("cpu", "cpu"), link=link),)
        return Host(devices=(Placed(name="cpu", type=device),), edges=edges), "cpu"
    if link is None:
        return Host(memory=memory, devices=(Placed(name="gpu", type=device),)), "gpu"
    placed = Placed(name="gpu", type=device, count=facts.devices or 1)
    edges = (Edge(between=("gpu", SWITCH), link=link),)
    return Host(memory=memory, devices=(placed,), nodes={SWITCH: "nvswitch"}, edges=edges), SWITCH


def describe_host(facts: Facts) -> str:
    return facts.device_name or facts.device if is_gpu(facts) else f"{facts.cpu_model}, {facts.cores} cores"


def host_name(host: str) -> str:
    """Convert a host name to a valid profile name."""
    cleaned = re.sub(r"[^A-Za-z0-9_.+-]", "-", host.split(".")[0])
    return cleaned if cleaned[:1].isalpha() else f"host-{cleaned}"
