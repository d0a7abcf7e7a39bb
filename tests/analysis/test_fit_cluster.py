"""Hosts, links and collectives are fitted back from samples that a known cluster would have given."""

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from simgnn.analysis.fit.profile import fit_profile
from simgnn.analysis.fit.samples import Facts, MeasuredHost, Sample, SampleFile
from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.check import TRAINING_PRIMITIVES, price_problems
from simgnn.hardware.profile.profile import Profile, load_profile, save_profile
from tests.hardware.conftest import work_seconds

FACTS = Facts(
    host="node.example", system="Linux", cpu_model="test", cores=1, memory_bytes=1 << 34, caches=(), python="3.11",
    torch="2", device="cpu",
)  # fmt: skip
SIZES = tuple(float(4**power << 10) for power in range(7))
FLOOR, LOOPBACK = 1e-4, 2e9


def sample(primitive: str, form: str, sizes: Mapping[str, float], hosts: Sequence[int], ranks: int, seconds: float,
           active: int = 1) -> Sample:  # fmt: skip
    return Sample(primitive=primitive, form=form, sizes=dict(sizes), hosts=tuple(hosts), ranks=ranks, active=active,
                  threads=1, seconds=seconds, last_s=seconds, mad_s=seconds / 100, repeats=9)  # fmt: skip


def work(host: int, ranks: int, rate: float) -> list[Sample]:
    """Matrix products at ``rate`` flops per second."""
    return [
        sample("matmul", "forward", {"rows": rows, "inner": inner, "outer": inner, "crossed": 0.0, "item_bytes": 4.0},
               [host], ranks, 1e-5 + 2 * rows * inner * inner / rate, active=ranks)
        for rows in (10.0, 100.0, 1e3, 5e3) for inner in (8.0, 64.0, 256.0)
    ]  # fmt: skip


def inside(host: int, ranks: int) -> list[Sample]:
    """Messages and collectives among the ranks of a host."""
    found = []
    for size in SIZES:
        found.append(sample("send", "one-way", {"bytes": size}, [host], ranks, FLOOR + size / LOOPBACK))
        total = size * ranks * (ranks - 1)
        sizes = {"bytes": size, "rank_bytes": size * (ranks - 1), "total_bytes": total}
        found.append(sample("exchange", "even", sizes, [host], ranks, FLOOR + total / LOOPBACK))
        found.append(sample("allreduce", "allreduce", {"bytes": size}, [host], ranks, 3 * FLOOR + size / 1e9))
    return found


def between(rates: Sequence[float], counts: Sequence[int], latency: float, both_ways: float, contention: float,
            ) -> list[Sample]:  # fmt: skip
    """Links of ``rates``, at which two hosts' messages run at the slower one's; ``both_ways``: the share of it that
    each direction has when both are busy; all hosts at once take ``contention`` times as long as one pair."""
    found = []
    ranks = sum(counts)
    for size in SIZES:
        for pair in combinations(range(len(rates)), 2):
            rate, members = min(rates[host] for host in pair), sum(counts[host] for host in pair)
            way = size * counts[pair[0]] * counts[pair[1]]
            found.append(sample("send", "one-way", {"bytes": size}, pair, members, FLOOR + latency + size / rate))
            seconds = FLOOR + latency + way / (rate * both_ways)
            found.append(sample("exchange", "between", {"bytes": size, "way_bytes": way}, pair, members, seconds))
        flowing = max(size * count * (ranks - count) / rate for count, rate in zip(counts, rates, strict=True))
        every = range(len(rates))
        sizes = {"bytes": size, "rank_bytes": size * (ranks - 1), "total_bytes": size * ranks * (ranks - 1)}
        seconds = FLOOR + latency + flowing / both_ways * contention
        found.append(sample("exchange", "even", sizes, every, ranks, seconds))
        found.append(sample("allreduce", "allreduce", {"bytes": size}, every, ranks, 1e-3 + 2 * size / min(rates)))
    return found


def cluster(rates: Sequence[float], counts: Sequence[int], *, speeds: Sequence[float] | None = None,
            latency: float = 5e-5, both_ways: float = 1.0, contention: float = 1.0) -> SampleFile:  # fmt: skip
    hosts, samples, first = [], [], 0
    for number, count in enumerate(counts):
        hosts.append(MeasuredHost(ranks=tuple(range(first, first + count)), facts=FACTS))
        first += count
        samples += work(number, count, 1e9 if speeds is None else speeds[number])
        samples += inside(number, count) if count > 1 else []
    samples += between(rates, counts, latency, both_ways, contention)
    common: dict[str, Any] = {"format": "simgnn-samples", "version": 2, "started": "2026-01-02T03:04:05Z"}
    return SampleFile(**common, hosts=tuple(hosts), backend="gloo", ranks=first, threads=1, quick=False,
                      samples=tuple(samples))  # fmt: skip


def fitted(file: SampleFile) -> Profile:
    return fit_profile([file], date(2026, 1, 2)).profile


