"""Every option that is accepted changes something: the plan, what a policy decides, or how vertices are divided."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from simgnn.emit.caches.row_cache import ChoosesRows
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.local.vertex_cut import build_replica_graphs
from simgnn.partition.partition import partitioned
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast
from simgnn.policy import Partitioner
from simgnn.program.dispatch import Observed, Ready
from simgnn.program.sizes import Route
from simgnn.program.storage import program_digest
from simgnn.registry import shipped
from tests.executor.runs import small_graph
from tests.experiment.test_master_mirror import statistics
from tests.experiment.test_plan_blocks import blocks
from tests.policies.acting import HERE

BASES = {
    "vanilla": ("vanilla",),
    "cached halo": ("vanilla", "freshness.kind=adaptive-vertex", "codec.kind=linear"),
    "cagnet": ("cagnet",),
    "sancus": ("sancus",),
    "sancus by change": ("sancus", "freshness.rule=variation-gap"),
    "cdfgnn": ("cdfgnn",),
}
AS_THEY_TRAIN = {("freshness", "fold_on_active"), ("placement", "device_bytes")}
"""Options that change no program. Values of a run act on one: tests/executor/test_chosen_lists.py shows that masters
add other parts. The other is a budget: tests/api/test_device_budget.py shows what it refuses."""
# long enough for every bound of the controller, slow enough for its margins
STEPS = ((60, 0.006), (120, 0.1), (60, -3e-4), (250, -0.1))
ACCURACIES = np.cumsum(np.concatenate([np.full(epochs, step) for epochs, step in STEPS]))
ROWS = np.random.default_rng(0).standard_normal((40, 6))
OTHER = ROWS + 0.3 * np.random.default_rng(1).standard_normal((40, 6)) * np.linspace(0, 1, 40)[:, None]


@cache
def statistics_of(cut: str) -> PartitionStats:
    """An edge-cut of 3 ranks, or a vertex-cut of 2 hosts with 2 ranks each, with all that plans ask for."""
    if cut == "edge-cut":
        return blocks(3, [70, 50, 60])
    matrix = np.array([[0, 1, 1, 1], *[[0] * 4] * 3])  # rank 0 has a mirror on each of three others
    tables = {"train_rows": np.full(4, 50), "mirrors/across": np.array([[0, 2, 1]]),
              "mirrors/within": np.array([[0, 1, 1], [2, 3, 1]]), "shared_masters": np.array([1, 0, 0, 0])}  # fmt: skip
    return replace(statistics(4), hosts=np.array([0, 0, 1, 1]), halo=Route.from_matrix(matrix), tables=tables)


@cache
def accepted(system: str, *settings: str) -> Experiment | None:
    """The experiment, or None where it is refused, then or when it is planned."""
    try:
        experiment = load_experiment(system, ["model.hidden=8", *settings])
    except ConfigError:
        return None
    return None if planned(experiment) is None else experiment


@cache
def planned(experiment: Experiment) -> str | None:
    try:
        return program_digest(plan(experiment, statistics_of(experiment.communication.cut)).program)
    except ConfigError:
        return None


def decided(experiment: Experiment) -> Any:
    """What its policies answer to questions that tell their options apart."""
    freshness, codec = experiment.freshness, experiment.codec
    found: list[Any] = [codec.keeps_exact_rows, codec.row_bytes(5, "float32")]
    found.append(experiment.schedule.pick([Ready(0, 0, 0, "a"), Ready(0, 0, 1, "b")], Observed({}, {}), None))
    if isinstance(freshness, AdaptiveVertex):
        state = freshness.start()
        for accuracy in ACCURACIES:
            state = freshness.adjusted(state, float(accuracy))
            found.append(state)
    if isinstance(freshness, ChoosesRows):
        for part in (slice(None), *(slice(column, column + 1) for column in range(ROWS.shape[1]))):
            found.append(freshness.moved(replace(HERE, epoch=1), ROWS[:, part], OTHER[:, part], (0.1, 0.0)).tolist())
    if isinstance(freshness, SkipBroadcast):
        for epoch in range(8):
            found.append(freshness.active(epoch, [-1 if epoch < 1 else 0, 3, epoch - 2], [0, 1, 0]))
        found += [] if freshness.by_values else [freshness.sends(12, 3).tolist()]
        found.append(freshness.change(ROWS, OTHER))
    return found


def others(field: FieldInfo) -> Iterator[Any]:
    """Values that are not the default."""
    default, choices = field.default, choices_of(field.annotation)
    if isinstance(default, bool):
        yield not default
    elif choices:
        several = isinstance(default, tuple)
        yield from (value for choice in choices if (value := (choice,) if several else choice) != default)
    elif isinstance(default, int):
        yield from (default + 3, default + 1)
    elif isinstance(default, float):
        yield from (2 * default, default / 2)
    else:
        assert default is None
        yield 7


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """The values that a field is limited to, at any depth."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for entry in get_args(annotation) for choice in choices_of(entry))


