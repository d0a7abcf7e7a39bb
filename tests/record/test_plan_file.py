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
    "ranks": 2,
    "hosts": [0, 0],
    "layers": [asdict(LayerSpec(1, "gcn", 6, 4)), asdict(LayerSpec(2, "gcn", 4, 3))],
    "classes": 3,
    "multilabel": False,
    "graph": asdict(GraphFacts("g", 10, 20, 6, None, 3, False, 4, 2, 2)),
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
WRONG = (MISSING, None, True, -1, 0.5, "x", [], {"a": 1})
LEGAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("name", "partition", "shards"), ("x",)),
    **dict.fromkeys(
        (
            "learning_rate", "weight_decay", "momentum", "clip_norm", "timeout", "dropout", "gradient_limit",
            "fall_factor", "largest_change", "rise_margin", "fall_margin", "largest_epsilon", "mean_share",
        ),
        (0.5,),
    ),
    **dict.fromkeys(
        (
            "hoisted", "sparse_input", "whole", "sums_inputs", "centred_input", "synthetic_features",
            "synthetic_labels", "centred_features", "fold_on_active",
        ),
        (True,),
    ),
}  # fmt: skip
"""Key -> those of the wrong values that are right there."""


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
    assert (told(found.file), found.digests) == (PLAN, digests)
    assert found.resolved == {"model.order": ["aggregate-first", "transform-first"], "model.hoist": [True, False]}
    plan = RunPlan.open(tmp_path)
    assert (plan.ranks, len(plan.layers), plan.train["epochs"], plan.batches) == (2, 2, 200, None)
    assert plan.policies["codec"].label == "linear"


@pytest.mark.parametrize("top", PLAN)
def test_any_key_of_another_kind_is_refused_or_legal(top: str, tmp_path: Path) -> None:
    """At every depth: missing, and with every wrong type; a list that lost an entry, a table with one too many. What is
    read is what was written: no default has taken the place of anything."""
    refused = list[ConfigError]()
    for path in [(top,), *paths(PLAN[top], (top,))]:
        for value in WRONG:
            table = changed(path, value)
            if json.dumps(table) == json.dumps(PLAN):
                continue
            written(tmp_path, table)
            try:
                found = recorded_plan(tmp_path).file
                plan = RunPlan.open(tmp_path)
            except ConfigError as error:
                refused.append(error)
                continue
            assert value in LEGAL.get(str(path[-1]), ()), (path, value)
            assert told(found) == table, (path, value)
            assert trained(plan) == {key: table[key] for key in trained(plan)}, (path, value)
    assert len(refused) >= 5
    assert all(str(tmp_path) in str(error) and len(error.problems) == 1 for error in refused)


def told(found: PlanFile) -> Any:
    """What was read, as ``plan.json`` would tell it."""
    policies = {slot: policy.model_dump(mode="json") for slot, policy in found.acting().items()}
    layers, graph = [asdict(layer) for layer in found.layers], asdict(found.graph)
    return found.model_dump(mode="json", exclude={"code"}) | {"policies": policies, "layers": layers, "graph": graph}


def trained(plan: RunPlan) -> dict[str, Any]:
    """What the executor goes by, as ``plan.json`` tells it."""
    policies = {slot: policy.model_dump(mode="json") for slot, policy in plan.policies.items()}
    return {
        "name": plan.name, "ranks": plan.ranks, "layers": [asdict(layer) for layer in plan.layers],
        "classes": plan.classes, "multilabel": plan.multilabel, "train": dict(plan.train), "seed": plan.seed,
        "program_digest": plan.digest, "policies": policies,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("train", "learning_rate"), MISSING, r"train\.learning_rate: missing\)"),
        (("train",), {}, r"train\.epochs: missing; train\.optimizer: missing; .*; and 9 more\)"),
        (
            ("policies", "freshness"), {"kind": "adaptive-vertex"},
            r"policies\.freshness\.epsilon: missing; policies\.freshness\.adapt: missing; .* more\)",
        ),
        (("policies", "codec", "bits"), MISSING, r"policies\.codec\.bits: missing\)"),
        (("policies", "codec", "bits"), True, r"policies\.codec\.bits: got true, expected 1\)"),
        (("format",), True, r"format: got true, expected 1\)"),
        (("layers", 1, "dropout"), MISSING, r"layers\.1\.dropout: missing\)"),
        (("layers", 1, "drop"), 0.5, r"layers\.1\.drop: unknown key \(did you mean 'dropout'\?\); known keys: index, "),
        (("multilabel",), True, r"multilabel: got true, expected false as in graph\.multilabel"),
        (("classes",), 7, "layers: got rows of widths"),
        (("graph", "classes"), 7, r"classes: got 3, expected 7 as in graph\.classes"),
        (("graph", "vertices"), -1, "graph: vertices: got -1, expected at least 1"),
        (("layers", 1, "width_out"), -1, r"layers\.1: width_out: got -1, expected at least 1"),
        (("layers", 1, "width_in"), 5, r"layers: got rows of widths \[4, 3\] behind them, expected \[5, 3\]"),
        (("layers", 1, "dropout"), 7.5, r"layers\.1: dropout: got 7\.5, expected 0, or a share below 1"),
        (("layers", 1, "gradient_limit"), -1.0, r"layers\.1: gradient_limit: got -1\.0, expected at least 0"),
        (("layers", 0, "kind"), "gnc", r"layers\.0: kind: got 'gnc', expected one of gcn, "),
        (("program_digest",), "4" * 63, "program_digest: got '4{63}', expected a SHA-256: 64 digits in hexadecimal"),
        (("cut_digest",), "x", "cut_digest: got 'x', expected a SHA-256"),
        (("cut_digest",), None, "cut_digest and graph_digest: got none"),
        (("cut_digest",), MISSING, "cut_digest: missing"),
        (("graph_digest",), MISSING, "graph_digest: missing"),
        (("batches",), MISSING, "batches: missing"),
    ],
)  # fmt: skip
def test_the_key_at_fault_is_told(path: tuple[Any, ...], value: Any, message: str, tmp_path: Path) -> None:
    written(tmp_path, changed(path, value))
    for read in (recorded_plan, RunPlan.open):
        with pytest.raises(ConfigError, match=rf"plan\.json cannot be read \({message}"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"model\.order: got None"),
        ('"model.order" = ["aggregate-first"]', "for 2 layers"),
        ('"model.order" = "aggregate-first"', "for 2 layers"),
        (RESOLVED.replace("true", "3"), r"model\.hoist: got \[3, False\]"),
        ("\x00", "Invalid statement"),
    ],
)
def test_choices_of_other_layers_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"resolved\.toml cannot be read \(.*{message}"):
        recorded_plan(written(tmp_path, PLAN, text))


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
