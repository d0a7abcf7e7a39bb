"""What a profile tells of links while messages fill them: read, written, shown, compared."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.cli.main import invoke
from simgnn.hardware.profile.communication import Load
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile, save_profile
from simgnn.hardware.show.describe import tree
from simgnn.hardware.show.difference import Change, compare_profiles
from simgnn.hardware.topology.routes import lay_out
from tests.hardware.conftest import tree_lines

LOAD = {
    "source": "measured",
    "queues": [{"messages": 1, "size": "150 kB"}, {"messages": 4, "size": "300 kB"}],
    "processor": "12 ns",
    "spread": "6 %",
}


def with_load(table: dict[str, Any], **changed: Any) -> Profile:
    """The invented server, the load on its links between hosts."""
    table["links"]["infiniband"]["load"] = {**LOAD, **changed}
    return parse_profile(table)


def told(first: Profile, second: Profile) -> dict[str, Change]:
    changes = compare_profiles(first, second).changes
    return {change.level: change for change in changes if change.what == "links.infiniband"}


def test_it_is_written_as_it_is_read_and_every_link_of_its_kind_has_it(table: dict[str, Any], tmp_path: Path) -> None:
    profile = with_load(table)
    save_profile(profile, tmp_path / "profile.toml")
    assert load_profile(tmp_path / "profile.toml") == profile
    load = profile.links["infiniband"].load
    assert load is not None
    assert (load.queues[1].size, load.processor, load.spread) == (300e3, 12e-9, 0.06)
    loads = {link.load for link in lay_out(profile).links if link.kind == "infiniband"}
    assert loads == {load}
    assert not any(link.load for link in lay_out(profile).links if link.kind != "infiniband")


def test_it_counts_as_one_more_measured_number(table: dict[str, Any]) -> None:
    before = parse_profile(table).source_counts()
    assert with_load(table).source_counts() == {**before, "measured": before["measured"] + 1}


@given(messages=st.floats(0.0, 20.0))
def test_between_two_numbers_of_messages_what_waits_grows_evenly(messages: float) -> None:
    waits = Load.model_validate(LOAD).queued_bytes(messages)
    expected = 150e3 * messages if messages <= 1 else min(150e3 + 50e3 * (messages - 1), 300e3)
    assert waits == pytest.approx(expected)


def test_show_tells_it_in_a_line_and_in_numbers(
    table: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "while messages fill it (measured ± 6 %): 150 kB wait before it with 1, 300 kB wait before it with 4 at once"
    line += "; a byte costs 12 ns of a core at each end"
    save_profile(with_load(table), tmp_path / "profile.toml")
    assert line in [text for _, text in tree_lines(tree(load_profile(tmp_path / "profile.toml")))]
    assert invoke(["hardware", "show", str(tmp_path / "profile.toml"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["profile"]["links"]["infiniband"]["load"]
    assert shown["queues"] == [{"messages": 1, "size": 150e3}, {"messages": 4, "size": 300e3}]
    assert shown["processor"] == 12e-9
    bare = with_load(table, processor=None, spread=None)
    assert any("while messages fill it (measured): 150 kB" in text for _, text in tree_lines(tree(bare)))
    assert any("a byte costs not stated" in text for _, text in tree_lines(tree(bare)))


def test_diff_tells_how_much_longer_others_wait(table: dict[str, Any]) -> None:
    first = with_load(table)
    assert all(change.median == 1.0 and not change.beyond for change in told(first, first).values())
    queues = [{"messages": 2, "size": "400 kB"}]
    changes = told(first, with_load(table, queues=queues, processor="12.5 ns"))
    assert changes["wait behind 1"].median == pytest.approx(200 / 150)
    assert changes["wait behind 2"].median == pytest.approx(400 / 200)
    assert changes["wait behind 4"].median == pytest.approx(400 / 300)
    assert changes["wait behind 4"].beyond
    assert changes["core a byte"].median == pytest.approx(12.5 / 12)
    assert not changes["core a byte"].beyond, "within the spread of both"


def test_diff_names_the_profile_that_lacks_it(table: dict[str, Any]) -> None:
    without, full, part = parse_profile(table), with_load(table), with_load(table, processor=None)
    assert "links.infiniband: load: none in the first" in compare_profiles(without, full).apart
    assert "links.infiniband: load: none in the second" in compare_profiles(full, without).apart
    assert "links.infiniband: core a byte: none in the second" in compare_profiles(full, part).apart
    assert not [text for text in compare_profiles(without, without).apart if "load" in text]
