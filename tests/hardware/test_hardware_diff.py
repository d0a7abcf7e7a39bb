"""``simgnn hardware diff``: two calibrations of one machine."""

import copy
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.cli.main import invoke
from simgnn.errors import HardwareError
from simgnn.hardware.price.work import features
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.library import known_profiles
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile, save_profile
from simgnn.hardware.show.difference import Difference, change_of, compare_profiles, furthest

DATA = Path(__file__).parent / "data"


def changed(table: dict[str, Any], factor: float) -> Profile:
    """The invented server, its SpMM and its all-reduce slower by a factor."""
    other = copy.deepcopy(table)
    curve = next(entry for entry in other["devices"]["fast"]["curves"] if entry["primitive"] == "spmm")
    curve["costs"] = {"gathered_bytes": f"{100e9 / factor!r} B/s", "missed_bytes/L2": f"{10e9 / factor!r} B/s"}
    entry = next(one for one in other["backends"]["nccl"]["collectives"] if one["kind"] == "allreduce")
    entry["bus_bandwidth"]["value"] = f"{5e9 / factor!r} B/s"
    entry["floor"]["value"] = f"{10e-6 * factor!r} s"
    entry["hop"]["value"] = f"{1e-6 * factor!r} s"
    return parse_profile(other)


def of(difference: Difference, what: str) -> Any:
    return next(change for change in difference.changes if change.what == what)


@pytest.mark.parametrize("name", sorted(known_profiles()))
def test_a_profile_does_not_differ_from_itself(name: str) -> None:
    profile = load_profile(name)
    found = compare_profiles(profile, profile)
    assert all(change.median == change.worst == 1.0 and not change.beyond for change in found.changes)
    assert not furthest(found.changes)
    assert not [text for text in found.apart if "only in" in text]


@settings(max_examples=25, deadline=None)
@given(factor=st.floats(1.05, 20.0))
def test_what_got_slower_by_a_factor_is_told_with_it_and_nothing_else_is(factor: float) -> None:
    import tomllib

    table = tomllib.loads((DATA / "invented-server.toml").read_text())
    first, second = parse_profile(table), changed(table, factor)
    there, back = compare_profiles(first, second), compare_profiles(second, first)
    for what in ("spmm", "nccl allreduce"):
        assert of(there, what).median == pytest.approx(factor, rel=1e-6)
        assert of(there, what).worst == pytest.approx(factor, rel=1e-6)
    assert {change.what for change in there.changes if change.beyond} == {"spmm", "nccl allreduce"}
    assert [change.what for change in furthest(there.changes)][-1] in ("spmm", "nccl allreduce")
    for one, other in zip(there.changes, back.changes, strict=True):
        assert math.log(one.median) == pytest.approx(-math.log(other.median), abs=1e-9)


def test_only_sizes_that_both_have_measured_are_compared(server: Profile, table: dict[str, Any]) -> None:
    everything = of(compare_profiles(server, server), "matmul").sizes
    table["devices"]["fast"]["curves"][0]["range"]["flops"] = ["0 flops", "1e9 flops"]
    narrow = parse_profile(table)
    fewer = of(compare_profiles(server, narrow), "matmul").sizes
    assert 0 < fewer < everything
    assert fewer == of(compare_profiles(narrow, server), "matmul").sizes
    table["devices"]["fast"]["curves"][0]["range"]["flops"] = ["1 flop", "2 flops"]
    told = compare_profiles(server, parse_profile(table)).apart
    assert any("matmul, 1 x 1: no size of the grid was measured in both" in text for text in told)


def test_a_spread_excuses_a_difference(server: Profile, table: dict[str, Any]) -> None:
    curve = table["devices"]["fast"]["curves"][0]
    curve["costs"] = {"call": "10.5 us/call", "flops": "0.952 Tflop/s"}
    assert of(compare_profiles(server, parse_profile(table)), "matmul").beyond
    curve["spread"] = "9 %"
    assert not of(compare_profiles(server, parse_profile(table)), "matmul").beyond


