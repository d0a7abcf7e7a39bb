"""Energy from RAPL's folder and from NVML, made up: what is read, what is summed, and the reason where nothing is."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from executor.energy.gauges import Gauge, counted_joules, gpu_gauge, integrated_power, processor_gauges
from executor.energy.meter import EnergyMeter, Series, energy_figures, energy_file, gauges_of, write_series
from simgnn.errors import BackendError

RANGE_UJ = 262_143_328_850
DOMAINS = {
    "intel-rapl:0": ("package-0", 1_000_000),
    "intel-rapl:0:0": ("core", 400_000),
    "intel-rapl:0:1": ("dram", 100_000),
    "intel-rapl:1": ("package-1", 5_000_000),
    "intel-rapl:1:0": ("dram", 300_000),
    "intel-rapl:2": ("psys", 90_000_000),
    "intel-rapl-mmio:0": ("package-0", 77_000_000),
}
"""A machine with two packages: what may not be counted lies beside what is."""


def tree(root: Path, domains: dict[str, tuple[str, int]] = DOMAINS) -> Path:
    """A powercap folder."""
    for folder, (name, microjoules) in domains.items():
        (root / folder).mkdir(parents=True)
        (root / folder / "name").write_text(f"{name}\n")
        (root / folder / "energy_uj").write_text(f"{microjoules}\n")
        (root / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return root


def use(root: Path, folder: str, microjoules: int) -> None:
    """A counter goes on, and begins anew where it ends."""
    path = root / folder / "energy_uj"
    path.write_text(str((int(path.read_text()) + microjoules) % RANGE_UJ))


def read_twice(gauge: Gauge, between: Callable[[], None]) -> Series:
    """Two readings, a second apart."""
    first = [sensor.read() for sensor in gauge.sensors]
    between()
    last = [sensor.read() for sensor in gauge.sensors]
    return Series.of(gauge, np.array([0.0, 1.0]), [np.array(pair) for pair in zip(first, last, strict=True)])


def test_packages_are_summed_and_memory_is_told_apart(tmp_path: Path) -> None:
    root = tree(tmp_path / "powercap")
    packages, memory = processor_gauges("host", root)
    assert (packages.part, memory.part) == ("host", "memory")
    assert packages.source == "RAPL energy_uj of package-0 (intel-rapl:0), package-1 (intel-rapl:1)"

    def work() -> None:
        for folder in DOMAINS:
            use(root, folder, 2_500_000 if folder == "intel-rapl:0" else 1_000_000)

    assert read_twice(packages, work).joules.tolist() == pytest.approx([0.0, 3.5])
    assert read_twice(memory, work).joules.tolist() == pytest.approx([0.0, 2.0])


def test_a_counter_that_begins_anew_goes_on_counting(tmp_path: Path) -> None:
    root = tree(tmp_path / "powercap", {"intel-rapl:0": ("package-0", RANGE_UJ - 1_500_000)})
    [packages] = processor_gauges("device", root)
    assert read_twice(packages, lambda: use(root, "intel-rapl:0", 4_000_000)).joules[-1] == pytest.approx(4.0)
    readings = np.array([7.0, 9.0, 1.0, 8.0, 0.0])
    assert counted_joules(readings, 10.0).tolist() == [0.0, 2.0, 4.0, 11.0, 13.0]
    with pytest.raises(BackendError, match="went back by 8 J"):
        counted_joules(readings, None)


@pytest.mark.parametrize("file", ["energy_uj", "max_energy_range_uj"])
def test_a_counter_that_may_not_be_read_leaves_no_number(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "powercap")
    closed, read = root / "intel-rapl:1" / file, Path.read_text

    def refuse(path: Path, *arguments: Any, **options: Any) -> str:
        if path == closed:  # root, as whom tests may run, is let through by the file system
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    packages, memory = processor_gauges("device", root)
    assert packages.sensors == (), "one package would pass for both"
    assert "chmod a+r" in packages.reason
    assert str(closed) in packages.reason
    assert len(memory.sensors) == 2


def test_without_counters_the_reason_is_told(tmp_path: Path) -> None:
    [none] = processor_gauges("device", tmp_path / "nowhere")
    assert (none.part, none.sensors, none.reason) == ("device", (), f"no RAPL counters: no folder {tmp_path}/nowhere")
    [other] = processor_gauges("device", tree(tmp_path / "psys", {"intel-rapl:1": ("psys", 5)}))
    assert other.reason == f"no RAPL counter of a package in {tmp_path}/psys"
    (tmp_path / "psys" / "intel-rapl:0").mkdir()
    assert processor_gauges("device", tmp_path / "psys")[0].reason == other.reason, "a domain without a name is none"
    broken = tree(tmp_path / "broken", {"intel-rapl:0": ("package-0", 0)})
    (broken / "intel-rapl:0" / "energy_uj").write_text("many\n")
    assert "cannot be read" in processor_gauges("device", broken)[0].reason


def test_a_counter_that_does_not_count_is_none(tmp_path: Path) -> None:
    [packages] = processor_gauges("device", tree(tmp_path / "powercap", {"intel-rapl:0": ("package-0", 5)}))
    found = read_twice(packages, lambda: None)
    assert found.reason.endswith("nothing was counted in 1 s")
    assert len(found.times_s) == 0


class NvmlError(Exception):
    """As pynvml has it."""


class NotSupportedError(NvmlError):
    """As pynvml has it."""


class MadeUpNvml:
    """A library with one GPU whose readings are given; an exception is raised instead."""

    NVMLError = NvmlError
    NVMLError_NotSupported = NotSupportedError

    def __init__(self, energy_mj: list[Any], power_mw: list[Any], fault: NvmlError | None = None) -> None:
        self._energy, self._power, self._fault = iter(energy_mj), iter(power_mw), fault

    def nvmlInit(self) -> None:  # noqa: N802
        if self._fault is not None:
            raise self._fault

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert uuid == "GPU-1234"
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return self._next(self._energy, handle)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return self._next(self._power, handle)

    @staticmethod
    def _next(values: Iterator[Any], handle: str) -> int:
        assert handle == "handle"
        value = next(values)
        if isinstance(value, Exception):
            raise value
        return int(value)


def test_a_gpu_is_read_by_its_energy_counter() -> None:
    gauge = gpu_gauge("gpu", "1234", MadeUpNvml([5, 1_000, 4_500], []))
    assert (gauge.part, gauge.source) == ("device", "NVML total-energy counter")
    assert read_twice(gauge, lambda: None).joules.tolist() == pytest.approx([0.0, 3.5])
    back = gpu_gauge("gpu", "1234", MadeUpNvml([5, 4_500, 0], []))
    assert "went back by 4.5 J" in read_twice(back, lambda: None).reason


def test_a_gpu_without_a_counter_is_read_by_its_power() -> None:
    nothing = [NotSupportedError("Not Supported")]
    gauge = gpu_gauge("gpu", "1234", MadeUpNvml(nothing, [1, 100_000, 300_000]))
    assert gauge.source.startswith("NVML power, trapezoid")
    assert read_twice(gauge, lambda: None).joules.tolist() == pytest.approx([0.0, 200.0])
    watts = np.array([100.0, 300.0, 300.0, 0.0])
    assert integrated_power(np.array([0.0, 1.0, 1.5, 3.5]), watts).tolist() == [0.0, 200.0, 350.0, 650.0]
    neither = gpu_gauge("gpu", "1234", MadeUpNvml(nothing, [NotSupportedError("Not Supported")]))
    assert (neither.sensors, neither.reason) == ((), "NVML: Not Supported")


def test_without_nvml_the_reason_is_told() -> None:
    assert gpu_gauge("gpu", "1234", None).reason == "nvidia-ml-py is not installed: pip install nvidia-ml-py"
    absent = gpu_gauge("gpu", "1234", MadeUpNvml([], [], NvmlError("NVML Shared Library Not Found")))
    assert absent.reason == "NVML: NVML Shared Library Not Found"
    sensor = gpu_gauge("gpu", "1234", MadeUpNvml([5, NvmlError("GPU is lost")], [])).sensors[0]
    with pytest.raises(BackendError, match="NVML cannot read the energy counter of the GPU: GPU is lost"):
        sensor.read()


class Counting:
    """A counter that goes on by a joule a reading; after ``most`` of them it fails."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.count, self.most, self.enough = 0, most, threading.Event()

    def read(self) -> float:
        self.count += 1
        if self.count > self.most:
            raise BackendError("unplugged")
        if self.count >= 5:
            self.enough.set()
        return float(self.count)

    def joules(self, times_s: Any, readings: Any) -> Any:
        return counted_joules(readings, None)