@pytest.mark.parametrize(
    "base", [pytest.param(one, marks=[] if one == "cdfgnn" else pytest.mark.slow) for one in BASES]
)
def test_every_option_of_a_policy_changes_something(base: str) -> None:
    idle, tried = set(), 0
    for slot in SLOTS:
        for kind, policy in shipped(slot).items() if slot != "partition" else ():
            start = (*BASES[base], *([] if f"{slot}.kind={kind}" in BASES[base] else [f"{slot}.kind={kind}"]))
            before = accepted(*start)
            for key, field in policy.model_fields.items() if before is not None else ():
                same = []
                for value in others(field) if key != "kind" else ():
                    after = accepted(*start, f"{slot}.{key}={json.dumps(value)}")
                    if after is not None and after != before:
                        same.append(decided(after) == decided(before) and planned(after) == planned(before))
                tried += len(same)
                # of numbers one may say what all runs do; what "auto" comes to may be stated
                if same and all(same) and field.default != "auto":
                    idle.add((slot, key))
    assert idle <= AS_THEY_TRAIN
    assert tried > 5


def divided(policy: Partitioner) -> list[Any]:
    """The rows that each rank holds, in its order, and the edges."""
    graph, hosts = small_graph(240), np.array([0, 0, 1, 1])
    partition = partitioned(policy, graph, hosts, seed=0)
    found: list[Any] = [partition.digest]
    if partition.kind == "edge-cut":
        return found + [part.owned.tolist() for part in build_local_graphs(graph.csr, partition, policy.reorder)]
    return found + [part.vertices.tolist() for part in build_replica_graphs(graph, partition, policy.reorder, hosts)]


BY_HARDWARE = {kind for kind, one in shipped("partition").items() if one.fits_devices or one.chunked}  # type: ignore[attr-defined]
"""Partitioners that need numbers of the hardware: tests/partition/test_rapa.py and test_metis_chunks.py try theirs."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(shipped("partition").keys() - BY_HARDWARE))
def test_every_option_of_a_partition_changes_something(kind: str) -> None:
    policy = shipped("partition")[kind]
    before = divided(policy())
    for key, field in policy.model_fields.items():
        changed = []
        for value in others(field) if key != "kind" else ():
            try:
                changed.append(divided(policy(**{key: value})) != before)
            except ValidationError:
                continue
        assert key == "kind" or any(changed), key


WHAT_A_LAYER_DOES = {"model.hoist": "never", "communication.resend_inputs": "true",
                     "communication.weight_gradient": "saved-sum", "freshness.inputs": "always"}  # fmt: skip
"""Options that have an effect with some models and orders only."""


@pytest.mark.parametrize(
    "system", ["cagnet", *(pytest.param(one, marks=pytest.mark.slow) for one in ("vanilla", "sancus", "cdfgnn"))]
)
def test_what_only_some_layers_have_is_refused_for_others(system: str) -> None:
    """Each option by itself, and each beside the others: without it, the plan is another one."""
    default = load_experiment(system)
    known = {path: text for path, text in WHAT_A_LAYER_DOES.items() if path in keys(default)}
    refused = 0
    for kind, order in product(("gcn", "gin", "gat"), ("auto", "aggregate-first", "transform-first")):
        model = (f"model.kind={kind}", f"model.order={order}")
        for bits in product((False, True), repeat=len(known)):
            set_to = {path: known[path] if on else RESET[path] for path, on in zip(known, bits, strict=True)}
            whole = accepted(system, *model, *(f"{path}={text}" for path, text in set_to.items()))
            refused += whole is None
            for path in known if whole is not None else ():
                if set_to[path] == RESET[path]:
                    continue
                less = {**set_to, path: RESET[path]}
                without = accepted(system, *model, *(f"{key}={text}" for key, text in less.items()))
                assert without is None or planned(without) != planned(whole), (kind, order, set_to, path)
    assert refused


RESET = {"model.hoist": "auto", "communication.resend_inputs": "false",
         "communication.weight_gradient": "summed-gradient", "freshness.inputs": "policy"}  # fmt: skip


def keys(experiment: Experiment) -> set[str]:
    tables = {section: table for section, table in experiment.model_dump().items() if isinstance(table, dict)}
    return {f"{section}.{key}" for section, table in tables.items() for key in table}
