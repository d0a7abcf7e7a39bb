"""Energy gauges of a machine: RAPL counters of processors and memory, NVML counters or power of GPUs.

RAPL is read from Linux's powercap folder. Each domain has a folder with a ``name``, a counter ``energy_uj``
(microjoules) and the value at which the counter wraps around, ``max_energy_range_uj``. Packages are summed. Parts of a
package (core, uncore) and the platform (psys), which includes packages, are not counted. RAPL counts the energy of the
whole machine, including other programs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simgnn.errors import BackendError
from simgnn.record.energy import Floats, Part

POWERCAP = Path("/sys/class/powercap")
PACKAGE, MEMORY = "package", "dram"
"""Prefixes of the names of the RAPL domains that are counted."""
J_PER_UJ = 1e-6
J_PER_MJ = 1e-3
W_PER_MW = 1e-3


@dataclass(frozen=True)
class Sensor:
    """One readable energy counter or power sensor.

    ``read()`` returns a reading, or raises :class:`BackendError` with the reason. ``joules(times_s, readings)`` returns
    the energy from the first reading to each reading, and raises :class:`BackendError` for impossible readings.
    """

    read: Callable[[], float]
    joules: Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Gauge:
    """The energy of one part of this host: the sum of ``sensors``, or without sensors the ``reason`` why it is unknown.

    ``name``: what is measured; ``source``: with which counter; ``ranks``: the ranks that share the part.
    """

    part: Part
    name: str
    source: str = ""
    sensors: tuple[Sensor, ...] = ()
    reason: str = ""
    ranks: tuple[int, ...] = ()


def counted_joules(readings: Floats, range_j: float | None) -> Floats:
    """Compute the energy since the first reading of a joule counter, which wraps around at ``range_j`` (None: never).

    Readings must be frequent enough that the counter wraps around at most once between two of them.
    """
    steps = np.diff(readings)
    if range_j is not None:
        steps = np.where(steps < 0, steps + range_j, steps)
    if len(steps) and float(steps.min()) < 0:
        raise BackendError(f"the counter went back by {-float(steps.min()):g} J: the counter or the device was reset")
    return np.concatenate(([0.0], np.cumsum(steps)))


def integrated_power(times_s: Floats, watts: Floats) -> Floats:
    """Compute the energy since the first reading of power, by the trapezoid rule."""
    return np.concatenate(([0.0], np.cumsum(np.diff(times_s) * (watts[1:] + watts[:-1]) / 2)))


def processor_gauges(part: Part, root: Path = POWERCAP) -> list[Gauge]:
    """Return gauges of this machine's processors, labelled ``part``, and of memory if RAPL counts it separately."""
    domains: dict[str, Path] = {}  # domains inside others have links here too
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            domains[f"{(folder / 'name').read_text().strip()} ({folder.name})"] = folder
        except OSError:  # a domain without a name is not one that is counted
            continue
    packages = {name: folder for name, folder in domains.items() if name.startswith(PACKAGE)}
    memories = {name: folder for name, folder in domains.items() if name.startswith(MEMORY)}
    if not packages:
        reason = f"no RAPL counter of a package in {root}" if root.is_dir() else f"no RAPL counters: no folder {root}"
        return [Gauge(part, "processors", reason=reason)]
    found = [_rapl_gauge(part, "processors", packages)]
    return [*found, _rapl_gauge("memory", "memory", memories)] if memories else found


def _rapl_gauge(part: Part, name: str, folders: dict[str, Path]) -> Gauge:
    """Sum RAPL domains in one gauge. All must be readable, since a partial sum would look complete."""
    try:
        sensors = tuple(_rapl_sensor(folder) for folder in folders.values())
    except BackendError as error:
        return Gauge(part, name, reason=str(error))
    return Gauge(part, name, f"RAPL energy_uj of {', '.join(folders)}", sensors)


def _rapl_sensor(folder: Path) -> Sensor:
    read = partial(_read_joules, folder / "energy_uj")
    range_j = _read_joules(folder / "max_energy_range_uj")
    read()  # fails now, rather than during the run
    return Sensor(read, lambda times_s, readings: counted_joules(readings, range_j))


def _read_joules(path: Path) -> float:
    try:
        return int(path.read_text()) * J_PER_UJ
    except PermissionError as error:
        raise BackendError(
            f"{path} may not be read: Linux allows it to root only. Run as root, or let root run: chmod a+r {path}"
        ) from error
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} cannot be read: {error}") from error


def load_nvml() -> Any | None:
    """Return the module ``pynvml`` of nvidia-ml-py, or None where it is not installed."""
    try:
        # optional: only hosts with GPUs need it
        import pynvml
    except ImportError:
        return None
    return pynvml


def gpu_gauge(name: str, uuid: str, library: Any | None) -> Gauge:
    """Return the gauge of a GPU: its energy counter, or its power where it has no such counter (before Volta).

    ``uuid``: of the GPU, as torch reports it. ``library``: pynvml. NVML stays open until the process ends.
    """
    if library is None:
        return Gauge("device", name, reason="nvidia-ml-py is not installed: pip install nvidia-ml-py")

    def read(what: str, function: Callable[[Any], int], unit: float) -> float:
        try:
            return float(function(handle)) * unit
        except library.NVMLError as error:
            raise BackendError(f"NVML cannot read the {what} of the GPU: {error}") from error

    try:
        library.nvmlInit()
        handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        try:
            library.nvmlDeviceGetTotalEnergyConsumption(handle)
        except library.NVMLError_NotSupported:
            library.nvmlDeviceGetPowerUsage(handle)
            watts = partial(read, "power", library.nvmlDeviceGetPowerUsage, W_PER_MW)
            source = "NVML power, trapezoid (the GPU has no energy counter)"
            return Gauge("device", name, source, (Sensor(watts, integrated_power),))
    except library.NVMLError as error:
        return Gauge("device", name, reason=f"NVML: {error}")
    joules = partial(read, "energy counter", library.nvmlDeviceGetTotalEnergyConsumption, J_PER_MJ)
    counter = Sensor(joules, lambda times_s, readings: counted_joules(readings, None))
    return Gauge("device", name, "NVML total-energy counter", (counter,))
