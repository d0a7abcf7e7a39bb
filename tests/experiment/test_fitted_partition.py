"""Partitions that suit devices: what the planner reads off profile and program, alike in predictions and runs."""

import json
import tomllib
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from simgnn.api.predict import predict, write_prediction
from simgnn.api.train import prepare_run
from simgnn.emit.halo_cache.routes import CACHED
from simgnn.errors import ConfigError, ShortMemoryError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.device_times import device_times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile, save_profile
from simgnn.partition.device_fit import FittedPartitioner
from simgnn.partition.statistics.partition_stats import DROPPED_EDGES, DROPPED_ROWS
from simgnn.planner.fit_partition import on_cpu, rank_fits
from simgnn.planner.make_plan import plan
from simgnn.planner.memory.program_memory import program_bytes
from simgnn.planner.prepare import Prepared, fitted_partition, prepare
from simgnn.progress import SILENT
from simgnn.sim.simulate import simulate

MIXED = "mixed-pcie3-8"
GRAPH = ["graph.vertices=2000", "graph.edges=16000", "graph.classes=5", "graph.feature_width=32", "model.hidden=16"]
RAPA = [*GRAPH, "partition.kind=rapa"]


def mixed(ranks: int, *settings: str, epochs: int = 3) -> Experiment:
    return load_experiment("vanilla", [*RAPA, *settings], ranks=ranks, epochs=epochs, hardware=MIXED)


def fitted(experiment: Experiment, prepared: Prepared, profile: Profile, cache: Path | None = None) -> Any:
    """The experiment with its fitted partitioner, and the partition."""
    assert prepared.graph is not None
    return fitted_partition(experiment, prepared.graph, cache, SILENT, profile)


@pytest.mark.parametrize("ranks", [2, 8, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in range(3, 8))])
def test_groups_of_the_paper_s_server(ranks: int) -> None:
    profile = load_profile(MIXED)
    experiment = mixed(ranks, "partition.assign=identity")
    prepared = prepare(experiment, profile=profile)
    known, artifact = fitted(experiment, prepared, profile)
    policy = cast(FittedPartitioner, known.partition)
    assert policy.devices == device_times(Machine.place(profile, [0] * ranks))
    assert policy.memory is None, "a small graph fits, whatever the devices"
    fits = rank_fits(known, prepared.graph, artifact, None, SILENT)  # type: ignore[arg-type]
    before, after = (np.array([getattr(one, name) for one in fits]) for name in ("cost_before", "cost"))
    assert after.max() <= before.max()
    assert after.std() <= before.std()
    for one in fits:
        assert one.edges_before - one.edges == one.dropped_edges >= 0
        assert one.halo_rows <= one.halo_rows_before
        assert one.memory_bytes <= one.memory_bytes_before <= one.budget_bytes
    assert sum(one.edges_before for one in fits) == prepared.stats.facts.edges
    if ranks == 8:  # only they have a GTX 1660 Ti, seven times slower
        assert sum(one.dropped_edges for one in fits[6:]) > 0


def test_simulate_and_run_get_the_same_partition_and_write_what_they_read(tmp_path: Path) -> None:
    experiment = mixed(8)
    prediction = predict(experiment, SILENT, limits=False)
    simulated = write_prediction(prediction, tmp_path / "sim")
    prepared = prepare_run(experiment, tmp_path / "run", SILENT)
    plans = [json.loads((root / "plan" / "plan.json").read_text()) for root in (simulated, prepared)]
    assert plans[0]["partition"] == plans[1]["partition"]
    assert plans[0]["program_digest"] == plans[1]["program_digest"]
    tables = [tomllib.loads((root / "plan" / "resolved.toml").read_text()) for root in (simulated, prepared)]
    assert tables[0] == tables[1]
    devices = tables[0]["partition.devices"]
    assert [one["device"] for one in devices] == ["rtx3090"] * 2 + ["a40"] * 2 + ["rtx3060"] * 2 + ["gtx1660ti"] * 2
    assert {"matmul_s", "spmm_s", "h2d_s", "d2h_s", "copy_s", "memory_bytes"} < devices[0].keys()
    assert tables[0]["partition.alpha"] == 0.5
    dropped = prediction.result.dropped_edges
    assert dropped is not None
    assert plans[1]["dropped_edges"] == {**dropped.model_dump(mode="json")}
    assert sum(dropped.by_rank) == int(prediction.prepared.stats.tables[DROPPED_EDGES].sum()) > 0
    assert any(text.startswith("dropped edges: ") for text in prediction.result.qualifications())
    written = Experiment.from_table(tomllib.loads((prepared / "experiment.toml").read_text()))
    assert written.partition == experiment.partition, "what follows from the profile is stored in the plan alone"


