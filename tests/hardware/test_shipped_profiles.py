"""The shipped profiles: each holds all that a full run needs, and predicts what is published of its machine."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simgnn.cli.main import app
from simgnn.errors import HardwareError
from simgnn.graph.locality import BINS
from simgnn.hardware.price.collectives import find_collective
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.check import price_problems
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.library import shipped_folder
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile
from simgnn.hardware.profile.quantities import Number, Strict
from simgnn.record.result import read_result
from tests.hardware.conftest import work_seconds

SHIPPED = {path.stem: path for path in sorted(shipped_folder().glob("*.toml"))}
CLUSTERS = {
    "a100-nvlink-4": (1, 4),
    "a800-pcie-ib-2x8": (2, 8),
    "cpu-100gbe-8": (8, 1),
    "cpu-25gbe-4": (4, 1),
    "dgx-a100": (1, 8),
    "dgx-a100-2": (2, 8),
    "dgx-h100": (1, 8),
    "mixed-pcie3-8": (1, 8),
    "p100-10gbe-4x2": (4, 2),
    "vm-epyc-2": (1, 2),
}
"""Hosts and ranks a host of each shipped machine."""
CALIBRATED = {"vm-epyc-2"}
"""Written by `simgnn calibrate`: nothing in them is derived."""


def place(name: str) -> Machine:
    hosts, ranks = CLUSTERS[name]
    return Machine.place(load_profile(name), [host for host in range(hosts) for _ in range(ranks)])


def test_every_machine_is_shipped_and_tested() -> None:
    assert set(CLUSTERS) == set(SHIPPED)


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_rank_of_the_machine_has_its_place_and_reaches_every_other(name: str) -> None:
    machine = place(name)
    hosts, ranks = CLUSTERS[name]
    assert len(machine.profile.topology.host_names()) == hosts
    for i in range(machine.ranks):
        for j in range(machine.ranks):
            if i != j:
                assert machine.message(i, j, 1e6).rate_bytes_per_s > 0
    if machine.device(0).kind == "gpu":
        assert machine.ranks == hosts * ranks == len(set(machine.devices))


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_check_finds_nothing_and_show_works(name: str) -> None:
    run = CliRunner()
    assert price_problems(load_profile(name)) == []
    checked = run.invoke(app, ["hardware", "check", str(SHIPPED[name])])
    assert (checked.exit_code, "no faults" in checked.output) == (0, True)
    shown = run.invoke(app, ["hardware", "show", name])
    assert shown.exit_code == 0
    assert name in shown.output
    as_json = run.invoke(app, ["hardware", "show", name, "--json"])
    assert as_json.exit_code == 0


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_full_run_is_predicted_and_says_what_it_rests_on(name: str, tmp_path: Path) -> None:
    hosts, ranks = CLUSTERS[name]
    told = CliRunner().invoke(
        app,
        ["simulate", "vanilla", "--hardware", name, "--epochs", "2", "--out", str(tmp_path / "run"),
         "--set", f"cluster.hosts={hosts}", "--set", f"cluster.ranks_per_host={ranks}"],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    result = read_result(tmp_path / "run" / "result.json")
    assert (result.status, result.ranks, result.hosts) == ("ok", hosts * ranks, hosts)
    assert result.epoch_s_median is not None
    assert result.epoch_s_median > 0
    assert result.uncalibrated is (name not in CALIBRATED)
    assert any("2 sockets as one" in note for note in result.notes) is name.startswith("cpu-")
    if name in CALIBRATED:
        assert "assumed:" not in told.output
        return
    assert re.search(r"\d+ assumed", result.confidence["hardware"])
    assert any(note.startswith("assumed:") for note in result.notes)
    assert "assumed:" in re.sub(r"\s+", " ", told.output)


@pytest.mark.parametrize("name", sorted(set(CLUSTERS) - CALIBRATED))
def test_what_is_derived_or_assumed_says_from_what(name: str) -> None:
    profile = load_profile(name)
    for device in profile.devices.values():
        for curve in device.curves:
            assert curve.note, f"{name}: {curve.primitive} has no note"
    for number in numbers(profile):
        if number.source in ("published", "measured"):
            assert number.note, f"{name}: {number} has no note"


def numbers(value: object) -> list[Number]:
    """Every sourced number below a part of a profile."""
    if isinstance(value, Number):
        return [value]
    if isinstance(value, Strict):
        return [found for field in type(value).model_fields for found in numbers(getattr(value, field))]
    if isinstance(value, dict):
        return [found for entry in value.values() for found in numbers(entry)]
    if isinstance(value, tuple):
        return [found for entry in value for found in numbers(entry)]
    return []


def curve_of(device: Device, primitive: str) -> Curve:
    (found,) = device.curves_of(primitive)
    return found


def test_the_mixed_server_repeats_the_published_table() -> None:
    machine = place("mixed-pcie3-8")
    side = 11585.0
    square = 4 * side * side
    at_random = (1 - 1 / (0.004 * side)) * np.minimum(2.0 ** np.arange(BINS) / side, 1.0)  # the matrix was drawn
    published = {  # CaPGNN Table 1, means over the GPUs of a model: product, sparse product, copy inside the device
        0: (0.1383, 0.1064, 0.0014),
        2: (0.1421, 0.1198, 0.0021),
        4: (0.3439, 0.1962, 0.0038),
        6: (0.9938, 0.3409, 0.0057),
    }
    for rank, (dense, sparse, copy) in published.items():
        product = work_seconds(machine, rank, "matmul", {"rows": side, "inner": side, "outer": side})
        assert product.seconds == pytest.approx(dense, rel=0.05)
        assert not product.extrapolated
        assert work_seconds(machine, rank, "matmul", {"rows": side, "inner": side, "outer": 64}).extrapolated
        sizes = {"edges": 0.004 * side * side, "rows": side, "width": side, "sources": side}
        product = work_seconds(machine, rank, "spmm", sizes, at_random)
        assert (product.seconds, product.extrapolated) == (pytest.approx(sparse, rel=0.03), False)
        assert work_seconds(machine, rank, "spmm", {**sizes, "width": 256}, at_random).extrapolated
        assert work_seconds(machine, rank, "copy", {"bytes": square}).seconds == pytest.approx(copy, rel=0.03)
        assert {curve_of(machine.device(rank), name).source for name in ("matmul", "spmm", "copy")} == {"published"}
        for to_device in (True, False):
            path = host_route(machine, rank, to_device)
            assert path is not None
            assert square / path.message_rate(square) == pytest.approx(0.1205, rel=0.04)


def reading_devices(profile: Profile) -> Profile:
    """As if Gloo took buffers of devices, copying them itself."""
    gloo = profile.backends["gloo"].model_copy(update={"memory": "device"})
    return profile.model_copy(update={"backends": {**profile.backends, "gloo": gloo}})


@pytest.mark.parametrize("name", ["mixed-pcie3-8", "p100-10gbe-4x2"])
def test_gloo_sends_from_memory_to_memory(name: str) -> None:
    machine = place(name)
    assert all(machine.through_host(rank, "gloo") for rank in range(machine.ranks))
    pairs = [(i, j) for i in range(machine.ranks) for j in range(machine.ranks) if i != j]
    for i, j in pairs:
        crossed = [machine.links[position].name for position in machine.path(i, j, "gloo").links]
        assert not any(device in name for device in machine.devices for name in crossed)
        assert machine.message(i, j, 1e8, "gloo").rate_bytes_per_s <= 2e9


def test_without_peer_access_a_message_is_two_copies_through_host_memory() -> None:
    placed = place("mixed-pcie3-8")
    machine = Machine.place(reading_devices(placed.profile), placed.hosts)
    link = 4.45e9
    inside = machine.message(0, 2, 1e8)
    assert inside.rate_bytes_per_s == pytest.approx(min(2e9, link / 2))
    path = [machine.links[position].name for position in machine.path(0, 2).links]
    memory = "server/socket0 -- server/memory0"
    assert path.count(memory) == 2  # written by one copy and read by the other
    assert any("server/r90 -> server/socket0" in name for name in path)
    route = machine.route(0, 1)
    assert route.message_rate(1e9) == pytest.approx(link / 2)
    assert [machine.links[position].name for position in route.links].count(memory) == 2
    direct = Machine.place(with_peer_access(machine.profile), machine.hosts)
    assert direct.route(0, 1).message_rate(1e9) == pytest.approx(link)
    assert memory not in [direct.links[position].name for position in direct.route(0, 1).links]


def test_between_hosts_three_copies_add_up() -> None:
    placed = place("p100-10gbe-4x2")
    machine = Machine.place(reading_devices(placed.profile), placed.hosts)
    pcie, wire = 8.9e9, 1.18e9
    assert machine.route(0, 2).message_rate(1e9) == pytest.approx(1 / (1 / pcie + 1 / wire + 1 / pcie))
    path = [machine.links[position].name for position in machine.route(1, 3).links]
    assert path.count("node0/socket1 -- node0/memory1") == path.count("node1/socket1 -- node1/memory1") == 2


def test_nccl_without_peer_access_broadcasts_at_the_rate_of_the_slowest_link() -> None:
    machine = place("mixed-pcie3-8")
    nbytes, link = 1e9, 4.45e9  # of the profile's links alone: the library states no rate
    assert machine.profile.default_backend() == "gloo", "as CaPGNN ran it"
    path, through = machine.path(0, 1, "nccl"), machine.route(0, 1, "nccl")
    assert path.links == machine.network.route(*machine.devices[:2]).links, "chunks cross what whole copies cross"
    assert through.message_rate(nbytes) == pytest.approx(link)
    assert machine.network.route(*machine.devices[:2]).message_rate(nbytes) == pytest.approx(link / 2)
    for ranks in (2, 3, 4):
        price = machine.collective("broadcast", "nccl", nbytes, tuple(range(ranks)), ranks - 1)
        assert price.seconds_alone - price.latency_s == pytest.approx(nbytes / link)
        assert [flow.rate_bytes_per_s for flow in price.flows] == pytest.approx([link] * (ranks - 1))
    wider = machine.profile.links["pcie3-x8"].model_copy(update={"message_bandwidth": None})
    links = {**machine.profile.links, "pcie3-x8": wider}
    faster = Machine.place(machine.profile.model_copy(update={"links": links}), machine.hosts)
    price = faster.collective("broadcast", "nccl", nbytes, (0, 1, 2, 3), 0)
    assert price.seconds_alone - price.latency_s == pytest.approx(nbytes / 7.88e9)


def test_staging_and_the_usual_library_are_refused_where_they_mean_nothing() -> None:
    table = place("mixed-pcie3-8").profile.to_table()
    gloo = {**table["backends"]["gloo"], "staging": "chunks"}
    with pytest.raises(HardwareError, match=r"staging: got 'chunks' with memory = 'host', expected none"):
        parse_profile({**table, "backends": {**table["backends"], "gloo": gloo}})
    with pytest.raises(HardwareError, match=r"usual_backend: got 'nccl', expected a library .*: gloo"):
        parse_profile({**table, "usual_backend": "nccl", "backends": {"gloo": table["backends"]["gloo"]}})
    del table["usual_backend"]
    assert parse_profile(table).default_backend() == "nccl"


def with_peer_access(profile: Profile) -> Profile:
    devices = {name: device.model_copy(update={"peer_to_peer": True}) for name, device in profile.devices.items()}
    return profile.model_copy(update={"devices": devices})


def test_hongtus_server_has_a_socket_for_each_gpu() -> None:
    machine = place("a100-nvlink-4")
    for rank in range(4):
        path = host_route(machine, rank, True)
        assert path is not None
        assert [machine.links[position].name for position in path.links] == [
            f"server/socket{rank} -- server/memory{rank}",
            f"server/socket{rank} -> server/gpu{rank}",
        ]
    assert len(machine.route(0, 3).links) == 1
    assert machine.route(0, 3).types[0].kind == "nvlink"


def test_an_unmeasured_group_takes_its_rails_and_is_flagged() -> None:
    machine = place("dgx-a100-2")
    nbytes = float(2**26)
    seconds = {}
    for each in (1, 2, 4, 8):
        members = [*range(each), *range(8, 8 + each)]
        price = machine.collective("allreduce", "nccl", nbytes, members)
        seconds[each] = price.seconds_alone
        assert price.extrapolated == (each == 8)
        assert price.source == "measured"
        assert price.spread is not None
        assert (price.spread > 0.05) == (each == 8)
    # twice the rails carry nearly the same bytes; hops and the way inside the hosts do not get shorter
    assert 1.3 < seconds[4] / seconds[8] < 2.0
    inside = place("dgx-a100")
    assert inside.collective("allreduce", "nccl", nbytes, range(8)).extrapolated
    assert not inside.collective("allreduce", "nccl", nbytes, range(4)).extrapolated
    assert inside.collective("allreduce", "nccl", 2 * nbytes, range(4)).extrapolated


@pytest.mark.parametrize("name", [name for name in SHIPPED if "nccl" in load_profile(name).backends])
@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "allgather", "send"])
def test_more_bytes_never_take_less_time(name: str, kind: str) -> None:
    """But across hosts, where NCCL changes its algorithm or, as measured of just this group, its protocol."""
    profile = load_profile(name)
    nbytes = 2.0 ** np.arange(3.0, 30.01, 0.125)
    most_hosts, room = CLUSTERS[name]
    for ranks, each in itertools.product(range(2, 17), {1, 2, 4, room}):
        hosts = [rank // each for rank in range(ranks)]
        if hosts[-1] >= most_hosts or each > room:
            continue
        machine = Machine.place(profile, hosts)
        if kind == "send":
            messages = [machine.message(0, ranks - 1, size, "nccl") for size in nbytes]
            ways = [None] * len(nbytes)
            times = [one.latency_s + size / one.rate_bytes_per_s for one, size in zip(messages, nbytes, strict=True)]
        else:
            ways = [find_collective(machine, kind, "nccl", range(ranks), size) for size in nbytes]
            times = [machine.collective(kind, "nccl", size, range(ranks)).seconds_alone for size in nbytes]
        longest = 0.0
        for place, (seconds, way) in enumerate(zip(times, ways, strict=True)):
            before = ways[place - 1]
            if hosts[-1] and place and way is not None and before is not None:
                switched = way[0].algorithm != before[0].algorithm or (way[1] and way[0] != before[0])
                longest = 0.0 if switched else longest
            assert seconds > 0.97 * longest, (ranks, each, nbytes[place])
            longest = max(longest, seconds)


def test_a_group_that_was_not_measured_is_no_mixture_of_tables_and_says_how_little_is_known() -> None:
    """2 GPUs took 7 us for 2 KiB, 4 took 38: one curve through both fell from 37 to 6 us within an octave."""
    machine = place("dgx-h100")
    prices = [machine.collective("allreduce", "nccl", size, range(8)) for size in (2048, 3072, 2.0**20, 2.0**26)]
    assert prices[0].seconds_alone == pytest.approx(prices[1].seconds_alone, rel=0.05)
    spreads = [price.spread for price in prices]
    assert all(spread is not None for spread in spreads)
    assert spreads[0] > 0.5 > 0.3 > spreads[2] > 0.1 > 0.04 > spreads[3] > 0.01
