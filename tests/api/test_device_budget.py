"""``placement.device_bytes``: what a rank may hold on its device, as `simulate` and `run` predict it, as a run measures
it, and as RAPA repairs memory by it."""

import json
from pathlib import Path

import numpy as np
import pytest

from simgnn.api.executor_process import start_executor
from simgnn.api.predict import predict
from simgnn.api.train import prepare_run
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError, ShortMemoryError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.file import load_partitions, save_partitions
from simgnn.partition.statistics.partition_stats import DROPPED_ROWS
from simgnn.planner.memory.program_memory import program_bytes
from simgnn.planner.prepare import prepare
from simgnn.progress import SILENT
from simgnn.record.memory import over_budget, result_fields
from simgnn.record.result import read_result
from simgnn.sim.simulate import simulate

GRAPH = ["graph.vertices=1500", "graph.edges=9000", "graph.classes=5", "graph.feature_width=24", "model.hidden=16"]
BATCHES = ["model.layers=2", "batching.fanouts=[5,5]", "batching.batch_size=200"]
CACHED = ["freshness.kind=refresh-interval", "freshness.refresh_interval=2", "placement.device_rows=0.9"]
BATCHED = ("distdgl", "rapidgnn")
CPU, GPU = "cpu-100gbe-8", "mixed-pcie3-8"
SYSTEMS = {
    "vanilla": ("vanilla", []), "gat": ("vanilla", ["model.kind=gat", "schedule.kind=pipelined"]),
    "caches": ("vanilla", [*CACHED, "placement.host_rows=0.5"]), "cagnet": ("cagnet", []),
    "distdgl": ("distdgl", BATCHES), "rapidgnn": ("rapidgnn", [*BATCHES, "placement.hot_rows=40"]),
}  # fmt: skip


def of(system: str, *more: str, ranks: int = 2, hardware: str = CPU) -> Experiment:
    name, settings = SYSTEMS[system]
    return load_experiment(name, [*GRAPH, *settings, *more], ranks=ranks, epochs=3, hardware=hardware)


# the profile of the GPUs has no price of drawing batches
@pytest.mark.parametrize(
    ("system", "hardware"),
    [(one, where) for one in SYSTEMS for where in (CPU, GPU) if where == CPU or one not in BATCHED],
)
def test_program_order_and_simulation_give_the_same_peak(system: str, hardware: str) -> None:
    experiment = of(system, hardware=hardware)
    prepared, machine = prepare(experiment), Machine.place(load_profile(hardware), [0, 0])
    found = simulate(
        prepared.planned.program, machine, stats=prepared.stats, epochs=3, evaluate_every=3,
        schedule=experiment.schedule,
    ).memory  # fmt: skip
    on_cpu = np.array([machine.device(rank).kind == "cpu" for rank in range(2)])
    assert program_bytes(prepared.planned.program, on_cpu).tolist() == found.own.tolist()
    if on_cpu.all():  # with memory that ranks share, it is all that they hold, at least where that never changes
        np.testing.assert_array_equal(found.own + found.shared, found.both)
    else:
        np.testing.assert_array_equal(found.own, found.device)


@pytest.mark.parametrize("system", ["vanilla", "caches", "rapidgnn"])
def test_one_byte_below_the_prediction_is_refused_in_both_backends(system: str, tmp_path: Path) -> None:
    needed = max(predict(of(system), SILENT, limits=False).result.device_memory_bytes or [])
    enough, short = (of(system, f"placement.device_bytes={needed - less}") for less in (0, 1))
    fits = predict(enough, SILENT, limits=False).result
    assert fits.status == "ok"
    (budget,) = [peak for peak in fits.memory if peak.place == "budget"]
    assert (budget.peak_bytes, budget.capacity_bytes) == (needed, needed)
    assert "(100 %)" in budget.text()
    assert prepare_run(enough, tmp_path / "fits", SILENT).is_dir()
    full = predict(short, SILENT, limits=False).result
    assert full.status == "oom"
    assert f"needs {needed:,} B" in full.message
    assert f"budget {needed - 1:,} B" in full.message
    with pytest.raises(ShortMemoryError) as refused:
        prepare_run(short, tmp_path / "short", SILENT)
    assert not (tmp_path / "short").exists(), "refused before anything is written"
    (problem,) = refused.value.problems
    assert problem.startswith("placement.device_bytes: rank ")
    assert f"needs {needed:,} B on its device, budget {needed - 1:,} B" in problem
    for text in (problem, full.message):
        assert ("the largest cache that fits: placement.device_rows = " in text) == (system == "caches")
        assert "host_rows = 0.5" in text or system != "caches", "shared memory is not the device's"


