"""Plans on a vertex-cut: valid, minimal, and refused where a part of the experiment cannot work on one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned, plan
from simgnn.planner.prepare import prepare
from simgnn.program.kinds import OpKind
from simgnn.program.sizes import Route
from simgnn.program.validate import validate
from simgnn.sim.simulate import simulate
from tests.experiment.needed import needed_dependencies

PROFILE = str(Path(__file__).parents[1] / "hardware" / "data" / "invented-8x8.toml")


def statistics(ranks: int, width: int = 30, sparse: bool = False, rows: int = 100) -> PartitionStats:
    """A made-up vertex-cut: rank j mirrors 3 i + j + 1 masters of rank i."""
    mirrors = np.array([[0 if i == j else 3 * i + j + 1 for j in range(ranks)] for i in range(ranks)], dtype=np.int64)
    tables = {"train_rows": np.full(ranks, rows // 2)}
    if sparse:
        tables |= {"feature_nonzeros": np.full(ranks, 7 * rows), "halo_feature_nonzeros": 5 * mirrors}
    facts = GraphFacts("g", rows * ranks, 900 * ranks, width, 7 * rows * ranks if sparse else None, 4, False,
                       rows * ranks // 2, 10, 10)  # fmt: skip
    counts = np.full(ranks, rows), np.full(ranks, 900)
    return PartitionStats(facts, "vertex-cut", np.zeros(ranks, int), *counts, Route.from_matrix(mirrors), "d", tables)


def planned(stats: PartitionStats, *overrides: str) -> Planned:
    cut = ["partition.kind=ebv", "communication.kind=master-mirror"]
    return plan(load_experiment("vanilla", [*cut, *overrides]), stats)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["gcn", "sage", "gin", "gat"]),
    ranks=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    order=st.sampled_from(["auto", "aggregate-first", "transform-first"]),
    sparse=st.booleans(),
    hoist=st.sampled_from(["auto", "never"]),
)
def test_every_plan_is_valid(kind, ranks, hidden, order, sparse, hoist) -> None:
    values = {"model.kind": kind, "model.layers": len(hidden) + 1, "model.hidden": hidden, "model.order": order,
              "model.hoist": hoist}  # fmt: skip
    if kind == "gat":
        values["model.heads"] = 1
    try:
        result = planned(statistics(ranks, sparse=sparse), *[f"{key}={value}" for key, value in values.items()])
    except ConfigError:
        # GIN cannot transform first, GAT must; sparse rows are not aggregated anew in every epoch
        assert order != "auto" or (hoist == "never" and (kind == "gat" or (kind == "gin" and sparse)))
        return
    program = validate(result.program)
    assert "communication.rows" not in result.resolved
    assert (OpKind.EXCHANGE in {op.kind for _, op in program.ops}) == (ranks > 1)
    # whatever travels, travels between masters and mirrors
    assert {op.route for _, op in program.ops if op.route} <= {"mirrors", "mirrors/reverse"}


def test_each_derived_dependency_is_needed() -> None:
    program = planned(statistics(3), "model.kind=sage", "model.layers=3", "model.hoist=never").program
    assert needed_dependencies(program) > 60


def test_nothing_is_gathered_at_the_top() -> None:
    program = planned(statistics(3), "model.layers=3", "model.hidden=16", "model.hoist=never").program
    exchanges = [op.name for op in program.templates["steady"].ops if op.kind is OpKind.EXCHANGE]
    forward = [f"forward/{layer}/{stage}/exchange" for layer in (1, 2, 3) for stage in ("gather", "scatter")]
    backward = [f"backward/{layer}/{stage}/exchange" for layer in (2, 1) for stage in ("gather", "scatter")]
    assert exchanges == [*forward, "backward/3/scatter/exchange", *backward]


LAYER = """
import torch

class Base(torch.nn.Module):
    def __init__(self, width_in, width_out, activation):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width_in, width_out))

class Whole(Base):
    def forward(self, csr, rows):
        return rows @ self.weight

class Silent(Base):
    def prepare(self, rows):
        return rows

    def aggregate(self, csr, prepared):
        return csr.sum(prepared)

    def update(self, aggregated, own):
        return aggregated @ self.weight

    @staticmethod
    def prepared_width(width_in, width_out):
        return width_in

class Adding(Silent):
    reduction = "sum"