def test_the_meter_reads_from_beginning_to_end(tmp_path: Path) -> None:
    counting = Counting()
    gauges = [Gauge("device", "two", "made up", (counting, Counting()), ranks=(0, 1)),
              Gauge("device", "no", reason="why"),
              Gauge("memory", "short", "made up", (Counting(most=3),))]  # fmt: skip
    meter = EnergyMeter(gauges, period_s=0.001)
    zero = time.perf_counter()
    meter.start()
    assert counting.enough.wait(60.0)
    meter.stop()
    taken = counting.count
    meter.stop()
    assert counting.count == taken, "it has ended"
    found = meter.series(zero)
    assert len(found[0].times_s) == taken
    assert found[1].reason == "why"
    assert found[2].reason == "made up: reading broke off during the run: unplugged"
    assert [series.reason for series in meter.series(zero, "resumed")] == ["resumed", "why", found[2].reason]
    write_series(energy_file(tmp_path, 0), found)
    write_series(energy_file(tmp_path, 1), [])
    begin, end = float(found[0].times_s[0]), float(found[0].times_s[-1])
    figures = energy_figures(tmp_path, 2, (begin, end), np.array([[begin, end]]))
    assert [figure.status for figure in figures] == ["measured", "unavailable", "unavailable"]
    assert (figures[0].ranks, figures[0].total_J) == ([0, 1], pytest.approx(2 * (taken - 1)))
    assert figures[0].epoch_mean_J == pytest.approx(2 * (taken - 1))
    assert figures[0].sample_s == pytest.approx(float(np.diff(found[0].times_s).max()))
    [late, *_] = energy_figures(tmp_path, 2, (begin, end + 1.0), np.array([[begin, end]]))
    assert late.status == "unavailable", "what was not watched to its end is not told"


def test_a_meter_without_sensors_has_no_thread() -> None:
    before = threading.active_count()
    meter = EnergyMeter([Gauge("device", "no", reason="why")])
    meter.start()
    assert threading.active_count() == before
    meter.stop()
    assert [series.reason for series in meter.series(0.0)] == ["why"]


def test_one_rank_of_each_machine_reads_its_counters(tmp_path: Path) -> None:
    root = tree(tmp_path / "powercap")
    found = {}
    for rank, here in enumerate([(0, 1), (0, 1), (2, 3), (2, 3)]):
        world: Any = SimpleNamespace(rank=rank, here=here, device=torch.device("cpu"))
        found[rank] = [(gauge.part, gauge.ranks) for gauge in gauges_of(world, partial(processor_gauges, root=root))]
    assert found == {0: [("device", (0, 1)), ("memory", (0, 1))], 1: [],
                     2: [("device", (2, 3)), ("memory", (2, 3))], 3: []}  # fmt: skip