def test_what_is_dropped_leaves_its_place_to_caches(tmp_path: Path) -> None:
    """Halo rows are dropped as if caches were empty, and those that stay are cached: simulated and run alike."""
    caches = ("freshness.kind=refresh-interval", "placement.device_rows=0.3", "placement.host_rows=0.3")
    experiment, without = mixed(8, *caches), mixed(8)
    predicted = predict(experiment, SILENT, limits=False)
    prepared = prepare_run(experiment, tmp_path / "run", SILENT)
    program = predicted.prepared.planned.program
    stored = json.loads((prepared / "plan" / "plan.json").read_text())
    assert stored["program_digest"] == predicted.result.program_digest
    assert program.sizes.routes[CACHED].rows.sum() > 0
    plain = prepare(without, profile=load_profile(MIXED))
    dropped, alone = (one.stats.tables[DROPPED_ROWS] for one in (predicted.prepared, plain))
    assert dropped.sum() > 0
    assert np.array_equal(dropped, alone)


def test_the_profile_is_part_of_the_key(tmp_path: Path) -> None:
    slow = load_profile(MIXED).to_table()
    for curve in slow["devices"]["rtx3090"]["curves"]:
        if curve["primitive"] == "spmm":
            curve["costs"] = {**curve["costs"], "gathered_bytes": "82 GB/s"}
    save_profile(parse_profile(slow), tmp_path / "slow.toml")
    found = []
    for name in (MIXED, str(tmp_path / "slow.toml")):
        experiment = load_experiment("vanilla", RAPA, ranks=4, hardware=name)
        found.append(prepare(experiment, profile=load_profile(name)).partition)
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].path != found[1].path
    again = prepare(mixed(4), profile=load_profile(MIXED)).partition
    assert again is not None
    assert (again.path, again.made) == (found[0].path, False)


def test_stated_devices_need_no_profile() -> None:
    times = [one.model_dump(mode="json") for one in device_times(Machine.place(load_profile(MIXED), [0] * 4))]
    stated = load_experiment("vanilla", {**pairs(RAPA), "partition.devices": times}, ranks=4)
    by_profile = prepare(mixed(4), profile=load_profile(MIXED)).partition
    by_hand = prepare(stated).partition
    assert by_profile is not None
    assert by_hand is not None
    assert by_hand.path == by_profile.path
    with pytest.raises(ConfigError, match=r"partition\.devices: got 4, expected 3"):
        prepare(load_experiment("vanilla", {**pairs(RAPA), "partition.devices": times}, ranks=3))


def pairs(settings: list[str]) -> dict[str, Any]:
    """Settings as values by key."""
    split = (text.split("=") for text in settings)
    return {key: int(value) if value.isdecimal() else value for key, value in split}


def test_without_a_profile_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = load_experiment("vanilla", RAPA, ranks=2)
    with pytest.raises(ConfigError, match=r"partition\.kind: got 'rapa' without a hardware profile"):
        prepare(bare)
    monkeypatch.setattr("simgnn.api.predict.calibration_path", lambda: tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"partition\.kind: got 'rapa' without a hardware profile"):
        predict(bare, SILENT)


