"""What the profile of a testbed says is what the kernel then does: read back from ``tc``, ``ip`` and the cgroups."""

import json
from pathlib import Path
from typing import Any

import pytest

from executor.testbed import lifecycle, network
from executor.testbed.cgroups import find_controller, limits_of
from executor.testbed.command import main
from executor.testbed.declaration import FRAME_BYTES, PAYLOAD_BYTES, Declaration, namespace_of, switch_of, usable_cores
from executor.testbed.profile import WIRE
from simgnn.cli.main import invoke
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile, load_profile, save_profile
from tests.executor.testbed.beds import WHY_NOT, bed, clean, on_file, quotas
from tests.executor.testbed.test_testbed_profile import WORK, base
from tests.hardware.conftest import work_seconds

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean", "quotas"]
PAYLOAD, STEADY = PAYLOAD_BYTES / FRAME_BYTES, 1448 / (1514 + 66 / 2)


def emitted(declared: Declaration, folder: Path) -> Profile:
    """The profile that the command writes of a testbed on this machine, and that ``simgnn hardware check`` accepts."""
    save_profile(base(len(usable_cores())), folder / "base.toml")
    words = ["profile", str(on_file(declared, folder)), "--base", str(folder / "base.toml")]
    assert main([*words, "--out", str(folder / "out.toml")]) == 0
    assert invoke(["hardware", "check", str(folder / "out.toml")]) == 0
    return load_profile(folder / "out.toml")


def queues_in(namespace: str, interface: str) -> list[dict[str, Any]]:
    found = network.call("tc", "-s", "-j", "-n", namespace, "qdisc", "show", "dev", interface)
    return [entry for entry in json.loads(found) if entry["kind"] != "htb"]  # turns, at no rate of their own


def groups_of(declared: Declaration) -> list[str]:
    folder = find_controller().base / f"simgnn-{declared.name}"
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def test_one_host_has_no_link_and_no_quota(tmp_path: Path, quotas: None) -> None:
    declared = bed(hosts=1, ranks_per_host=2, link=None)
    profile = emitted(declared, tmp_path)
    lifecycle.up(declared)
    inside = json.loads(network.call("ip", "-j", "-n", namespace_of(declared.name, 0), "link"))
    assert [entry["ifname"] for entry in inside if entry.get("link_type") != "none"] == ["lo"]
    assert [entry["kind"] for entry in queues_in(namespace_of(declared.name, 0), "lo")] == ["noqueue"]
    assert groups_of(declared) == []
    assert WIRE not in profile.links
    assert profile.devices == base(len(usable_cores())).devices


SHORT_BURST = {"burst": "64 KiB", "queue": "fifo"}


@pytest.mark.parametrize(
    ("hosts", "more"),
    [(2, SHORT_BURST), (3, {}), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, {}), (3, SHORT_BURST)))],
)
def test_links_have_the_rate_and_the_burst_of_the_profile(hosts: int, more: dict[str, Any], tmp_path: Path) -> None:
    declared = bed(hosts=hosts, link="200 Mbit/s", **more)
    profile = emitted(declared, tmp_path)
    lifecycle.up(declared)
    ends = [(namespace_of(declared.name, number), "eth0") for number in range(hosts)]
    if hosts > 2:
        ends += [(switch_of(declared.name), f"host{number}") for number in range(hosts)]
    wire = profile.links[WIRE]
    assert wire.burst is not None
    assert wire.latency.value == 0.0
    for end in ends:
        (shaper,) = queues_in(*end)  # nothing else that shapes, delays or drops
        assert shaper["kind"] == "tbf"
        assert shaper["options"]["rate"] * STEADY == pytest.approx(wire.bandwidth.value, rel=1e-9)
        grain = 1e-6 * shaper["options"]["rate"]  # tc tells it in microseconds of the rate
        assert shaper["options"]["burst"] * PAYLOAD == pytest.approx(wire.burst.value, abs=grain)
    # as many links on the way from host to host as packets pass shapers
    machine = Machine.place(profile, declared.rank_hosts())
    wires = [link for link in machine.path(0, hosts - 1).links if machine.links[link].kind == "ethernet"]
    assert len(wires) == len(ends) // hosts
    assert profile.devices.keys() == {"cpu"}


@pytest.mark.parametrize(
    ("hosts", "each", "share"),
    [
        *((2, 1, 0.5), (1, 2, 0.1), (1, 1, 0.5)),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 1, 0.1), (1, 2, 0.5), (1, 1, 0.1))),
    ],
)
def test_a_slow_rank_has_the_quota_of_the_profile(
    hosts: int, each: int, share: float, tmp_path: Path, quotas: None
) -> None:
    slow = hosts * each - 1
    link = "200 Mbit/s" if hosts > 1 else None
    declared = bed(hosts=hosts, ranks_per_host=each, link=link, slow={str(slow): share})
    profile = emitted(declared, tmp_path)
    lifecycle.up(declared)
    assert groups_of(declared) == [f"rank{slow}"]
    limits = limits_of(find_controller().base / f"simgnn-{declared.name}/rank{slow}")
    assert limits is not None
    period, quota = limits
    machine = Machine.place(profile, declared.rank_hosts())
    threads = machine.threads_per_rank[slow]
    with_all = Machine.place(emitted(bed(hosts=hosts, ranks_per_host=each, link=link), tmp_path), declared.rank_hosts())
    assert with_all.threads_per_rank[slow] == threads
    times = [work_seconds(one, slow, "matmul", WORK).seconds for one in (machine, with_all)]
    assert times[0] / times[1] == pytest.approx(threads / (quota / period))
    if len(usable_cores()) >= declared.ranks:  # each rank has whole cores at full speed
        assert times[0] / times[1] == pytest.approx(1 / share)