def test_the_largest_cache_is_named_beside_one_that_takes_what_is_left(tmp_path: Path) -> None:
    mixed = ["placement.device_rows=400", "placement.host_rows=adaptive", "placement.device_bytes=100000"]
    experiment = of("caches", *mixed)
    message = predict(experiment, SILENT, limits=False).result.message
    with pytest.raises(ShortMemoryError) as refused:
        prepare_run(experiment, tmp_path / "run", SILENT)
    assert list(refused.value.problems) == [message]
    assert "it would not fit without a cache of halo rows, either" in message


def test_commands_end_with_status_3_and_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vanilla", "--ranks", "2", "--hardware", CPU, "--set", "placement.device_bytes=1000", "--epochs", "2"]
    words += [word for setting in GRAPH for word in ("--set", setting)]
    for command, more in (("simulate", []), ("run", ["--out", str(tmp_path / "run")])):
        assert invoke([command, *words, *more]) == 3, command
        assert " ".join(capsys.readouterr().err.split()).count("placement.device_bytes: rank ") == 1
    assert not (tmp_path / "run").exists()
    assert invoke(["simulate", *words, "--set", "placement.device_bytes=-1"]) == 2


def test_where_only_a_run_decides_sizes_count_as_their_bounds(tmp_path: Path) -> None:
    """No record says what an adaptive cache sends, so a run is judged by the most that it can hold."""
    settings = ["placement.device_bytes=1000", *GRAPH]
    experiment = load_experiment("cdfgnn", settings, ranks=2, epochs=2, hardware=CPU)
    with pytest.raises(ShortMemoryError, match=r"placement\.device_bytes: rank "):
        prepare_run(experiment, tmp_path / "run", SILENT)