@pytest.mark.parametrize(
    ("system", "settings", "told"),
    [
        ("cdfgnn", [], "communication.kind = 'master-mirror'"),
        ("rapidgnn", [], "batching.kind = "),
        ("cagnet", [], "communication.kind = 'block-broadcast'"),
    ],
)
def test_what_does_not_suit_it_is_refused_by_traits(system: str, settings: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_experiment(system, ["partition.kind=rapa", *settings], ranks=2)
    assert any("partition.kind: got 'rapa'" in text and told in text for text in refused.value.problems)


MODELS = [
    ["model.kind=gcn"], ["model.kind=sage"], ["model.kind=gin"], ["model.kind=gat", "model.heads=2"],
    ["model.kind=gcn", "model.layers=3", "model.dropout=0.5"], ["model.kind=sage", "schedule.kind=pipelined"],
]  # fmt: skip


@pytest.mark.parametrize("settings", MODELS, ids="-".join)
@pytest.mark.parametrize("hardware", [MIXED, "vm-epyc-2"])
def test_memory_in_program_order_is_that_of_a_simulation(settings: list[str], hardware: str) -> None:
    """Within 10 %, what RAPA's memory rests on."""
    experiment = load_experiment("vanilla", [*GRAPH, "partition.kind=random", *settings], ranks=2, epochs=3)
    prepared, profile = prepare(experiment), load_profile(hardware)
    machine = Machine.place(profile, [0, 0])
    simulated = simulate(
        prepared.planned.program, machine, stats=prepared.stats, epochs=3, schedule=experiment.schedule
    )
    memory = simulated.memory
    cpu = np.array([machine.device(rank).kind == "cpu" for rank in range(2)])
    found = program_bytes(prepared.planned.program, cpu)
    np.testing.assert_allclose(found, memory.own, rtol=0.1)


def tight(share: float, ranks: int = 4, **memories: str) -> Profile:
    """The paper's server, with little memory on the GPUs that ``memories`` name."""
    table = load_profile(MIXED).to_table()
    for name, text in memories.items():
        table["devices"][name]["memory"]["value"] = text
    return parse_profile(table)


@pytest.mark.parametrize(
    "settings",
    [MODELS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in MODELS[1:4])],
    ids="-".join,
)
def test_memory_is_repaired_and_the_program_then_fits(settings: list[str]) -> None:
    """The estimate by which rows are dropped is within 10 % of the memory of the program that is left."""
    options = [*settings, "partition.reserve_bytes=0", "partition.base=random", "partition.assign=identity"]
    experiment = mixed(2, *options, "partition.eps_rel=1.0")
    roomy = load_profile(MIXED)
    whole = prepare(experiment, profile=roomy)
    known, artifact = fitted(experiment, whole, roomy)
    before = rank_fits(known, whole.graph, artifact, None, SILENT)  # type: ignore[arg-type]
    assert sum(one.dropped_edges for one in before) == 0
    # both ranks are on RTX 3090s: take away a share of what halo rows need
    budget = int(0.9 * min(one.memory_bytes for one in before))
    small = tight(0.9, rtx3090=f"{budget} B")
    prepared = prepare(experiment, profile=small)
    known, artifact = fitted(experiment, prepared, small)
    policy = cast(FittedPartitioner, known.partition)
    assert policy.memory is not None
    stats = artifact.stats
    assert int(stats.tables[DROPPED_ROWS].min()) > 0
    fits = rank_fits(known, prepared.graph, artifact, None, SILENT)  # type: ignore[arg-type]
    for one in fits:
        gone, lost = one.halo_rows_before - one.halo_rows, one.dropped_edges
        estimated = policy.memory[one.rank].without(gone, lost, one.halo_rows_before)
        assert estimated <= budget
        assert one.memory_bytes <= budget, "never above the budget"
        assert estimated == pytest.approx(one.memory_bytes, rel=0.1)
    program = plan(experiment, prepared.stats).program
    np.testing.assert_array_equal(
        program_bytes(program, on_cpu(policy.devices or ())), [one.memory_bytes for one in fits]
    )


def test_a_budget_that_nothing_meets_ends_with_status_3() -> None:
    experiment = mixed(2, "partition.reserve_bytes=0")
    with pytest.raises(ShortMemoryError) as refused:
        prepare(experiment, profile=tight(0.1, rtx3090="60 kB"))
    assert refused.value.exit_status == 3
    assert all("without halos, budget 60,000 B" in text for text in refused.value.problems)
    assert len(refused.value.problems) == 2


def test_alpha_auto_is_the_number_that_the_layers_give() -> None:
    profile = load_profile(MIXED)
    experiment = mixed(4, "partition.alpha=auto")
    prepared = prepare(experiment, profile=profile)
    known, artifact = fitted(experiment, prepared, profile)
    alpha = artifact.filled["alpha"]
    assert 0 < alpha < 1
    layers, slow = prepared.planned.layers, known.partition.devices  # type: ignore[attr-defined]
    edge = sum(2 * layer.prepared_width for layer in layers) / min(one.spmm_flops for one in slow)
    vertex = sum(2 * layer.width_in * layer.width_out for layer in layers) / min(one.matmul_flops for one in slow)
    assert alpha == pytest.approx(edge / (edge + vertex))
