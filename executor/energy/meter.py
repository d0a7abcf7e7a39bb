"""Reads energy gauges during a run, ten times a second, writes the readings and computes energy figures."""

import json
import os
import platform
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from executor.energy.gauges import Gauge, gpu_gauge, load_nvml, processor_gauges
from executor.world.member import World
from simgnn.errors import BackendError
from simgnn.record.energy import EnergyFigure, Floats, Part, energy_over

PERIOD_S = 0.1


def gauges_of(world: World, processors: Callable[[Part], list[Gauge]] = processor_gauges) -> list[Gauge]:
    """Return the gauges that this rank reads: its GPU, and on the first rank of each machine, processors and memory.

    A machine is one running kernel: network namespaces that act as hosts, and containers, share its counters.
    """
    found = []
    gpu = world.device.type == "cuda"
    if gpu:
        properties = torch.cuda.get_device_properties(world.device)
        own = gpu_gauge(f"{properties.name} {world.device}", str(properties.uuid), load_nvml())
        found.append(replace(own, ranks=(world.rank,)))
    if world.rank == world.here[0]:
        found += [replace(shared, ranks=world.here) for shared in processors("host" if gpu else "device")]
    return found


@dataclass(frozen=True)
class Series:
    """Energy of a gauge since the first reading: ``joules`` at ``times_s`` [n]; empty where there is a ``reason``."""

    gauge: Gauge
    reason: str = ""
    times_s: Floats = field(default_factory=lambda: np.zeros(0))
    joules: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, gauge: Gauge, times_s: Floats, readings: Sequence[Floats]) -> "Series":
        """Build a series from the readings of each sensor at ``times_s`` [n]; n is at least 2."""
        try:
            joules = np.sum([s.joules(times_s, r) for s, r in zip(gauge.sensors, readings, strict=True)], axis=0)
        except BackendError as error:
            return cls(gauge, f"{gauge.source}: {error}")
        if joules[-1] <= 0:
            # some virtual machines show counters that never count, and slow ones miss a run of milliseconds
            return cls(gauge, f"{gauge.source}: nothing was counted in {times_s[-1] - times_s[0]:.3g} s")
        return cls(gauge, "", times_s, joules)


@dataclass
class _Readings:
    """Readings of one gauge: ``times`` on this rank's clock, and the ``values`` of each sensor at these times."""

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
        if reason := self.gauge.reason or self.fault or lost:
            return Series(self.gauge, reason)
        return Series.of(self.gauge, np.array(self.times) - zero, [np.array(column) for column in self.values])


class EnergyMeter:
    """Reads ``gauges`` every ``period_s`` from :meth:`start` to :meth:`stop`, in a thread, if any has a sensor."""

    def __init__(self, gauges: Sequence[Gauge], period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._readings = [_Readings(gauge) for gauge in gauges]
        self._active = [readings for readings in self._readings if readings.gauge.sensors]
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._read()
        if self._active:
            self._thread = threading.Thread(target=self._serve, name="energy", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Read the gauges a last time and end the thread; does nothing if it was never started."""
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join()
        self._thread = None
        self._read()

    def series(self, zero: float, lost: str = "") -> list[Series]:
        """Return each gauge's energy, with times since ``zero`` on this clock. ``lost``: why readings are invalid."""
        return [readings.series(zero, lost) for readings in self._readings]

    def _serve(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._read()

    def _read(self) -> None:
        for readings in self._active:
            readings.read()


def energy_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.energy.npz"


def write_series(path: Path, every: Sequence[Series]) -> None:
    """Write the energy series of a rank to a file, which is empty if the rank has no gauge."""
    facts = [
        {"part": s.gauge.part, "name": s.gauge.name, "host": platform.node(), "ranks": s.gauge.ranks,
         "source": s.reason or s.gauge.source, "status": "unavailable" if s.reason else "measured"}
        for s in every
    ]  # fmt: skip
    arrays = {f"{name}-{n}": getattr(s, name) for n, s in enumerate(every) for name in ("times_s", "joules")}
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
    os.replace(draft, path)


def energy_figures(folder: Path, ranks: int, span: tuple[float, float], epochs: Floats) -> list[EnergyFigure]:
    """Compute the energy of the run and of its epochs from the files of all ranks. ``span``: begin and end of the run;
    ``epochs`` float64 [E, 2]: begin and end of each training epoch. All are in seconds of the trace."""
    figures = []
    for rank in range(ranks):
        with np.load(energy_file(folder, rank), allow_pickle=False) as file:
            for number, fact in enumerate(json.loads(str(file["facts"]))):
                figures.append(_figure(fact, file[f"times_s-{number}"], file[f"joules-{number}"], span, epochs))
    return figures


def _figure(
    fact: dict[str, str], times: Floats, joules: Floats, span: tuple[float, float], epochs: Floats
) -> EnergyFigure:
    if fact["status"] == "measured" and (times[0] > span[0] or times[-1] < span[1]):
        fact["status"] = "unavailable"
        fact["source"] += f": read from {times[0]:.3f} s to {times[-1]:.3f} s only, of {span[1]:.3f} s"
    if fact["status"] == "unavailable":
        return EnergyFigure.model_validate(fact)

    def used(moments: Floats) -> Floats:
        return np.interp(moments, times, joules)

    return EnergyFigure.model_validate(fact | energy_over(used, span, epochs, float(np.max(np.diff(times)))))