def test_levels_of_one_profile_only_are_told(server: Profile, table: dict[str, Any]) -> None:
    table["devices"]["fast"]["curves"][1]["concurrency"] = 2
    told = compare_profiles(server, parse_profile(table)).apart
    assert any("spmm, 1 x 1: only in the first" in text for text in told)
    assert any("spmm, 2 x 1: only in the second" in text for text in told)


def test_machines_with_nothing_in_common_are_refused(server: Profile) -> None:
    with pytest.raises(HardwareError, match="Compare two profiles of one machine"):
        compare_profiles(load_profile("cpu-100gbe-8"), server)


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_the_grid_has_every_size_that_a_primitive_needs(primitive: str) -> None:
    sizes = PRIMITIVES[primitive].grid()
    found = features(primitive, sizes)
    assert len({len(column) for column in sizes.values()}) == 1
    assert all((column >= 0).all() for column in found.values())


def test_screen_and_json(table: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.toml", tmp_path / "after.toml"
    save_profile(parse_profile(table), before)
    save_profile(changed(table, 2.0), after)
    assert invoke(["hardware", "diff", str(before), str(after), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(told["beyond_spread"]) == ["nccl allreduce, 2 ranks", "nccl allreduce, 4 ranks", "spmm, 1 x 1"]
    assert invoke(["hardware", "diff", str(before), str(after)]) == 0
    shown = capsys.readouterr()
    assert "beyond" in shown.out
    assert "differ by more than their spread: " in shown.err
    assert "spmm (1 x 1) x 2.00" in shown.err
    assert (told["first"], told["second"]) == tuple(f"invented-server ({path})" for path in (before, after))
    assert invoke(["hardware", "diff", str(before), str(before)]) == 0
    assert "none of" in capsys.readouterr().err
    assert invoke(["hardware", "diff", str(before), "nowhere.toml"]) == 2


def test_links_that_let_a_burst_through_are_compared_beyond_it(table: dict[str, Any]) -> None:
    link = table["links"]["infiniband"]
    link["burst"] = {"value": "1 MiB", "source": "datasheet"}
    first = parse_profile(table)
    found = compare_profiles(first, first)
    assert all(change.median == change.worst == 1.0 and not change.beyond for change in found.changes)
    assert of(found, "links.infiniband").level == "bandwidth"
    link["burst"]["value"], link["latency"]["value"] = "2 MiB", "0 s"
    slower = compare_profiles(parse_profile(table), first)
    levels = {change.level: change for change in slower.changes if change.what == "links.infiniband"}
    assert levels["burst"].median == 2.0, "half of the burst: what is beyond it takes longer"
    assert levels["one message"].median > 1.0
    assert "links.infiniband: latency: none in the first" in slower.apart


def test_messages_of_links_are_compared_where_they_were_measured_and_by_their_own_spread() -> None:
    table = load_profile("dgx-a100").to_table()
    before = parse_profile(table)
    link = table["links"]["nvlink"]
    link["message_bandwidth"] |= {"value": "287 GB/s", "spread": "3 %"}
    levels = {c.level: c for c in compare_profiles(before, parse_profile(table)).changes if c.what == "links.nvlink"}
    # 2 KiB to 64 MiB; 4 % within the spread of both, 4.3 %
    assert (levels["one message"].sizes, levels["one message"].beyond) == (8, False)
    assert levels["one message"].spread == pytest.approx(math.hypot(0.03031, 0.03))
    assert levels["bandwidth"].median == 1.0


def slower(name: str, of_entry: Callable[[Any], bool]) -> Profile:
    """A shipped profile, the all-reduces that are asked for with half of their bus bandwidth and twice the floor."""
    table = load_profile(name).to_table()
    for entry in table["backends"]["nccl"]["collectives"]:
        if of_entry(entry):
            for key, factor in (("bus_bandwidth", 0.5), ("floor", 2.0)):
                number, unit = entry[key]["value"].split(" ")
                entry[key]["value"] = f"{float(number) * factor!r} {unit}"
    return parse_profile(table)


def test_a_regime_of_sizes_that_got_slower_is_told_though_times_of_another_scatter_widely() -> None:
    found = compare_profiles(
        load_profile("dgx-h100"), slower("dgx-h100", lambda entry: entry.get("protocol") == "simple")
    )
    # small calls of two ranks scatter by 80 %, large ones by 1 %: each is judged by its own
    beyond = {change.level for change in found.changes if change.beyond}
    assert beyond == {"2 ranks, 4 MiB to 64 MiB", "4 ranks, 4 MiB to 64 MiB"}
    assert all(change.median > 1.8 for change in found.changes if change.beyond)
    assert all(change.median == change.worst == 1.0 for change in found.changes if not change.beyond)


def test_groups_across_hosts_are_compared_there() -> None:
    found = compare_profiles(
        load_profile("dgx-a100-2"), slower("dgx-a100-2", lambda entry: entry.get("scope") == "cluster")
    )
    assert {change.level.split(",")[0] for change in found.changes if change.beyond} == {
        f"{ranks} ranks across hosts" for ranks in (2, 4, 8)
    }
    # what lies behind ranks_per_rail and inside a host was left as it was
    assert all(change.beyond == ("across hosts" in change.level) for change in found.changes)


def test_entries_that_price_nothing_that_is_compared_are_told_with_the_reason() -> None:
    # those of several rank counts, each of which has entries of its own, serve others
    first = load_profile("dgx-a100")
    carried = (
        "backends.nccl: allreduce inside a host, ring, other than 2 or 4 ranks: carried over from these, none was "
    )
    assert compare_profiles(first, first).apart == (f"{carried}measured (alike in both)",)
    found = compare_profiles(first, slower("dgx-a100", lambda entry: len(entry.get("ranks", ())) > 1))
    assert found.apart == (f"{carried}measured (different in the two)",)
    assert not any(change.beyond for change in found.changes)
    assert f"{carried}measured (only in the second)" in compare_profiles(load_profile("a100-nvlink-4"), first).apart
    both = compare_profiles(load_profile("dgx-a100-2"), first).apart
    assert [text for text in both if "carried over" in text] == [
        "backends.nccl: allreduce across hosts, ring, other than 2 or 4 or 8 ranks: carried over from these, none was "
        "measured (only in the first)",
        "backends.nccl: allreduce across hosts, tree, other than 4 or 8 ranks: carried over from these, none was "
        "measured (only in the first)",
        f"{carried}measured (alike in both)",
    ]


def test_a_regime_of_sizes_between_those_that_are_compared_is_told(table: dict[str, Any]) -> None:
    entry = next(one for one in table["backends"]["nccl"]["collectives"] if one["kind"] == "allreduce")
    ends = ("0 B", "300 kB", "1 MB", "1 TB")
    narrow = [{**entry, "sizes": list(pair)} for pair in itertools.pairwise(ends)]
    table["backends"]["nccl"]["collectives"] = [
        *(one for one in table["backends"]["nccl"]["collectives"] if one is not entry),
        *narrow,
    ]
    profile = parse_profile(table)
    (told,) = (text for text in compare_profiles(profile, profile).apart if "allreduce" in text)
    assert told.endswith("300 kB to 1 MB: prices none of the sizes that are compared (alike in both)")


def test_where_a_spread_differs_by_size_each_size_counts_with_its_own() -> None:
    spreads = np.array([0.8, 0.8, 0.01, 0.01, 0.01])
    assert change_of("work", "1 x 1", [1.3, 1.3, 1.3, 1.3, 1.3], spreads).beyond
    assert not change_of("work", "1 x 1", [1.3, 1.3, 1.0, 1.0, 1.0], spreads).beyond
    assert not change_of("work", "1 x 1", [1.005], np.array([np.nan])).beyond