@pytest.mark.slow
def test_a_run_tells_what_its_devices_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    larger = ["graph.vertices=6000", "graph.edges=40000", "graph.feature_width=40", "model.hidden=64"]
    settings = [*larger, *CACHED, "placement.host_rows=0.5", "placement.device_bytes=60000000", "graph.classes=5"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert (
        invoke(["run", "vanilla", "--ranks", "2", "--hardware", CPU, "--epochs", "2", "--out", str(out), *words]) == 0
    )
    assert "budget of a device" in " ".join(capsys.readouterr().out.split())
    result = read_result(out / "result.json")
    held, shared = result.device_memory_bytes, result.shared_memory_bytes
    assert held is not None
    assert shared is not None
    assert shared[1] == 0, "it counts on the first rank of its host"
    assert result.peak_memory_bytes == [held[0] + shared[0], held[1]]
    (budget,) = [peak for peak in result.memory if peak.place == "budget"]
    assert (budget.peak_bytes, budget.capacity_bytes) == (max(held), 60_000_000)
    assert json.loads((out / "plan" / "plan.json").read_text())["device_bytes"] == 60_000_000
    predicted = predict(
        load_experiment("vanilla", settings, ranks=2, epochs=2, hardware=CPU), SILENT, limits=False
    ).result
    np.testing.assert_allclose(predicted.device_memory_bytes, held, rtol=0.1)
    np.testing.assert_allclose(predicted.shared_memory_bytes, shared, rtol=0.1)


@pytest.mark.slow
def test_a_run_that_holds_more_than_its_budget_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan's budget is lowered after the prediction, as if that had been wrong."""
    out = tmp_path / "run"
    larger = ["graph.vertices=6000", "graph.edges=40000", "graph.feature_width=40", "model.hidden=64"]
    experiment = load_experiment("vanilla", ["placement.device_bytes=900000000", *larger], ranks=2, epochs=3)
    prepare_run(experiment, out, SILENT)
    plan = json.loads((out / "plan" / "plan.json").read_text())
    (out / "plan" / "plan.json").write_text(json.dumps({**plan, "device_bytes": 4_000_000}))
    with pytest.raises(
        ShortMemoryError, match=r"rank \d, epoch 1, op '.*': the device has held [\d,]+ B, budget 4,000,000 B"
    ):
        start_executor(out, ["--device", "cpu"], lambda line: None)
    result = read_result(out / "result.json")
    assert result.status == "failed"
    assert result.message.startswith("placement.device_bytes: rank ")
    assert ShortMemoryError.exit_status == 3


def test_a_measured_peak_above_the_budget_is_told() -> None:
    names = "peak_memory_bytes", "device_memory_bytes", "resident_memory_bytes", "idle_memory_bytes"
    numbers = {name: [70, 90, 80] for name in names}
    numbers |= {"shared_memory_bytes": [0, 0, 0], "capacity_bytes": [1000] * 3}
    fields = result_fields(numbers, [0, 0, 0], False, budget=75)
    (budget,) = [peak for peak in fields["memory"] if peak.place == "budget"]
    assert (budget.fullest, budget.peak_bytes, budget.capacity_bytes) == (1, 90, 75)
    (note,) = over_budget(75, numbers["device_memory_bytes"])
    assert "ranks 1-2 held up to 90 B" in note
    assert over_budget(90, numbers["device_memory_bytes"]) == []
    assert over_budget(0, numbers["device_memory_bytes"]) == []
    assert not [peak for peak in result_fields(numbers, [0, 0, 0], False)["memory"] if peak.place == "budget"]


RAPA = ["partition.kind=rapa", "partition.base=random", "partition.assign=identity", "partition.eps_rel=1.0"]


def test_rapa_repairs_memory_by_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The devices have gigabytes, of which 100 MB stay free; the budget is what counts."""
    roomy = predict(of("vanilla", *RAPA, hardware=GPU), SILENT, limits=False)
    assert int(roomy.prepared.stats.tables[DROPPED_ROWS].sum()) == 0
    needed = roomy.result.device_memory_bytes
    assert needed is not None
    budget = int(0.9 * min(needed))
    tight = of("vanilla", *RAPA, f"placement.device_bytes={budget}", hardware=GPU)
    repaired = predict(tight, SILENT, limits=False)
    assert repaired.result.status == "ok"
    assert max(repaired.result.device_memory_bytes or []) <= budget
    assert int(repaired.prepared.stats.tables[DROPPED_ROWS].min()) > 0
    artifact = repaired.prepared.partition
    assert artifact is not None
    assert artifact.filled["budget_bytes"] == budget
    with pytest.raises(ShortMemoryError, match=r"without halos, budget 10,000 B"):
        predict(of("vanilla", *RAPA, "placement.device_bytes=10000", hardware=GPU), SILENT)
    # statistics of this partition serve other budgets, too
    stats = tmp_path / "stats.toml"
    words = [word for setting in [*GRAPH, *RAPA] for word in ("--set", setting)]
    common = ["vanilla", "--ranks", "2", "--hardware", GPU]
    within = ["--set", f"placement.device_bytes={budget}"]
    assert invoke(["partition", *common, *words, *within, "--no-alternatives", "--stats", str(stats)]) == 0
    source = [f"graph.source=stats:{stats}", "model.hidden=16", "partition.kind=rapa"]
    for more, counted in (([], roomy), (within[1:], repaired)):
        read = load_experiment("vanilla", [*source, *more], ranks=2, epochs=3, hardware=GPU)
        assert predict(read, SILENT, limits=False).result.program_digest == counted.result.program_digest
    # without the parts that it starts from, a file serves its own budget alone
    save_partitions(load_partitions(stats)[:1], stats)
    with pytest.raises(ConfigError, match=r"placement\.device_bytes: got 0, but the partition"):
        predict(load_experiment("vanilla", source, ranks=2, hardware=GPU), SILENT)
