"""Weights of edges in plans: what they cost, and what is rejected because it cannot use them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from simgnn.errors import ConfigError, GraphError
from simgnn.experiment.load import load_experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.file import load_stats, save_stats
from simgnn.planner.prepare import Prepared, prepare
from simgnn.program.storage import program_digest
from simgnn.sim.simulate import Simulation, simulate

PROFILE = str(Path(__file__).parents[1] / "hardware" / "data" / "invented-8x8.toml")
REMEDY = r"graph\.weights = 'ignore'"
SYSTEMS = {
    "halo": ("vanilla", "partition.kind=random"),
    "own rows first": ("vanilla", "partition.kind=random", "schedule.kind=pipelined"),
    "mirrors": ("cdfgnn", "freshness.kind=always", "codec.kind=none"),
    "blocks": ("cagnet",),
}


class Weighing(nn.Module):
    """A layer of a user's own that uses weights."""

    edge_weights = True

    def __init__(self, width_in: int, width_out: int, activation: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, csr: Any, rows: torch.Tensor) -> torch.Tensor:
        return csr.mean(self.linear(rows))


class Ignorant(Weighing):
    edge_weights = False


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Edge lists with positive weights, with weights of 1, without weights and with a negative one."""
    folder = tmp_path_factory.mktemp("lists")
    draw = np.random.default_rng(0)
    pairs = np.unique(draw.integers(0, 200, (900, 2)), axis=0)
    weights = {"weighted": draw.exponential(size=len(pairs)), "ones": np.ones(len(pairs))}
    weights["negative"] = np.where(np.arange(len(pairs)) == 5, -2.0, weights["weighted"])
    weights["huge"] = np.where(np.arange(len(pairs)) == 5, 1e300, weights["weighted"])
    np.save(folder / "plain.npy", pairs)
    for name, values in weights.items():
        np.save(folder / f"{name}.npy", np.column_stack((pairs, values)))
    return {path.stem: path for path in folder.glob("*.npy")}


def planned(source: Path, *settings: str, system: str = "vanilla", ranks: int = 2) -> Prepared:
    graph = [f"graph.source={source}", "graph.stand_in_features=8", "graph.classes=3", "model.hidden=4"]
    return prepare(load_experiment(system, [*graph, *settings], ranks=ranks, epochs=3))


def priced(prepared: Prepared) -> Simulation:
    program = prepared.planned.program
    return simulate(program, Machine.place(load_profile(PROFILE), program.hosts), epochs=3)


@pytest.mark.parametrize("name", SYSTEMS)
def test_weights_cost_the_bytes_of_weights(name: str, files: dict[str, Path]) -> None:
    system, *settings = SYSTEMS[name]
    weighted, ignored, plain, ones = (
        planned(files[source], *settings, *more, system=system)
        for source, more in (("weighted", ()), ("weighted", ("graph.weights=ignore",)), ("plain", ()), ("ones", ()))
    )
    digests = [program_digest(each.planned.program) for each in (ignored, plain, ones, weighted)]
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert [each.stats.digest == plain.stats.digest for each in (ignored, ones, weighted)] == [True, True, False]
    assert [layer.weighted for layer in (*weighted.planned.layers, *plain.planned.layers)] == [True, True, False, False]
    own = np.array(weighted.stats.edges)
    with_weights, without = (each.planned.program.sizes.columns["topology_bytes"] for each in (weighted, plain))
    if np.array_equal(own, plain.stats.edges):
        assert np.array_equal(with_weights - without, 2 * 4 * own)
    assert (with_weights > without).all()
    longer, shorter = priced(weighted), priced(plain)
    assert longer.epoch_s[-1] > shorter.epoch_s[-1]
    assert (longer.memory.both > shorter.memory.both).all()


def test_a_statistics_file_says_that_edges_have_weights(files: dict[str, Path], tmp_path: Path) -> None:
    for name in ("weighted", "plain"):
        prepared = planned(files[name], "partition.kind=random")
        save_stats(prepared.stats, tmp_path / f"{name}.toml")
        again = load_stats(tmp_path / f"{name}.toml")
        assert again.facts.weighted == (name == "weighted")
        found = prepare(
            load_experiment("vanilla", [f"graph.source=stats:{tmp_path}/{name}.toml", "model.hidden=4"], epochs=3)
        )
        assert program_digest(found.planned.program) == program_digest(prepared.planned.program)
    with pytest.raises(ConfigError, match=r"model\.kind: got 'gat'.*make the statistics anew without them"):
        prepare(load_experiment("vanilla", [f"graph.source=stats:{tmp_path}/weighted.toml", "model.kind=gat"]))
    old = (tmp_path / "plain.toml").read_text()
    assert "weighted = false" in old
    (tmp_path / "old.toml").write_text(old.replace("weighted = false\n", ""))
    assert load_stats(tmp_path / "old.toml").digest == load_stats(tmp_path / "plain.toml").digest


@pytest.mark.parametrize(
    ("system", "settings", "told"),
    [
        ("vanilla", ("model.kind=gat",), r"model\.kind: got 'gat'.*expected gcn, sage or gin"),
        ("cdfgnn", ("model.kind=gat", "codec.kind=none"), r"model\.kind: got 'gat'"),
        ("distdgl", ("model.layers=2", "batching.fanouts=[2,2]"), r"batching\.kind: got 'sampled'.*expected 'full'"),
        ("rapidgnn", ("model.layers=2", "batching.fanouts=[2,2]"), r"batching\.kind: got 'seeded'"),
        ("vanilla", (f"model.kind={__name__}:Ignorant",), r"got '.*:Ignorant'.*edge_weights = True"),
    ],
)
def test_what_cannot_use_weights_is_rejected(
    system: str, settings: tuple[str, ...], told: str, files: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match=f"{told}.*{REMEDY}"):
        planned(files["weighted"], *settings, system=system)
    assert not planned(files["weighted"], *settings, "graph.weights=ignore", system=system).stats.facts.weighted
    planned(files["ones"], *settings, system=system)


def test_a_layer_of_the_users_own_that_uses_weights_is_planned(files: dict[str, Path]) -> None:
    assert planned(files["weighted"], f"model.kind={__name__}:Weighing").planned.layers[0].weighted


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_values_that_a_model_cannot_use_are_rejected(kind: str, files: dict[str, Path]) -> None:
    if kind == "gin":
        assert planned(files["negative"], "model.kind=gin").stats.facts.weighted
    else:
        with pytest.raises(GraphError, match=rf"has the weight -2; expected 0 or more.*model\.kind = 'gin'.*{REMEDY}"):
            planned(files["negative"], f"model.kind={kind}")
    with pytest.raises(GraphError, match=rf"too large for train\.dtype = 'float32'.*{REMEDY}"):
        planned(files["huge"], f"model.kind={kind}")
    assert planned(files["huge"], f"model.kind={kind}", "train.dtype=float64").stats.facts.weighted


def test_a_column_that_nobody_reads_is_rejected() -> None:
    told = r"graph\.weight_column: got 'w' with graph\.weights = 'ignore', expected none"
    with pytest.raises(ConfigError, match=told):
        load_experiment("vanilla", ["graph.source=x.csv", "graph.weights=ignore", "graph.weight_column=w"])
