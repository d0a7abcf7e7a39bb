"""plan.json of a run that was moved about: whole, or refused with its file and key."""

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from executor.state.plan import RunPlan
from simgnn.analysis.replay.recorded_run import recorded_plan
from simgnn.errors import ConfigError
from simgnn.experiment.sections import TrainSection
from simgnn.experiment.slots import SLOTS
from simgnn.graph.graph import GraphFacts
from simgnn.model.spec import LayerSpec
from simgnn.record.plan import PlanFile, read_plan
from simgnn.registry import shipped

PLAN: dict[str, Any] = {
    "format": 1,
    "name": "made up",
    "partition": "a/partition",
    "partition_digest": "1" * 64,
    "cut_digest": "2" * 64,
    "graph_digest": "3" * 64,
    "shards": "some/shards",
    "chunks": "some/chunks",
    "ranks": 2,
    "hosts": [0, 0],
    "layers": [asdict(LayerSpec(1, "gcn", 6, 4)), asdict(LayerSpec(2, "gcn", 4, 3))],
    "classes": 3,
    "multilabel": False,
    "class_names": ["ant", "bee", "cat"],
    "graph": asdict(GraphFacts("g", 10, 20, 6, None, 3, False, 4, 2, 2)),
    "device_bytes": 5000,
    "dropped_edges": {"by_rank": [1, 2], "of": 20, "status": "balanced", "between_hosts": [0, 2]},
    "notes": ["made up"],
    "train": TrainSection().model_dump(mode="json"),
    "policies": {
        slot: shipped(slot)[kind]().model_dump(mode="json")
        for slot, kind in (("freshness", "adaptive-vertex"), ("codec", "linear"))
    },
    "batches": None,
    "threads_per_rank": None,
    "seed": 0,
    "program_digest": "4" * 64,
}
RESOLVED = '"model.order" = ["aggregate-first", "transform-first"]\n"model.hoist" = [true, false]\n'
MISSING = object()


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


def test_a_whole_plan_is_read(tmp_path: Path) -> None:
    found = recorded_plan(written(tmp_path, PLAN))
    digests = frozenset({PLAN["partition_digest"], PLAN["cut_digest"]})
    assert (told(found.file), found.digests) == (PLAN, digests)
    assert found.resolved == {"model.order": ["aggregate-first", "transform-first"], "model.hoist": [True, False]}
    plan = RunPlan.open(tmp_path)
    assert (plan.ranks, len(plan.layers), plan.train["epochs"], plan.batches) == (2, 2, 200, None)
    assert plan.policies["codec"].label == "linear"


def told(found: PlanFile) -> Any:
    """What was read, as ``plan.json`` would tell it."""
    policies = {slot: policy.model_dump(mode="json") for slot, policy in found.acting().items()}
    layers, graph = [asdict(layer) for layer in found.layers], asdict(found.graph)
    return found.model_dump(mode="json", exclude={"code", "continues"}) | {
        "policies": policies,
        "layers": layers,
        "graph": graph,
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cut_digest",), MISSING),
        (("policies", "codec", "bits"), "x"),
        (("policies", "codec", "kind"), "linaer"),
        (("format",), 2),
        (("layers", 1, "drop"), 0.5),
        (("layers", 1, "width_in"), 0.5),
        (("layers",), []),
        (("multilabel",), "no"),
        (("graph", "vertices"), MISSING),
        (("train", "epochs"), 0),
        (("ranks",), True),
    ],
)
def test_a_plan_of_another_schema_is_rejected_with_its_key(path: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    written(tmp_path, changed(path, value))
    for read in (recorded_plan, RunPlan.open):
        with pytest.raises(ConfigError, match=rf"plan\.json.*{path[0]}"):
            read(tmp_path)


def test_an_older_plan_is_read_with_the_defaults_of_newer_options(tmp_path: Path) -> None:
    found = read_plan(written(tmp_path, changed(("policies", "codec", "bits"), MISSING)) / "plan" / "plan.json")
    assert found.policies["codec"]["bits"] == shipped("codec")["linear"]().bits


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot != "partition"])
def test_every_policy_is_read_back(slot: str, tmp_path: Path) -> None:
    for policy in shipped(slot).values():
        table = changed(("policies", slot), policy().model_dump(mode="json"))
        batches = {"plan": "p", "folder": "f", "fetches": None, "source": "s"} if slot == "batching" else None
        found = read_plan(written(tmp_path, {**table, "batches": batches}) / "plan" / "plan.json")
        assert found.acting()[slot] == policy()


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", "3", "[" * 100_000, '{"format": 1}', '{"format": 2}', "\ud800"])
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "plan.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    for read in (recorded_plan, RunPlan.open):
        with pytest.raises(ConfigError, match=r"plan\.json"):
            read(tmp_path)
