"""The plan of a record against that of a prediction: what ``auto`` chose, and graphs by their digests."""

from pathlib import Path

import pytest

from simgnn.analysis.replay.recorded_run import (
    different_experiment,
    graph_differences,
    planned_differences,
    recorded_plan,
    stated_differences,
)
from simgnn.errors import ConfigError
from simgnn.registry import shipped
from tests.record.test_plan_file import PLAN, written

ROWS = "communication.rows"
POLICIES = {"communication": shipped("communication")["halo"]}
CENTRE = ("graph.centre", None, True)


@pytest.mark.parametrize("name", ["plan.json", "resolved.toml"])
@pytest.mark.parametrize("text", [None, "= 3"])
def test_a_plan_that_is_not_whole_is_rejected(tmp_path: Path, name: str, text: str | None) -> None:
    path = written(tmp_path, PLAN) / "plan" / name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ConfigError, match=rf"--activity: .*{name}"):
        recorded_plan(tmp_path)


@pytest.mark.parametrize(
    ("stated", "there", "here", "expected"),
    [
        # what both leave to auto, or one states and the other chose
        (("auto", "auto"), "input", "input", None),
        (("auto", "input"), "input", "input", None),
        (("input", "auto"), "input", "input", None),
        (("auto", "auto"), "transformed", "input", ("transformed (chosen by 'auto')", "input (chosen by 'auto')")),
        (("auto", "input"), "transformed", "input", ("transformed (chosen by 'auto')", "input")),
        (("transformed", "auto"), "transformed", "input", ("transformed", "input (chosen by 'auto')")),
        (("transformed", "input"), "transformed", "input", ("transformed", "input")),
    ],
)
def test_what_auto_chose_counts(
    stated: tuple[str, str], there: str, here: str, expected: tuple[str, str] | None
) -> None:
    old, new = stated
    differences = [(ROWS, old, new)] if old != new else []
    found = planned_differences(differences, {ROWS: new}, {ROWS: there}, {ROWS: here})
    assert found == ([] if expected is None else [(ROWS, *expected)])
    faults = different_experiment(found, Path("run"), POLICIES)[0]
    assert len(faults) == (expected is not None)
    if expected is not None:
        assert f"{ROWS}: got {expected[1]}, expected {expected[0]} as in run: set it so" in faults[0]
        assert different_experiment(found, Path("run"), POLICIES, {ROWS}) == ([], [])
    # before anything is planned, only what both state is known to differ
    early = stated_differences(differences, {ROWS: there})
    assert early == ([] if "auto" in stated else differences)


def test_what_was_resolved_of_stated_values_is_not_told_twice() -> None:
    layers, order = ("model.layers", 2, 3), "model.order"
    resolved = {order: ["aggregate-first"] * 2}, {order: ["aggregate-first"] * 3}
    assert planned_differences([layers], {order: "aggregate-first"}, *resolved) == [layers]
    assert planned_differences([layers], {order: "auto"}, *resolved) == [layers]


def test_graphs_are_compared_by_digest() -> None:
    path, epochs = ("graph.source", "a.npz", "b.npz"), ("train.epochs", 3, 4)
    assert graph_differences([path, CENTRE, epochs], "b.npz", "one", "one") == [epochs]
    assert graph_differences([path, CENTRE, epochs], "b.npz", "one", "two") == [path, CENTRE, epochs]
    # another graph has taken the place of the file
    told = [("graph.source", "a.npz of digest one", "a.npz of digest two"), epochs]
    assert graph_differences([epochs], "a.npz", "one", "two") == told
    # statistics written by hand tell no digest
    assert graph_differences([path, epochs], "b.npz", None, "two") == [path, epochs]
    assert graph_differences([path, epochs], "b.npz", "one", None) == [path, epochs]
