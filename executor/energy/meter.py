"""Reads gauges in the background while a run goes on, ten times a second."""

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from executor.energy.gauges import Gauge
from executor.energy.nvml import gpu_gauge, load_library
from executor.energy.rapl import processor_gauges
from executor.energy.series import Series
from executor.world.member import World
from simgnn.errors import BackendError
from simgnn.record.energy import Part

PERIOD_S = 0.1


def gauges_of(world: World, processors: Callable[[Part], list[Gauge]] = processor_gauges) -> list[Gauge]:
    """What this rank reads: its GPU, and, for the first rank of each machine, that machine's processors and memory.

    Machines are kernels: network namespaces that play hosts, and containers of one machine, share its counters.
    """
    found = []
    gpu = world.device.type == "cuda"
    if gpu:
        properties = torch.cuda.get_device_properties(world.device)
        own = gpu_gauge(f"{properties.name} {world.device}", str(properties.uuid), load_library())
        found.append(replace(own, ranks=(world.rank,)))
    if world.rank == world.here[0]:
        found += [replace(shared, ranks=world.here) for shared in processors("host" if gpu else "device")]
    return found


@dataclass
class _Readings:
    """Of one gauge: seconds of this rank's clock, and what each of its sensors said then."""

    gauge: Gauge
    times: "array[float]" = field(default_factory=lambda: array("d"))
    values: "list[array[float]]" = field(default_factory=list)
    fault: str = ""

    def read(self) -> None:
        if self.fault:
            return
        begun = time.perf_counter()
        try:
            found = [sensor.read() for sensor in self.gauge.sensors]
        except BackendError as error:
            self.fault = f"{self.gauge.source}: reading broke off during the run: {error}"
            return
        self.times.append((begun + time.perf_counter()) / 2)
        self.values = self.values or [array("d") for _ in found]
        for column, value in zip(self.values, found, strict=True):
            column.append(value)

    def series(self, zero: float, lost: str) -> Series:
        reason = self.gauge.reason or self.fault or lost
        if reason:
            return Series(self.gauge, reason)
        return Series.of(self.gauge, np.array(self.times) - zero, [np.array(column) for column in self.values])


class EnergyMeter:
    """Reads ``gauges`` from :meth:`start` to :meth:`stop`, every ``period_s`` and at both ends, in a thread of its own;
    without sensors there is no thread."""

    def __init__(self, gauges: Sequence[Gauge], period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._readings = [_Readings(gauge) for gauge in gauges]
        self._active = [readings for readings in self._readings if readings.gauge.sensors]
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read."""
        self._read()
        if self._active:
            self._thread = threading.Thread(target=self._serve, name="energy", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Read once more and end; nothing where it never began."""
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join()
        self._thread = None
        self._read()

    def series(self, zero: float, lost: str = "") -> list[Series]:
        """What was read, of each gauge, after :meth:`stop`; times count from ``zero`` of this rank's clock. ``lost``:
        why it does not count."""
        return [readings.series(zero, lost) for readings in self._readings]

    def _serve(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._read()

    def _read(self) -> None:
        for readings in self._active:
            readings.read()
