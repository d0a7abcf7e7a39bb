"""Rates at which rows move, as read off a profile: those of its links and curves, the slowest of all ranks."""

import pytest

from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.transfer_rates import MESSAGE_BYTES, transfer_rates
from simgnn.hardware.profile.profile import load_profile, parse_profile


def test_rates_of_gpus_are_those_of_their_links() -> None:
    machine = Machine.place(load_profile("a100-nvlink-4"), [0] * 4)
    found = transfer_rates(machine)
    memory = machine.network.host_memory(machine.devices[0])
    from_host = machine.network.way(memory, machine.devices[0]).message_rate(MESSAGE_BYTES)
    between = machine.network.route(machine.devices[0], machine.devices[1]).message_rate(MESSAGE_BYTES)
    assert found.host_to_device_bytes_per_s == from_host
    assert found.device_to_device_bytes_per_s == between
    assert found.host_to_device_bytes_per_s < between < found.reuse_bytes_per_s


def test_the_slowest_rank_decides() -> None:
    profile = load_profile("mixed-pcie3-8")
    fast, mixed = (transfer_rates(Machine.place(profile, [0] * ranks)) for ranks in (2, 8))
    assert mixed.reuse_bytes_per_s < fast.reuse_bytes_per_s


def test_a_cpu_copies_in_its_memory_and_one_rank_has_no_peer() -> None:
    profile = load_profile("vm-epyc-2")
    two, one = (transfer_rates(Machine.place(profile, [0] * ranks)) for ranks in (2, 1))
    assert two.host_to_device_bytes_per_s == two.reuse_bytes_per_s
    assert two.device_to_device_bytes_per_s is not None
    assert one.device_to_device_bytes_per_s is None


def test_a_missing_curve_is_refused_by_its_key() -> None:
    table = load_profile("mixed-pcie3-8").to_table()
    curves = table["devices"]["rtx3090"]["curves"]
    table["devices"]["rtx3090"]["curves"] = [curve for curve in curves if curve["primitive"] != "copy"]
    machine = Machine.place(parse_profile(table), [0, 0])
    with pytest.raises(HardwareError, match=r"devices\.rtx3090\.curves: the device has no curve of 'copy'"):
        transfer_rates(machine)
