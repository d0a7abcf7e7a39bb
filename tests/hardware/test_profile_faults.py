"""Profiles that are not read, and those that are although something is missing."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from simgnn.errors import HardwareError
from simgnn.hardware.profile.check import price_problems
from simgnn.hardware.profile.profile import Profile, find_problems, load_profile, parse_profile

Table = dict[str, Any]


@pytest.mark.parametrize("peer_to_peer", [True, False])
def test_a_burst_is_read_where_messages_are_no_copies(peer_to_peer: bool, table: Table) -> None:
    table["links"]["infiniband"]["burst"] = {"value": "1 MB", "source": "assumed"}
    table["devices"]["fast"]["peer_to_peer"] = peer_to_peer
    if not peer_to_peer:
        table["backends"]["nccl"]["memory"] = "host"
    profile, problems = find_problems(table)
    assert profile is not None, problems


def test_a_table_without_faults(table: Table) -> None:
    profile, problems = find_problems(table)
    assert profile is not None
    assert problems == []


def test_missing_prices_are_told_but_do_not_stop_loading(server: Profile) -> None:
    problems = price_problems(server)
    assert "devices.fast.curves: no curve of 'gather'" in problems
    assert not any("'matmul'" in problem or "allreduce" in problem for problem in problems)


def test_a_cpu_whose_ranks_cannot_talk(table: Table) -> None:
    table["devices"]["fast"].update(kind="cpu", cores={"value": "2 cores", "source": "assumed"})
    assert any("'node0/left0' has no link to itself" in line for line in price_problems(parse_profile(table)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"format = 1\n[meta\nname = 'x'", "not valid TOML"),
        (b"[devices.cpu]\nkind = 'cp", "not valid TOML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"", "meta: missing"),
        (b"format = 1\ndevices = 3\n", "devices: got 3, expected a table"),
    ],
)
def test_files_that_are_no_profile(text: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text)
    with pytest.raises(HardwareError) as caught:
        load_profile(path)
    assert told in str(caught.value)
    assert "broken.toml" in str(caught.value)


def test_every_prefix_of_a_file_is_read_or_refused(tmp_path: Path) -> None:
    """A truncated file never ends in anything but a profile or a HardwareError."""
    whole = (Path(__file__).parent / "data" / "invented-server.toml").read_bytes()
    path = tmp_path / "cut.toml"
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with suppress(HardwareError):
            load_profile(path)


def test_unknown_name_tells_the_known_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIMGNN_HWPROFILES", str(tmp_path))
    with pytest.raises(HardwareError, match="did you mean 'a800-pcie-ib-2x8'"):
        load_profile("a800-pcie-2x8")
    with pytest.raises(HardwareError, match="no such hardware profile"):
        load_profile(tmp_path / "absent.toml")


def test_a_list_whose_entries_are_wrong_is_not_called_empty_besides(table: Table) -> None:
    table["backends"]["nccl"]["collectives"][0].update(ranks=[0])
    assert find_problems(table)[1] == ["backends.nccl.collectives.0.ranks.0: got 0, expected at least 1"]
