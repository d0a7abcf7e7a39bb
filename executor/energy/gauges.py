"""What energy is read from: RAPL counters of processors and memory, NVML counters or power of GPUs.

RAPL is read from Linux's powercap folder. Each domain has a folder with its ``name``, a counter ``energy_uj``
(microjoules) and the value after which that begins anew, ``max_energy_range_uj``. Packages are summed. Their parts
(core, uncore) and the platform (psys), which includes them, are left out. RAPL counts the energy of the whole machine,
whatever else runs there.
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
"""First letters of the names of the domains that are counted."""
J_PER_UJ = 1e-6
J_PER_MJ = 1e-3
W_PER_MW = 1e-3


@dataclass(frozen=True)
class Sensor:
    """Something that can be read again and again.

    ``read()`` returns a reading and raises :class:`BackendError` with the reason where there is none.
    ``joules(times_s, readings)`` returns the energy since the first reading, at each of them, and raises
    :class:`BackendError` for impossible readings.
    """

    read: Callable[[], float]
    joules: Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Gauge:
    """Energy of one part of this host: the sum of its ``sensors``. Without sensors, ``reason`` says why it is unknown.

    ``name``: what is measured; ``source``: how; ``ranks``: those that share it.
    """

    part: Part
    name: str
    source: str = ""
    sensors: tuple[Sensor, ...] = ()
    reason: str = ""
    ranks: tuple[int, ...] = ()


def counted_joules(readings: Floats, range_j: float | None) -> Floats:
    """Energy since the first reading of a counter of joules, which begins anew after ``range_j`` (None: never).

    Between two readings it may begin anew once at most: they must follow one another faster than it runs through.
    """
    steps = np.diff(readings)
    if range_j is not None:
        steps = np.where(steps < 0, steps + range_j, steps)
    if len(steps) and float(steps.min()) < 0:
        raise BackendError(f"the counter went back by {-float(steps.min()):g} J: it was reset, or the device was")
    return np.concatenate(([0.0], np.cumsum(steps)))


def integrated_power(times_s: Floats, watts: Floats) -> Floats:
    """Energy since the first reading of power, by the trapezoid rule."""
    return np.concatenate(([0.0], np.cumsum(np.diff(times_s) * (watts[1:] + watts[:-1]) / 2)))


def processor_gauges(part: Part, root: Path = POWERCAP) -> list[Gauge]:
    """Gauges of this machine's processors, as ``part`` of it, and of its memory, where that has counters of its own."""
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
    """The sum of some domains. All must be readable: a part of the sum would look like the whole."""
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
            f"{path} may not be read: Linux lets only root do so; run as root, or have root do: chmod a+r {path}"
        ) from error
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} cannot be read: {error}") from error


def load_nvml() -> Any | None:
    """The module ``pynvml`` of nvidia-ml-py; None where it is not installed."""
    try:
        # optional: only hosts with GPUs need it
        import pynvml
    except ImportError:
        return None
    return pynvml


def gpu_gauge(name: str, uuid: str, library: Any | None) -> Gauge:
    """Gauge of the GPU that torch calls ``uuid``: its counter, or its power where it has none (before Volta).

    ``library``: pynvml. NVML stays open until the process ends, so that counters keep their zero.
    """
    if library is None:
        return Gauge("device", name, reason="nvidia-ml-py is not installed: pip install nvidia-ml-py")

    def read(what: str, function: Callable[[Any], int], unit: float) -> float:
        try:
            return float(function(handle)) * unit
        except library.NVMLError as error:
            raise BackendError(f"NVML, {what}: {error}") from error

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
