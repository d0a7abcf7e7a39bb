"""Work that a device has no curve of: who prices it, by how much, and how far the interval reaches."""

from math import log

import numpy as np
import pytest

from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.unmeasured import CARRIED, scaled_curve
from simgnn.hardware.profile.devices import Device
from simgnn.hardware.profile.error_model import QUANTILE, error_model, reference_machine
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.hardware.profile.quantities import Frequency

SIZES = {"vertices": 1000, "edges": 10_000, "item_bytes": 8}


def seconds(profile: Profile, hosts: tuple[int, ...] = (0,), threads: int | None = None) -> float:
    return float(Machine.place(profile, hosts, threads).work_seconds_all("sample", SIZES)[0][0])


def with_clock(profile: Profile, name: str, clock: str | None) -> Profile:
    number = None if clock is None else Frequency.model_validate({"value": clock, "source": "datasheet"})
    device = profile.devices[name].model_copy(update={"clock": number})
    return profile.model_copy(update={"devices": {**profile.devices, name: device}})


def reference_seconds() -> float:
    return seconds(reference_machine(), threads=1)


def test_sampling_is_scaled_by_the_clock_of_the_hosts_cpu() -> None:
    dgx = load_profile("dgx-a100")
    clock = reference_machine().devices["cpu"].clock
    assert clock is not None
    assert seconds(dgx) == pytest.approx(reference_seconds() * clock.value / 2.25e9)
    assert seconds(with_clock(dgx, "cpu", "4.5 GHz")) == pytest.approx(seconds(dgx) / 2)
    assert seconds(with_clock(dgx, "cpu", None)) == pytest.approx(reference_seconds()), "an unknown one counts as equal"


def test_a_host_without_a_stated_cpu_takes_the_reference_machine() -> None:
    machine = Machine.place(load_profile("a800-pcie-ib-2x8"), (0,))
    worker = machine.worker(0, "sample", 1)
    assert worker.origin == reference_machine().meta.name
    assert worker.device.curves_of("sample")[0].source == "assumed"
    assert seconds(machine.profile) == pytest.approx(reference_seconds())


def test_more_threads_do_not_draw_faster() -> None:
    cpus = load_profile("cpu-25gbe-4")
    assert seconds(cpus, threads=1) == seconds(cpus, threads=48)


def test_a_carried_curve_is_assumed_and_as_wide_as_leaving_out_a_machine_shows() -> None:
    for name in ("dgx-a100", "cpu-100gbe-8", "vm-epyc-2"):
        machine = Machine.place(load_profile(name), (0,))
        (curve,) = machine.worker(0, "sample", 1).device.curves_of("sample")
        assert (curve.source, curve.spread) == ("assumed", error_model().of(CARRIED).spread)
        assert machine.stands_in("sample")
        assert not machine.stands_in("copy")


def test_a_measured_curve_is_never_replaced() -> None:
    device = reference_machine().devices["cpu"]
    machine = Machine.place(reference_machine(), (0,), 1)
    for curve in device.curves:
        worker = machine.worker(0, curve.primitive, 1)
        assert (worker.device, worker.origin) == (device, "")


def test_bytes_are_scaled_by_copies_and_missing_caches_count_as_missed() -> None:
    (source,) = reference_machine().devices.values()
    halved = tuple(
        curve.model_copy(update={"costs": {name: cost / 2 for name, cost in curve.costs.items()}})
        for curve in source.curves
    )
    faster = source.model_copy(update={"curves": halved, "clock": None})
    same = scaled_curve(source, "slow", source, "slow", "select")
    scaled = scaled_curve(source, "slow", faster, "fast", "select")
    assert same is not None
    assert scaled is not None
    for feature, cost in same.costs.items():
        factor = 0.5 if "bytes" in feature else 1.0
        assert scaled.costs[feature] == pytest.approx(factor * cost, rel=1e-6), feature
    bare = Device.model_validate({**source.model_dump(exclude={"caches", "curves"}, exclude_defaults=True)})
    missed = scaled_curve(source, "slow", bare, "bare", "select")
    assert missed is not None
    assert set(missed.costs) == {"call", "bytes"}
    assert missed.costs["bytes"] == pytest.approx(sum(c for name, c in same.costs.items() if "bytes" in name), rel=1e-6)


def test_a_gpu_without_a_curve_of_its_own_work_is_still_refused() -> None:
    profile = load_profile("dgx-a100")
    device = profile.devices["a100"]
    curves = tuple(curve for curve in device.curves if curve.primitive != "encode")
    bare = profile.model_copy(
        update={"devices": {**profile.devices, "a100": device.model_copy(update={"curves": curves})}}
    )
    machine = Machine.place(bare, (0,))
    with pytest.raises(HardwareError, match=r"devices\.a100\.curves.*encode"):
        machine.work_seconds_all("encode", {"rows": 10, "width": 10, "row_bytes": 18})


def test_the_unknown_cpu_of_a_host_is_reported() -> None:
    table = load_profile("dgx-a100").to_table()
    table["topology"]["hosts"]["dgx"]["cpu"] = "epic"
    with pytest.raises(ValueError, match=r"topology\.hosts\.dgx\.cpu: got 'epic'"):
        Profile.model_validate(table)


def test_every_kind_of_work_has_an_error() -> None:
    model = error_model()
    for name, family in model.families.items():
        judged = family.coverage is not None
        assert judged or "rule:" in family.note, f"{name}: a width that no left-out group judged states its rule"
    spreads = [family.spread for family in model.families.values() if family.spread is not None]
    assert np.all(np.array(spreads) > 0.0)
    assert model.of(CARRIED).spread * QUANTILE > log(1.5), "clock and copies do not predict another machine within half"
