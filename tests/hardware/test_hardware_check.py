"""``simgnn hardware check`` and ``show``: every fault at once, whatever else is wrong; the tree shows everything."""

import copy
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.hardware.profile.check import price_problems, table_price_problems
from simgnn.hardware.profile.library import known_profiles
from simgnn.hardware.profile.profile import find_problems, load_profile, parse_profile
from simgnn.hardware.show.describe import bandwidth_matrix, tree
from simgnn.hardware.topology.topology import node_kinds
from tests.hardware.conftest import tree_lines

DATA = Path(__file__).parent / "data"


def problems_of(table: dict[str, Any]) -> list[str]:
    """As the command collects them."""
    profile, problems = find_problems(table)
    return problems + table_price_problems(table) if profile is None else price_problems(profile)


def zero_bandwidth(table: dict[str, Any]) -> None:
    table["links"]["infiniband"]["bandwidth"]["value"] = "0 GB/s"


def unreachable_host(table: dict[str, Any]) -> None:
    table["topology"]["edges"] = []


def unreachable_device(table: dict[str, Any]) -> None:
    edges = table["topology"]["hosts"]["node"]["edges"]
    table["topology"]["hosts"]["node"]["edges"] = [edge for edge in edges if edge["between"] != ["right", "switch1"]]


def missing_curve(table: dict[str, Any]) -> None:
    table["devices"]["fast"]["curves"] = table["devices"]["fast"]["curves"][1:]


def missing_collective(table: dict[str, Any]) -> None:
    table["backends"]["nccl"]["collectives"] = table["backends"]["nccl"]["collectives"][:1]


def unknown_link(table: dict[str, Any]) -> None:
    table["topology"]["hosts"]["node"]["edges"][2]["link"] = "nvlinc"


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "zero bandwidth": (zero_bandwidth, "links.infiniband.bandwidth.value: got '0 GB/s'"),
    "unreachable host": (unreachable_host, "'node1/left0' is not reachable from 'node0/left0'"),
    "unreachable device": (unreachable_device, "'node0/right1' is not reachable from 'node0/left0'"),
    "missing curve": (missing_curve, "devices.fast.curves: no curve of 'matmul'"),
    "missing collective": (missing_collective, "backends.nccl.collectives: no 'exchange'"),
    "unknown link": (unknown_link, "got 'nvlinc'"),
}


@settings(max_examples=64, deadline=None)
@given(names=st.sets(st.sampled_from(sorted(FAULTS)), min_size=1))
def test_every_fault_is_told_whatever_else_is_wrong(names: set[str]) -> None:
    table = tomllib.loads((DATA / "invented-server.toml").read_text())
    for name in names:
        FAULTS[name][0](table)
    told = "\n".join(problems_of(table))
    for name, (_, words) in FAULTS.items():
        assert (words in told) == (name in names), f"{name}: {told}"
    assert "Traceback" not in told


def test_groups_across_hosts_need_a_collective_of_theirs(table: dict[str, Any]) -> None:
    before = problems_of(table)
    for entry in table["backends"]["nccl"]["collectives"]:
        entry["scope"] = "host"
    after = [problem for problem in problems_of(table) if problem not in before]
    assert after == [
        f"backends.nccl.collectives: no '{kind}' for groups across hosts" for kind in ("allreduce", "exchange")
    ]
    del table["topology"]["edges"], table["topology"]["nodes"], table["topology"]["hosts"]["node"]["count"]
    assert problems_of(table) == before


def test_devices_without_peer_access_need_host_memory(table: dict[str, Any]) -> None:
    before = problems_of(table)
    table["devices"]["fast"]["peer_to_peer"] = False
    assert problems_of(table) == before, "a PCIe switch stands for host memory"
    nodes = table["topology"]["hosts"]["node"]["nodes"]
    nodes["switch0"] = nodes["switch1"] = "nvswitch"
    told = [problem for problem in problems_of(table) if problem not in before]
    assert len(told) == 8
    assert all("no link to the memory of its host" in problem for problem in told)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"devices": 3, "topology": [], "backends": 1},
        {"devices": {"a": 1}, "topology": {"hosts": {"h": {"devices": 1}}}, "backends": {"nccl": 2}},
        {"devices": {"a": {"curves": [1]}}, "topology": {"hosts": {"h": {"devices": [{"type": "a"}, 2]}}}},
        {"backends": {"nccl": {"collectives": [{"kind": []}]}}},
    ],
)
def test_tables_of_any_shape_are_told_and_never_crash(table: dict[str, Any]) -> None:
    assert problems_of(copy.deepcopy(table))


@pytest.mark.parametrize("name", sorted(known_profiles()))
def test_shipped_profiles_have_no_faults_and_a_tree_of_everything(name: str) -> None:
    profile = load_profile(name)
    assert price_problems(profile) == []
    told = [text for _, text in tree_lines(tree(profile))]
    shown = "\n".join(told)
    for full, kind in node_kinds(profile.topology).items():
        local = full.rpartition("/")[2]
        if not kind.startswith("device:"):
            assert f"{local} ({kind})" in shown
    for host in profile.topology.hosts.values():
        for placed in host.devices:
            assert f"{placed.type}" in shown
    for link in profile.links:
        assert link in shown


def test_the_tree_nests_devices_below_what_they_hang_on(server: Any) -> None:
    told = [(depth, text) for depth, text in tree_lines(tree(server))]
    texts = [text for _, text in told]
    depth_of = {text: depth for depth, text in told}
    switch, left = "switch0 (pcie-switch)", "2 x left: fast, by pcie (20 GB/s)"
    assert depth_of[left] == depth_of[switch] + 1
    assert depth_of["nic (nic), by pcie (20 GB/s)"] == depth_of[switch] + 1
    assert texts.index(switch) < texts.index(left) < texts.index("switch1 (pcie-switch)")
    assert "nic -- spine, by infiniband (10 GB/s)" in texts


@settings(max_examples=20, deadline=None)
@given(factor=st.sampled_from([0.5, 2.0, 8.0]), names=st.permutations(["alpha", "beta"]))
def test_the_matrix_scales_with_the_links_and_ignores_names(factor: float, names: Sequence[str]) -> None:
    text = (DATA / "invented-server.toml").read_text()
    _, before = bandwidth_matrix(parse_profile(tomllib.loads(text)))
    table = tomllib.loads(text.replace("switch0", names[0]).replace("switch1", names[1]))
    for link in table["links"].values():
        for key in ("bandwidth", "message_bandwidth"):
            if key in link:
                value, unit = link[key]["value"].split()
                link[key]["value"] = f"{float(value) * factor} {unit}"
    _, after = bandwidth_matrix(parse_profile(table))
    known = before == before
    assert (known == (after == after)).all()
    assert after[known] == pytest.approx(before[known] * factor)
