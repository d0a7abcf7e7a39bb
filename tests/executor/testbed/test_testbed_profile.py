"""The profile of a testbed: devices as calibrated, links and quotas as declared."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.testbed.command import main
from executor.testbed.declaration import Declaration
from executor.testbed.profile import describe
from simgnn.api.predict import default_cluster
from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import spread_ranks
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.check import price_problems
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile, save_profile
from tests.hardware.conftest import work_seconds

CACHED = 32e6
WORK = {"rows": 4000.0, "inner": 100.0, "outer": 50.0}


def curve(primitive: str, concurrency: int, threads: int, slower: float) -> dict[str, Any]:
    return {
        "primitive": primitive, "concurrency": concurrency, "threads": threads, "source": "measured", "spread": "5 %",
        "samples": 9, "costs": {"call": f"{30 * slower} us/call"}, "range": {"rows": ["0 rows", "1e6 rows"]},
    }  # fmt: skip


def base(cores: int = 2, latency: str = "4 us") -> Profile:
    """A calibration of one machine: one rank alone, one with both threads, two at once."""
    measured = {"source": "measured", "spread": "5 %"}
    levels = [(1, 1, 1.0), (1, 2, 0.6), (2, 1, 1.3)]
    collective = {"floor": {"value": "10 us", **measured}, "hop": {"value": "50 us", **measured}, "ranks": [2, 4]}
    bus = {"bus_bandwidth": {"value": "1 GB/s", "range": ["0 B", "64 MiB"], **measured}}
    return parse_profile(
        {
            "format": 1,
            "meta": {"name": "machine", "description": "d", "date": "2026-01-01", "calibrated_ranks": [1, 2]},
            "devices": {
                "cpu": {
                    "kind": "cpu",
                    "memory": {"value": "8 GB", "source": "measured"},
                    "cores": {"value": f"{cores} cores", "source": "measured"},
                    "caches": {
                        "L3": {
                            "size": {"value": "32 MB", "source": "measured"},
                            "shared_by": {"value": f"{cores} cores", "source": "measured"},
                        }
                    },
                    "curves": [curve(primitive, *level) for primitive in PRIMITIVES for level in levels],
                }
            },
            "links": {
                "loop": {
                    "kind": "loopback",
                    "bandwidth": {"value": "4 GB/s", **measured},
                    "latency": {"value": latency, **measured},
                }
            },
            "topology": {
                "hosts": {
                    "vm": {
                        "devices": [{"name": "cpu", "type": "cpu"}],
                        "edges": [{"between": ["cpu", "cpu"], "link": "loop"}],
                    }
                }
            },
            "backends": {
                "gloo": {
                    "message": {"floor": {"value": "100 us", **measured}},
                    "collectives": [
                        {"kind": "exchange", "algorithm": "pairwise", **collective},
                        {"kind": "allreduce", **collective, **bus},
                    ],
                }
            },
        }
    )


def bed(**table: Any) -> Declaration:
    return Declaration.parse({"hosts": 2, "ranks_per_host": 1, "link": "200 Mbit/s", **table}, "bed")


def placed(declared: Declaration, machine: Profile | None = None) -> Machine:
    return Machine.place(describe(declared, machine or base()), declared.rank_hosts())


def test_one_host_without_slow_ranks_is_the_machine_itself() -> None:
    found = describe(Declaration.parse({"hosts": 1, "ranks_per_host": 2}, "bed"), base())
    assert found.devices == base().devices
    assert found.backends == base().backends
    machine = Machine.place(found, (0, 0))
    assert machine.message(0, 1, 1e6) == Machine.place(base(), (0, 0)).message(0, 1, 1e6)


def test_ranks_lie_as_declared_however_many_the_machine_was_calibrated_with() -> None:
    machine = base()
    machine = machine.model_copy(update={"meta": machine.meta.model_copy(update={"calibrated_ranks": (1, 2, 4)})})
    declared = Declaration.parse({"hosts": 2, "ranks_per_host": 1, "link": "1 Gbit/s"}, "bed")
    found = describe(declared, machine)
    assert spread_ranks(found, 0) == spread_ranks(found, 2) == (0, 1)
    assert spread_ranks(found, 4) == (0, 0, 1, 1)
    assert spread_ranks(found, 2, 2) == (0, 0)
    assert default_cluster(found) == (2, 1)
    assert default_cluster(machine) == (1, 4)


@pytest.mark.parametrize(("hosts", "each"), [(2, 1), (2, 2), (3, 1), (1, 4)])
@pytest.mark.parametrize("slow", [{}, {"0": 0.5}])
def test_every_profile_can_price_training(hosts: int, each: int, slow: dict[str, float], tmp_path: Path) -> None:
    link = {} if hosts == 1 else {"link": "1 Gbit/s"}
    declared = Declaration.parse({"hosts": hosts, "ranks_per_host": each, "slow": slow, **link}, "bed")
    found = describe(declared, base())
    assert price_problems(found) == []
    machine = Machine.place(found, declared.rank_hosts())
    assert [machine.threads_per_rank[rank] for rank in range(declared.ranks)] == [1] * declared.ranks
    for rank in range(1, declared.ranks):
        assert machine.message(0, rank, 1e6).rate_bytes_per_s > 0
    path = tmp_path / "profile.toml"
    save_profile(found, path)
    assert load_profile(path) == found


def test_ranks_of_several_hosts_work_at_once_on_one_machine() -> None:
    together = work_seconds(Machine.place(base(), (0, 0)), 0, "matmul", WORK)
    apart = work_seconds(placed(bed()), 0, "matmul", WORK)
    assert apart == together
    assert not apart.extrapolated
    # ... and share its last cache
    cache = placed(bed()).device(0).caches["L3"]
    assert cache.bytes_each(1, 1) == base().devices["cpu"].caches["L3"].bytes_each(2, 2) == CACHED / 2


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0.05, 0.99))
def test_a_slow_rank_takes_longer_by_its_share(share: float) -> None:
    machine = placed(bed(slow={"1": share}))
    slow, full = (work_seconds(machine, rank, "matmul", WORK) for rank in (1, 0))
    assert slow.seconds == pytest.approx(full.seconds / share)
    assert slow.source == "assumed"
    assert full.source == "measured"


def test_a_slow_rank_leaves_the_rest_of_its_host_to_the_others() -> None:
    declared = Declaration.parse({"hosts": 1, "ranks_per_host": 4, "slow": {"3": 0.5}}, "bed")
    machine = placed(declared)
    seconds = [work_seconds(machine, rank, "matmul", WORK).seconds for rank in range(4)]
    with_a_core = work_seconds(Machine.place(base(), (0, 0)), 0, "matmul", WORK).seconds
    assert seconds == pytest.approx([with_a_core / (1.75 / 3)] * 3 + [with_a_core / 0.25])


@settings(max_examples=20, deadline=None)
@given(rate=st.floats(1e6, 1e9))
def test_the_link_is_the_declared_one(rate: float) -> None:
    machine = placed(bed(link=f"{rate!r} bit/s"))
    payload = rate / 8 * 1448 / (1514 + 66 / 2)  # an acknowledgement for every second frame of the other direction
    burst = max(4096.0, 0.2e-3 * rate / 8) * 1448 / 1514
    # what saved up in the bucket passes at once, the rest at the declared rate
    assert machine.message(0, 1, 1e6).rate_bytes_per_s == pytest.approx(payload * 1e6 / (1e6 - burst))
    # a ring of two hosts moves the whole buffer each way; the library's own measured rate no longer decides
    seconds = machine.collective("allreduce", "gloo", 4e6, (0, 1)).seconds_alone
    assert seconds == pytest.approx(110e-6 + max((4e6 - burst) / payload, 4e6 / 1e9))


def test_inside_a_host_the_machine_s_own_numbers_stay() -> None:
    machine = placed(bed(ranks_per_host=2))
    normal = Machine.place(base(), (0, 0))
    assert machine.message(0, 1, 1e6) == normal.message(0, 1, 1e6)
    assert machine.collective("allreduce", "gloo", 4e6, (0, 1)).seconds_alone == pytest.approx(
        normal.collective("allreduce", "gloo", 4e6, (0, 1)).seconds_alone
    )


def test_a_slow_rank_is_slow_at_its_messages_too() -> None:
    bare = placed(bed(hosts=1, ranks_per_host=2, link=None))
    half = placed(bed(hosts=1, ranks_per_host=2, link=None, slow={"0": 0.5}))
    # rank 0 has half a core, so that its calls and its half of the way take twice as long; rank 1 has a core of its own
    way = base().links["loop"].latency.value
    normal, slow = bare.message(0, 1, 1e6), half.message(0, 1, 1e6)
    assert slow.latency_s == pytest.approx(2 * (normal.latency_s - way) + way / 2 * (2 + 1))
    assert slow.rate_bytes_per_s == pytest.approx(normal.rate_bytes_per_s / 2)
    times = [one.collective("allreduce", "gloo", 4e6, (0, 1)).seconds_alone for one in (bare, half)]
    assert times[1] == pytest.approx(2 * times[0])


def test_more_than_two_hosts_cross_their_own_links_to_the_switch() -> None:
    machine = placed(bed(hosts=3))
    wires = [machine.links[link] for link in machine.path(0, 2).links if machine.links[link].kind == "ethernet"]
    assert [wire.name for wire in wires] == ["host0/nic -> switch", "switch -> host2/nic"]


def test_a_base_that_is_no_single_machine_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"--base: got .* with 2 host\(s\)"):
        describe(bed(), describe(bed(), base()))


def test_the_command_writes_a_profile_or_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bed.toml").write_text('hosts = 2\nranks_per_host = 1\nlink = "200 Mbit/s"\n')
    words = ["profile", str(tmp_path / "bed.toml"), "--out", str(tmp_path / "out.toml")]
    assert main(words) == 2
    assert "was never calibrated" in capsys.readouterr().err
    assert not (tmp_path / "out.toml").exists()
    save_profile(base(), tmp_path / "base.toml")
    assert main([*words, "--base", str(tmp_path / "base.toml")]) == 0
    assert load_profile(tmp_path / "out.toml").meta.name == "machine-testbed"


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_one_rank_of_the_one_host_is_as_slow_as_declared(share: float) -> None:
    whole = placed(bed(hosts=1, ranks_per_host=1, link=None))
    slow = placed(bed(hosts=1, ranks_per_host=1, link=None, slow={"0": share}))
    # its quota is a share of both cores, with which it works
    assert work_seconds(slow, 0, "matmul", WORK).seconds == pytest.approx(
        work_seconds(whole, 0, "matmul", WORK).seconds / share
    )


@pytest.mark.parametrize("out", [".", "a-file/x.toml"])
def test_a_profile_that_cannot_be_written_is_one_message(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bed.toml").write_text('hosts = 2\nranks_per_host = 1\nlink = "200 Mbit/s"\n')
    (tmp_path / "a-file").write_text("")
    save_profile(base(), tmp_path / "base.toml")
    words = ["profile", str(tmp_path / "bed.toml"), "--base", str(tmp_path / "base.toml"), "--out", str(tmp_path / out)]
    assert main(words) == 2
    assert "--out: got" in capsys.readouterr().err
    assert (tmp_path / "a-file").read_text() == ""


def test_a_profile_makes_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    (tmp_path / "bed.toml").write_text('hosts = 2\nranks_per_host = 1\nlink = "200 Mbit/s"\n')
    save_profile(base(), tmp_path / "base.toml")
    out = tmp_path / "new" / "out.toml"
    assert main(["profile", str(tmp_path / "bed.toml"), "--base", str(tmp_path / "base.toml"), "--out", str(out)]) == 0
    assert load_profile(out).meta.name == "machine-testbed"
