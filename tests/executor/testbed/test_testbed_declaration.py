"""The file of a testbed: every fault at once, what is left out, where ranks sit."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.testbed import network
from executor.testbed.command import main
from executor.testbed.declaration import BURST_FLOOR, Declaration, rank_places
from simgnn.errors import ConfigError

EXAMPLE = """\
hosts = 2
ranks_per_host = 2
link = "200 Mbit/s"
slow = { 3 = 0.5 }
"""


def declare(**table: object) -> Declaration:
    return Declaration.parse({"hosts": 2, "ranks_per_host": 1, "link": "200 Mbit/s", **table}, "bed.toml")


def test_the_example_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bed.toml"
    path.write_text(EXAMPLE)
    declared = Declaration.load(path)
    assert declared.link == 25e6
    assert declared.burst_bytes() == 5000
    assert declare(link="10 Mbit/s").burst_bytes() == BURST_FLOOR
    assert declared.queue == "fair"
    assert [declared.share(rank) for rank in range(4)] == [1, 1, 1, 0.5]
    assert declared.rank_hosts() == (0, 0, 1, 1)


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bed.toml"
    path.write_text(
        'name = "No_Name"\nhosts = "two"\nranks_per_host = 0\nlink = 200\nburst = "3"\nlinks = 1\n'
        "slow = { x = 0.5, 1 = 2, 2 = true }\n"
    )
    with pytest.raises(ConfigError) as caught:
        Declaration.load(path)
    told = "\n".join(caught.value.problems)
    for part in ("name: got", "hosts: got 'two'", "ranks_per_host: got 0", "link: got the bare number 200",
                 "burst: got '3' without a unit", "links: unknown key (did you mean 'link'?)", "slow: got 'x'",
                 "1: got 2, expected a share", "2: got True"):  # fmt: skip
        assert part in told
    assert all(str(path) in line for line in caught.value.problems)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"link": None}, "link: missing"),
        ({"hosts": 1}, "link: got a value, but a single host has no link"),
        ({"hosts": 1, "link": None, "burst": "16 KiB"}, "burst: got a value"),
        ({"hosts": 1, "link": None, "queue": "fifo"}, "queue: got a value, but a single host has no link"),
        ({"queue": "lifo"}, "queue: got 'lifo', expected one of 'fair', 'fifo'"),
        ({"link": "1 bit/s"}, "expected at least 100 kbit/s"),
        ({"burst": "100 B"}, "burst: got '100 B', expected between '2 KiB' and '64 MiB'"),
        ({"link": "3 Tbit/s"}, r"link: got 3 Tbit/s, expected at most 2\.68 Tbit/s"),
        ({"link": "1e30 bit/s"}, "link: got '1e30 bit/s', which is too large for any machine"),
        ({"slow": {"2": 0.5}}, "slow: got rank 2, expected one of 0 to 1"),
        ({"slow": {"1": 0.5, "01": 0.5}}, "rank 1 twice"),
        ({"slow": {"1": 0.0}}, "expected a share of full speed"),
        ({"slow": {"1": float("nan")}}, "expected a share of full speed"),
    ],
)
def test_a_fault_names_its_key(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(**table)


@settings(deadline=None)
@given(
    hosts=st.integers(1, 64), each=st.integers(1, 64), rate=st.floats(1e5, 1e11), share=st.floats(0.01, 1),
    cores=st.integers(1, 128),
)  # fmt: skip
def test_what_is_written_is_read_back_and_nobody_has_more_than_there_is(
    hosts: int, each: int, rate: float, share: float, cores: int
) -> None:
    table = {"hosts": hosts, "ranks_per_host": each, "slow": {"0": share}}
    if hosts > 1:
        table["link"] = f"{rate!r} bit/s"
    declared = Declaration.parse(table, "bed")
    again = Declaration.parse(declared.to_table(), "record")
    assert again.to_table() == declared.to_table()
    places = rank_places(declared, range(cores))
    assert [place.host.number for place in places] == list(declared.rank_hosts())
    assert sum(place.full_cores for place in places) <= cores * (1 + 1e-9)
    assert all(place.host.cores for place in places)
    first = places[0]
    assert first.quota_cores == (None if share == 1 else pytest.approx(share * first.full_cores))
    assert all(place.quota_cores is None for place in places[1:])
    if hosts <= cores:  # no core belongs to two hosts
        sets = {place.host.number: set(place.host.cores) for place in places}
        assert len(set.union(*sets.values())) == sum(map(len, sets.values()))


@given(rate=st.floats(1e5, 2.68e12))
def test_what_is_computed_is_taken_back(rate: float) -> None:
    """The record of a testbed spells the default burst out."""
    table = declare(link=f"{rate!r} bit/s").to_table()
    assert Declaration.parse(table, "record").to_table() == table


def test_without_root_there_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bed.toml"
    path.write_text(EXAMPLE)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for command in (["up", str(path)], ["down", str(path)], ["status"], ["exec", str(path), "true"]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "expected root" in said


def test_without_iproute2_there_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bed.toml"
    path.write_text(EXAMPLE)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["up", str(path)]) == 2
    assert "ip and tc not found; install iproute2" in capsys.readouterr().err
    assert network.shutil.which("ip") is None
