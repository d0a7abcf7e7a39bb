"""Suites: what is shipped loads, faults are told all at once, draws are balanced and never change."""

import hashlib
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError
from simgnn.hardware.profile.profile import load_profile
from simgnn.study.cases import AXES, case_experiment, with_data_folder
from simgnn.study.profile_variants import slow_down
from simgnn.study.validate.suite import Slowed, balanced_draw
from simgnn.study.validate.suite_file import find_suite, load_suite, parse_suite
from simgnn.tomlfile import load_toml

RUNS = ("issue2", "quick", "testbed")


@pytest.mark.parametrize("name", RUNS)
def test_shipped_suites_are_whole(name: str) -> None:
    suite = load_suite(find_suite(name))
    assert suite.name == name
    assert len(suite.cases()) == len(set(suite.cases()))
    assert parse_suite(suite.to_table(), "again") == suite


def test_the_draw_of_the_testbed_suite_is_the_committed_one() -> None:
    suite = load_suite(find_suite("testbed"))
    cases = suite.cases()
    assert len(cases) == 48
    assert len(suite.every_case()) == 3 * 3 * 2 * 4 * 4
    for axis in AXES:
        counts = Counter(case.level(axis) for case in cases)
        assert max(counts.values()) == min(counts.values()), axis
    for axis in AXES[:3]:
        pairs = Counter((case.level(axis), case.topology) for case in cases)
        assert len(set(pairs.values())) == 1, axis
    names = "\n".join(case.name for case in cases)
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == "91fea7b57737f4b2"


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 5), st.data())
def test_draws_are_balanced(sizes: list[int], seed: int, data: st.DataObject) -> None:
    cases = list(product(*(range(size) for size in sizes)))
    count = data.draw(st.integers(1, len(cases)))
    drawn = balanced_draw(cases, count, seed)
    assert drawn == sorted(set(drawn)) == balanced_draw(cases, count, seed)
    assert len(drawn) == count
    for axis, size in enumerate(sizes):
        counts = Counter(cases[place][axis] for place in drawn)
        assert max(counts.values()) - min(counts.get(level, 0) for level in range(size)) <= 2


def test_every_case_is_an_experiment() -> None:
    suite = load_suite(find_suite("testbed"))
    case = next(case for case in suite.cases() if case.topology == "two-hosts-50" and case.ranks == 4)
    experiment = case_experiment(suite.extends, suite.settings(case), hardware="dgx-a100")
    assert experiment.name == case.name
    assert experiment.rank_hosts() == (0, 0, 1, 1)
    assert experiment.partition.label == case.partition
    assert experiment.train.epochs == suite.epochs
    assert experiment.hardware.profile == "dgx-a100"


def test_all_faults_are_told_at_once() -> None:
    table = load_toml(find_suite("quick"))
    table["repeats"] = 0
    table["epoch"] = 5
    table["graphs"][0]["nmae"] = "x"
    table["bars"]["tau"] = 2.0
    table["topologies"] = [{"name": "far", "hosts": 2, "link": 200}]
    with pytest.raises(ConfigError) as caught:
        parse_suite(table, "mine.toml")
    told = "\n".join(caught.value.problems)
    for words in ("mine.toml: repeats", "epoch: unknown key (did you mean 'epochs'?)", "graphs.0.nmae", "bars.tau",
                  "topologies.0.link: got the bare number 200"):  # fmt: skip
        assert words in told, told


