"""Numbers that can limit a run: which there are, and what a profile with one of them twice as good prices."""

import numpy as np
import pytest

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import price_messages
from simgnn.hardware.price.other_numbers import with_numbers
from simgnn.hardware.profile.numbers import ProfileNumber, profile_numbers
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.hardware.profile.quantities import Number, Points, sourced

PROFILES = ["cpu-25gbe-4", "dgx-a100", "vm-epyc-2"]
NO_TIMES = ("memory", "idle_power", "active_power", "shared_by")


def leaves(value: object, key: str = "") -> dict[str, object]:
    """Every number of a dumped profile by the path that leads to it."""
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    else:
        return {key: value}
    return {found: one for name, entry in entries for found, one in leaves(entry, f"{key}/{name}").items()}


def find(profile: Profile, key: str) -> ProfileNumber:
    [found] = [number for number in profile_numbers(profile) if number.key == key]
    return found


@pytest.mark.parametrize("name", PROFILES)
def test_doubling_a_number_changes_it_alone(name: str) -> None:
    profile = load_profile(name)
    before = leaves(profile.model_dump())
    for number in profile_numbers(profile):
        after = leaves(number.doubled(profile).model_dump())
        assert after.keys() == before.keys()
        changed = [key for key in before if after[key] != before[key]]
        assert len(changed) == len(number.paths), number.key


@pytest.mark.parametrize("name", PROFILES)
def test_every_number_that_can_change_a_time_is_there_once(name: str) -> None:
    profile = load_profile(name)
    stated = [
        key for key, part in sourced(profile)
        if isinstance(part, Number) and key.rpartition(".")[2] not in NO_TIMES and part.value
    ]  # fmt: skip
    assert not any(isinstance(part, Points) and key in stated for key, part in sourced(profile))
    found = [number for number in profile_numbers(profile) if number.part != "load" and "costs" not in number.paths[0]]
    assert sum(len(number.paths) for number in found) == len(stated)
    costs = [cost for device in profile.devices.values() for curve in device.curves for cost in curve.costs.values()]
    assert sum("costs" in number.paths[0] for number in profile_numbers(profile)) == np.count_nonzero(costs)
    keys = [number.key for number in profile_numbers(profile)]
    assert len(set(keys)) == len(keys)


def test_values_read_as_they_are_sold() -> None:
    profile = load_profile("cpu-25gbe-4")
    assert find(profile, "links.ethernet.bandwidth").value == "25 Gbit/s"
    assert find(profile, "links.pcie.bandwidth").value == "7.88 GB/s"
    assert find(profile, "devices.cpu.curves.matmul.flops").value == "4.5 Tflop/s"
    assert find(profile, "devices.cpu.curves.matmul.call").value == "5 us/call"
    ports = find(profile, "backends.gloo.ports (send and receive)")
    assert (ports.value, ports.source, ports.rate) == ("2 GB/s", "assumed", True)


def test_times_are_halved_and_rates_doubled() -> None:
    profile = load_profile("cpu-25gbe-4")
    assert find(profile, "links.ethernet.latency").doubled(profile).links["ethernet"].latency.value == 5e-6
    assert find(profile, "links.ethernet.bandwidth").doubled(profile).links["ethernet"].bandwidth.value == 6.25e9
    faster = find(profile, "devices.cpu.curves.matmul.flops").doubled(profile).devices["cpu"].curves[0]
    assert faster.costs["flops"] == profile.devices["cpu"].curves[0].costs["flops"] / 2


@pytest.mark.parametrize("name", ["cpu-25gbe-4", "p100-10gbe-4x2", "dgx-a100-2"])
def test_prices_with_other_numbers_are_those_of_a_machine_that_has_them(name: str) -> None:
    profile = load_profile(name)
    hosts = [0, 0, 1, 1]
    machine = Machine.place(profile, hosts)
    source, target, nbytes = np.array([0, 0, 3]), np.array([1, 2, 0]), np.array([1e3, 1e6, 1e8])
    for number in profile_numbers(profile):
        if number.part not in ("link", "library"):
            continue
        changed = number.doubled(profile)
        one, other = with_numbers(machine, changed), Machine.place(changed, hosts)
        assert [link.capacity_bytes_per_s for link in one.links] == [link.capacity_bytes_per_s for link in other.links]
        for kind in ("allreduce", "broadcast", "allgather"):
            assert one.collective(kind, "default", 1e6, range(4)) == other.collective(kind, "default", 1e6, range(4))
        for mine, theirs in zip(
            price_messages(one, source, target, nbytes, "default"),
            price_messages(other, source, target, nbytes, "default"),
            strict=True,
        ):
            assert np.array_equal(mine, theirs), number.key
