"""NVML: energy of a GPU, from its counter, or from its power where it has none (before Volta)."""

from dataclasses import dataclass
from typing import Any

from executor.energy.gauges import Gauge, Sensor, counted_joules, integrated_power
from simgnn.errors import BackendError
from simgnn.record.energy import Floats

J_PER_MJ = 1e-3
W_PER_MW = 1e-3


def load_library() -> Any | None:
    """The module ``pynvml`` of nvidia-ml-py; None where it is not installed."""
    try:
        # optional: only hosts with GPUs need it
        import pynvml
    except ImportError:
        return None
    return pynvml


@dataclass(frozen=True)
class EnergyCounter:
    """The counter of all energy since the driver was loaded. ``library``: pynvml; ``handle``: its handle of a GPU."""

    library: Any
    handle: Any

    def read(self) -> float:
        """See :class:`~executor.energy.gauges.Sensor`; joules."""
        try:
            return float(self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle)) * J_PER_MJ
        except self.library.NVMLError as error:
            raise BackendError(f"NVML, energy counter: {error}") from error

    def joules(self, times_s: Floats, readings: Floats) -> Floats:
        """See :class:`~executor.energy.gauges.Sensor`."""
        return counted_joules(readings, None)


@dataclass(frozen=True)
class PowerReading:
    """The power that the GPU draws, as its driver tells it."""

    library: Any
    handle: Any

    def read(self) -> float:
        """See :class:`~executor.energy.gauges.Sensor`; watts."""
        try:
            return float(self.library.nvmlDeviceGetPowerUsage(self.handle)) * W_PER_MW
        except self.library.NVMLError as error:
            raise BackendError(f"NVML, power: {error}") from error

    def joules(self, times_s: Floats, readings: Floats) -> Floats:
        """See :class:`~executor.energy.gauges.Sensor`."""
        return integrated_power(times_s, readings)


def gpu_gauge(name: str, uuid: str, library: Any | None) -> Gauge:
    """Of the GPU that torch calls ``uuid``. NVML stays open until the process ends: counters then keep their zero."""
    if library is None:
        return Gauge("device", name, reason="nvidia-ml-py is not installed: pip install nvidia-ml-py")
    try:
        library.nvmlInit()
        handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        try:
            library.nvmlDeviceGetTotalEnergyConsumption(handle)
        except library.NVMLError_NotSupported:
            library.nvmlDeviceGetPowerUsage(handle)
            power: tuple[Sensor, ...] = (PowerReading(library, handle),)
            return Gauge("device", name, "NVML power, trapezoid (the GPU has no energy counter)", power)
    except library.NVMLError as error:
        return Gauge("device", name, reason=f"NVML: {error}")
    return Gauge("device", name, "NVML total-energy counter", (EnergyCounter(library, handle),))