def test_faults_of_the_experiments_are_told_at_once() -> None:
    table = load_toml(find_suite("quick"))
    table["graphs"][0]["set"]["graph"]["vertexes"] = 3
    table["experiments"][1]["set"]["model"]["kind"] = "gnc"
    with pytest.raises(ConfigError) as caught:
        parse_suite(table, "mine.toml")
    assert len(caught.value.problems) == 2
    assert "graph.vertexes: unknown key" in caught.value.problems[0]
    assert "model.kind" in caught.value.problems[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": [3], "topologies": [{"name": "far", "hosts": 2, "link": "1 Gbit/s"}]}, "3 ranks cannot be spread"),
        ({"topologies": [{"name": "far", "hosts": 2}]}, "link: expected with two or more hosts"),
        ({"draw": {"count": 99, "seed": 0}}, "draw.count: got 99, expected at most 8"),
        ({"sensitivity": [{}]}, "expected either primitive"),
        ({"sensitivity": [{"primitive": "smpm"}]}, "sensitivity.0: primitive: got 'smpm', expected '*' or one"),
        ({"sensitivity": [{"link": "ethernett"}]}, "sensitivity.0.link: got 'ethernett', expected one of 'pcie'"),
        ({"extends": "vanila"}, "did you mean 'vanilla'"),
        (
            {"group_bars": [{"name": "g", "axis": "graph", "levels": ["rmatt"], "bars": {}}]},
            "no graph is called 'rmatt' (did you mean 'rmat'?)",
        ),
        (
            {"group_bars": [{"name": "g", "axis": "graph", "levels": ["rmat"], "bars": {"better_than_baselines": 2}}]},
            "group_bars.0.bars.better_than_baselines: unknown key",
        ),
    ],
)
def test_faults_are_told_with_a_remedy(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml") as caught:
        parse_suite({**load_toml(find_suite("quick")), **change}, "mine.toml")
    assert words in "\n".join(caught.value.problems)


def test_an_unknown_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        find_suite("quik")


def test_the_data_folder_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    suite = load_suite(find_suite("issue2"))
    experiment = case_experiment(suite.extends, suite.settings(suite.cases()[0]))
    monkeypatch.delenv("SIMGNN_DATA", raising=False)
    with pytest.raises(ConfigError, match="SIMGNN_DATA is not set"):
        with_data_folder(experiment)
    monkeypatch.setenv("SIMGNN_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"coauthor_physics\.npz does not exist"):
        with_data_folder(experiment)
    (tmp_path / "coauthor_physics.npz").touch()
    assert with_data_folder(experiment).graph.source == str(tmp_path / "coauthor_physics.npz")


def test_a_rate_can_be_cut_down_to_any_share() -> None:
    profile = load_profile("vm-epyc-2")
    for share, label in ((0.5, "half the rate of spmm"), (0.25, "0.25 of the rate of spmm")):
        what = Slowed(primitive="spmm", share=share)
        assert what.label == label
        slowed = slow_down(profile, what)
        for name, device in profile.devices.items():
            for before, after in zip(device.curves, slowed.devices[name].curves, strict=True):
                factor = 1 / share if before.primitive == "spmm" else 1.0
                assert after.costs == {term: pytest.approx(cost * factor) for term, cost in before.costs.items()}


def test_links_of_a_kind_are_cut_down_and_no_others() -> None:
    profile = load_profile("p100-10gbe-4x2")
    slowed = slow_down(profile, Slowed(link="ethernet", share=0.25))
    kinds = {link.kind for link in profile.links.values()}
    assert len(kinds) > 1
    for name, link in profile.links.items():
        share = 0.25 if link.kind == "ethernet" else 1.0
        assert link.bandwidth is not None
        assert slowed.links[name].bandwidth.value == pytest.approx(link.bandwidth.value * share)


def test_cases_that_would_share_a_folder_are_refused() -> None:
    table = load_toml(find_suite("quick"))
    table["graphs"] = [{**table["graphs"][0], "name": name} for name in ("a", "a-b")]
    table["partitions"] = [{**table["partitions"][0], "name": "b-c"}, {**table["partitions"][1], "name": "c"}]
    with pytest.raises(ConfigError, match="two cases are called 'a-b-c-P2"):
        parse_suite(table, "mine.toml")


@pytest.mark.parametrize(
    ("bars", "told"),
    [
        ({"median_error": 8.0}, "median_error"),
        ({"median_error": float("inf")}, "median_error"),
        ({"coverage": [80.0, 97.0]}, "coverage"),
        ({"coverage": [0.97, 0.8]}, "expected the least first"),
        ({"coverage": [0.0, 1.0]}, "which every share meets"),
        ({"tau": -1.0}, r"bars\.tau"),
        ({"better_than_baselines": 0.0}, "better_than_baselines"),
        ({"better_than_baselines": 0.5}, "better_than_baselines"),
    ],
)
def test_bars_that_no_score_can_miss_are_refused(bars: dict[str, object], told: str) -> None:
    table = load_toml(find_suite("quick"))
    table["bars"] = bars
    with pytest.raises(ConfigError, match=told):
        parse_suite(table, "mine.toml")


def changed(path: str, value: object) -> dict[str, object]:
    """The table of the suite quick with the value at a path such as "graphs.0.set.graph" replaced, or made."""
    table = load_toml(find_suite("quick"))
    place: Any = table
    *parents, last = path.split(".")
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    place[last] = value
    return table


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("set.train.epochs", 3, "set.train.epochs: got 3, expected none: the suite's epochs"),
        ("experiments.0.set.train.epochs", 3, "experiments.0.set.train.epochs: got 3"),
        ("experiments.1.set.train.eval_every", 1, "experiments.1.set.train.eval_every: got 1"),
        ("graphs.0.set.cluster.hosts", 2, "graphs.0.set.cluster.hosts: got 2, expected none: the suite's ranks"),
        ("partitions.0.set.hardware.profile", "dgx-a100", "partitions.0.set.hardware.profile: got 'dgx-a100'"),
        ("set.name", "mine", "set.name: got 'mine'"),
        ("experiments.0.set.graph.vertices", 9, "experiments.0.set.graph: expected none: the graphs of a suite"),
        ("graphs.0.set.partition.kind", "ebv", "graphs.0.set.partition.kind: got 'ebv', which partitions.0.set overw"),
    ],
)
def test_settings_that_no_run_would_have_are_refused(path: str, value: object, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_suite(changed(path, value), "mine.toml")
    assert f"mine.toml: {told}" in "\n".join(caught.value.problems)


def test_a_setting_that_some_levels_overwrite_is_a_default() -> None:
    table = load_toml(find_suite("quick"))
    table["set"] = {"model": {"kind": "gcn", "hidden": 32}}
    table["experiments"][0]["set"] = {"model": {"layers": 2}}
    suite = parse_suite(table, "mine.toml")
    hidden = {case.experiment: case_experiment("vanilla", suite.settings(case)).model.hidden for case in suite.cases()}
    assert hidden == {"gcn-64": 32, "sage-128": 128}


def group(**changes: object) -> dict[str, object]:
    return {"name": "g", "axis": "graph", "levels": ["rmat"], "bars": {"median_error": 0.1}, **changes}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bars": {}, "sensitivity": []}, "bars: got none, so nothing would be judged; expected one or more of median"),
        ({"group_bars": [group(), group(levels=["communities"])]}, "group_bars.0.name: got 'g'"),
        ({"group_bars": [group(name="all")]}, "group_bars.0.name: got 'all'"),
        (
            {
                "group_bars": [group(axis="partition", levels=["metis"])],
                "draw": {"count": 1, "seed": 0},
                "hold_out": [],
            },
            "group_bars.0.levels: none of the 1 cases drawn is of 'g'",
        ),
        ({"draw": {"count": 1, "seed": 0}, "hold_out": []}, "bars.tau: an order needs two cases, there is 1"),
        ({"bars": {"regret": 0.1}, "choose": ["ranks"]}, "bars.regret: no two cases differ by choose (ranks) alone"),
        (
            {"group_bars": [group(axis="partition", levels=["random"], bars={"regret": 0.1})]},
            "group_bars.0.bars.regret: no two cases",
        ),
        ({"hold_out": [], "bars": {"better_than_baselines": 2.0}}, "hold_out: got [], so the regression is fitted to"),
        ({"hold_out": ["ranks"]}, "hold_out: got 'ranks', which is '2' in all 8 cases: nothing would"),
    ],
)
def test_what_could_judge_nothing_is_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_suite({**load_toml(find_suite("quick")), **change}, "mine.toml")
    assert f"mine.toml: {told}" in "\n".join(caught.value.problems)