"""


@pytest.fixture
def layers(tmp_path, monkeypatch) -> str:
    (tmp_path / "mirror_layers.py").write_text(LAYER)
    monkeypatch.syspath_prepend(tmp_path)
    return "mirror_layers"


@pytest.mark.parametrize(
    ("name", "told"), [("Whole", "lacks prepare, aggregate, update"), ("Silent", 'set reduction = "sum"')]
)
def test_a_layer_that_needs_all_in_edges_is_refused(layers: str, name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        planned(statistics(2), f"model.kind={layers}:{name}")


def test_a_layer_whose_parts_add_up_is_planned(layers: str) -> None:
    program = validate(planned(statistics(2), f"model.kind={layers}:Adding", "model.hidden=8").program)
    assert "forward/2/gather/exchange" in {op.name for _, op in program.ops}


def test_parts_of_gradients_are_not_clipped() -> None:
    with pytest.raises(ConfigError, match=r"train\.clip_norm: got 0\.5 .*parts of gradient rows"):
        load_experiment("vanilla", ["partition.kind=ebv", "communication.kind=master-mirror", "train.clip_norm=0.5"])


def test_levels_of_other_hosts_are_refused() -> None:
    # rank 0 has a mirror on each of three others; ranks 0, 1 and 2, 3 share a host
    matrix = np.array([[0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    tables = {"train_rows": np.full(4, 50), "mirrors/across": np.array([[0, 2, 1]]),
              "mirrors/within": np.array([[0, 1, 1], [2, 3, 1]])}  # fmt: skip
    stats = replace(statistics(4), hosts=np.array([0, 0, 1, 1]), halo=Route.from_matrix(matrix), tables=tables)
    overrides = ["communication.exchange=host-aggregated", "model.hidden=8", "model.hoist=never"]
    ops = planned(stats, *overrides).program.templates["steady"].ops
    names = [op.name for op in ops if op.kind is OpKind.EXCHANGE]
    hops = ["gather/within", "gather/across", "scatter/across", "scatter/within"]
    assert names[:4] == [f"forward/1/{hop}/exchange" for hop in hops]
    for other in (np.array([0, 1, 1, 1]), np.array([0, 1, 2, 3])):
        with pytest.raises(ConfigError, match=r"communication\.exchange.*not those of this cluster's hosts"):
            planned(replace(stats, hosts=other), *overrides)
    with pytest.raises(ConfigError, match="no table 'mirrors/across'"):
        planned(replace(stats, tables={"train_rows": np.full(4, 50)}), *overrides)


def test_a_cut_of_the_other_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"partition\.kind: got 'metis'.*'master-mirror'.*divides edges.*use .*ebv"):
        load_experiment("vanilla", ["communication.kind=master-mirror"])
    with pytest.raises(ConfigError, match=r"the partition's kind is edge-cut, expected .* that divides edges"):
        planned(replace(statistics(2), kind="edge-cut"))


SUMMARY = """
[graph]
name = "far away"
vertices = 1000
edges = 9000
feature_width = 128
classes = 7
train_vertices = 110

[partition]
kind = "vertex-cut"
ranks = 4
replication_factor = 2.5
"""


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_a_statistics_file_is_enough(kind: str, tmp_path) -> None:
    (tmp_path / "far.toml").write_text(SUMMARY)
    settings = ["partition.kind=ebv", "communication.kind=master-mirror", f"graph.source=stats:{tmp_path / 'far.toml'}",
                f"model.kind={kind}", "model.hidden=16", *([] if kind == "gat" else ["model.hoist=never"])]  # fmt: skip
    experiment = load_experiment("vanilla", settings).with_cluster(1, 4)
    prepared = prepare(experiment)
    program = prepared.planned.program
    rows = program.sizes.columns["rows"]
    assert rows.sum() == 2500
    simulation = simulate(program, Machine.place(load_profile(PROFILE), program.hosts), epochs=2, stats=prepared.stats)
    traffic = simulation.traffic_table.to_pandas()
    mirrors = 1500
    # two syncs a layer, of which one gathers nothing; with attention the sums of weights, and maxima forward
    heads = {"gcn": (0, 0), "gat": (4, 1)}[kind]
    sums = 4 * (16 + heads[0] + 7 + heads[1])
    expected = mirrors * (2 * sums * 2 - 4 * (7 + heads[1]) + 2 * 4 * sum(heads))
    assert traffic["bytes"].sum() == 2 * expected
