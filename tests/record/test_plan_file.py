"""plan.json of a run that was moved about: whole, or refused with its file and key."""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from executor.plan import RunPlan
from simgnn.analysis.recorded_plan import recorded_plan
from simgnn.errors import ConfigError
from simgnn.experiment.sections import TrainSection
from simgnn.experiment.slots import SLOTS, kinds
from simgnn.graph.graph import GraphFacts
from simgnn.model.spec import LayerSpec
from simgnn.record.plan import read_plan

PLAN: dict[str, Any] = {
    "format": 1,
    "name": "made up",
    "partition": "a/partition",
    "partition_digest": "1" * 64,
    "cut_digest": "2" * 64,
    "graph_digest": "3" * 64,
    "shards": "some/shards",
    "ranks": 2,
    "hosts": [0, 0],
    "layers": [asdict(LayerSpec(1, "gcn", 6, 4)), asdict(LayerSpec(2, "gcn", 4, 3))],
    "classes": 3,
    "multilabel": False,
    "graph": asdict(GraphFacts("g", 10, 20, 6, None, 3, False, 4, 2, 2)),
    "train": TrainSection().model_dump(mode="json"),
    "policies": {
        slot: kinds(slot)[kind]().model_dump(mode="json")
        for slot, kind in (("freshness", "adaptive-vertex"), ("codec", "linear"))
    },
    "batches": None,
    "threads_per_rank": None,
    "seed": 0,
    "program_digest": "4" * 64,
}
RESOLVED = '"model.order" = ["aggregate-first", "transform-first"]\n"model.hoist" = [true, false]\n'
MISSING = object()
WRONG = (MISSING, None, True, -1, 0.5, "x", [], {"a": 1})


def written(folder: Path, table: Any, resolved: str = RESOLVED) -> Path:
    (folder / "plan").mkdir(exist_ok=True)
    (folder / "plan" / "plan.json").write_text(json.dumps(table))
    (folder / "plan" / "resolved.toml").write_text(resolved)
    return folder


def changed(path: tuple[Any, ...], value: Any) -> Any:
    """The plan with another value at ``path``, or without it."""
    table = copy.deepcopy(PLAN)
    place: Any = table
    for part in path[:-1]:
        place = place[part]
    if value is MISSING:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return table


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(value) if isinstance(value, dict) else range(len(value))[-1:] if isinstance(value, list) else ()
    return [found for key in keys for found in [(*path, key), *paths(value[key], (*path, key))]]


def test_a_whole_plan_is_read(tmp_path: Path) -> None:
    found = recorded_plan(written(tmp_path, PLAN))
    digests = frozenset({PLAN["partition_digest"], PLAN["cut_digest"]})
    resolved = {"model.order": ["aggregate-first", "transform-first"], "model.hoist": [True, False]}
    assert (found.file.ranks, found.digests, found.resolved) == (2, digests, resolved)
    plan = RunPlan.open(tmp_path)
    assert (plan.ranks, len(plan.layers), plan.train["epochs"], plan.batches) == (2, 2, 200, None)
    assert plan.policies["codec"].label == "linear"
    # earlier versions did not tell what names the cut and the graph
    for key, value in (("cut_digest", frozenset({PLAN["partition_digest"]})), ("graph_digest", digests)):
        assert recorded_plan(written(tmp_path, changed((key,), MISSING))).digests == value


@pytest.mark.parametrize("top", PLAN)
def test_any_key_of_another_kind_is_refused_or_no_other_plan(top: str, tmp_path: Path) -> None:
    """At every depth: missing, and with every wrong type; a list that lost an entry, a table with one too many."""
    whole, refused = recorded_plan(written(tmp_path, PLAN)), list[ConfigError]()
    for path in [(top,), *paths(PLAN[top], (top,))]:
        for value in WRONG:
            table = changed(path, value)
            if json.dumps(table) == json.dumps(PLAN):
                continue
            written(tmp_path, table)
            try:
                found = recorded_plan(tmp_path)
                assert (found.file.ranks, found.resolved) == (whole.file.ranks, whole.resolved), (path, value)
                RunPlan.open(tmp_path)
            except ConfigError as error:
                refused.append(error)
    assert len(refused) >= 5
    assert all(str(tmp_path) in str(error) and len(error.problems) == 1 for error in refused)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"model\.order: got None"),
        ('"model.order" = ["aggregate-first"]', "for 2 layers"),
        ('"model.order" = "aggregate-first"', "for 2 layers"),
        (RESOLVED.replace("true", "3"), r"model\.hoist: got \[3, False\]"),
        ("\x00", "cannot be read"),
    ],
)
def test_choices_of_other_layers_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"resolved\.toml cannot be read .*{message}|{message}"):
        recorded_plan(written(tmp_path, PLAN, text))


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot != "partition"])
def test_every_policy_is_read_back(slot: str, tmp_path: Path) -> None:
    for policy in kinds(slot).values():
        table = changed(("policies", slot), policy().model_dump(mode="json"))
        batches = {"plan": "p", "folder": "f", "fetches": None, "source": "s"} if slot == "batching" else None
        found = read_plan(written(tmp_path, {**table, "batches": batches}) / "plan" / "plan.json")
        assert found.policies[slot] == policy()


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", "3", "[" * 100_000, '{"format": 1}', '{"format": 2}', "\ud800"])
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "plan.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    for read in (recorded_plan, RunPlan.open):
        with pytest.raises(ConfigError, match=r"plan\.json"):
            read(tmp_path)