def test_the_link_between_two_hosts_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    save_profile(fitted(cluster([25e6, 25e6], [2, 2])), path)
    profile = load_profile(path)
    assert profile.meta.calibrated_ranks == (4,)
    machine = Machine.place(profile, [0, 0, 1, 1])
    message = machine.message(0, 2, 1e6)
    assert message.rate_bytes_per_s == pytest.approx(25e6, rel=0.02)
    assert message.latency_s == pytest.approx(FLOOR + 5e-5, rel=0.02)
    assert not message.extrapolated
    # inside a host nothing of the slow link is felt
    assert machine.message(0, 1, 1e6).rate_bytes_per_s == pytest.approx(LOOPBACK, rel=0.05)
    assert machine.message(0, 1, 1e6).latency_s == pytest.approx(FLOOR, rel=0.02)
    across = machine.collective("allreduce", "gloo", float(1 << 20), range(4))
    assert across.seconds_alone == pytest.approx(1e-3 + 2 * (1 << 20) / 25e6, rel=0.02)
    within = machine.collective("allreduce", "gloo", float(1 << 20), [2, 3])
    assert within.seconds_alone == pytest.approx(3e-4 + (1 << 20) / 1e9, rel=0.02)
    assert not within.extrapolated


def test_different_devices_on_different_hosts_get_different_curves() -> None:
    machine = Machine.place(fitted(cluster([1e8, 1e8], [1, 1], speeds=[1e9, 0.25e9])), [0, 1])
    sizes = {"rows": 2e3, "inner": 128.0, "outer": 128.0, "item_bytes": 4.0}
    fast, slow = (work_seconds(machine, rank, "matmul", sizes) for rank in (0, 1))
    assert fast.seconds == pytest.approx(1e-5 + 2 * 2e3 * 128 * 128 / 1e9, rel=0.05)
    assert slow.seconds == pytest.approx(1e-5 + 2 * 2e3 * 128 * 128 / 0.25e9, rel=0.05)
    assert machine.types[0] != machine.types[1]


def test_a_host_of_two_sockets_is_one_device_that_says_so() -> None:
    file = cluster([1e8, 1e8], [1, 1])
    two = file.hosts[1].model_copy(update={"facts": FACTS.model_copy(update={"sockets": 2})})
    profile = fitted(file.model_copy(update={"hosts": (file.hosts[0], two)}))
    devices = profile.devices
    assert [device.sockets for device in devices.values()] == [None, 2]
    (told,) = profile.limits()
    assert "'node-1-cpu'" in told
    assert "2 sockets as one" in told
    notes = {name: device.cores.note for name, device in devices.items() if device.cores is not None}
    assert "on 2 sockets" in str(notes["node-1-cpu"])
    assert "sockets" not in str(notes["node-0-cpu"])


def test_the_slower_of_two_hosts_links_decides() -> None:
    machine = Machine.place(fitted(cluster([1e8, 5e7, 2e7], [1, 1, 1])), [0, 1, 2])
    rates = {pair: machine.message(*pair, 1e6).rate_bytes_per_s for pair in combinations(range(3), 2)}
    assert rates == pytest.approx({(0, 1): 5e7, (0, 2): 2e7, (1, 2): 2e7}, rel=0.02)
    for pair in rates:
        assert machine.message(*pair, 1e6).latency_s == pytest.approx(FLOOR + 5e-5, rel=0.05)


def test_directions_that_share_a_link_make_it_half_duplex() -> None:
    profile = fitted(cluster([5e7, 5e7], [1, 1], both_ways=0.5))
    link = profile.links["node-0-network"]
    assert link.duplex == "half"
    assert link.bandwidth.value == pytest.approx(5e7, rel=0.02)
    assert fitted(cluster([5e7, 5e7], [1, 1])).links["node-0-network"].duplex == "full"


@pytest.mark.parametrize(("contention", "slower"), [(1.0, 1.0), (1.2, 1.0), (3.0, 3.0)])
def test_an_oversubscribed_switch_slows_all_links_down(contention: float, slower: float) -> None:
    profile = fitted(cluster([5e7] * 4, [1] * 4, contention=contention))
    assert profile.links["node-3-network"].bandwidth.value == pytest.approx(5e7 / slower, rel=0.05)


def test_hosts_with_one_rank_each_have_no_measured_loopback() -> None:
    profile = fitted(cluster([5e7, 5e7], [1, 1]))
    assert set(profile.links) == {"node-0-network", "node-1-network"}
    assert price_problems(profile) == [
        f"devices.node-{host}-cpu.curves: no curve of '{primitive}'"
        for host in (0, 1)
        for primitive in TRAINING_PRIMITIVES
        if primitive != "matmul"
    ]
    together = Machine.place(profile, [0, 0, 1])
    assert together.message(0, 2, 1e6).rate_bytes_per_s == pytest.approx(5e7, rel=0.02)
    with pytest.raises(HardwareError, match=r"'node-0/cpu' has no link to itself.*calibrate with several ranks"):
        together.message(0, 1, 1e6)
    assert profile.backends["gloo"].ports is None
    assert {entry.scope for entry in profile.backends["gloo"].collectives} == {"cluster"}


def test_a_cluster_and_a_machine_are_not_mixed() -> None:
    one = cluster([5e7, 5e7], [1, 1])
    with pytest.raises(HardwareError, match="one of them across 2 hosts"):
        fit_profile([one, one], date(2026, 1, 2))


def test_too_few_sizes_between_hosts_are_refused() -> None:
    file = cluster([5e7, 5e7], [1, 1])
    few = tuple(s for s in file.samples if s.form != "between" or s.sizes["bytes"] < 5e3)
    with pytest.raises(HardwareError, match="2 of exchanges"):
        fit_profile([file.model_copy(update={"samples": few})], date(2026, 1, 2))
