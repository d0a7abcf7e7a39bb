"""A run that broke off goes on from its last checkpoint, bit for bit, and its trace has no gap and no double."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from executor.recording.trained_model import TrainedModel
from executor.state.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from executor.state.plan import RunPlan
from simgnn.api.extend import check_resumable, extend_run
from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.learning_rate import Cosine
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.progress import Progress
from simgnn.record.plan import read_plan
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process

SETTINGS = ["train.epochs=7", "train.checkpoint_every=2", "model.kind=sage"]
LAZY = ["freshness.kind=adaptive-vertex", "freshness.epsilon=0.05", "codec.kind=linear"]
DRAWN = ["freshness.kind=boundary-sampling", "freshness.sampling=bernoulli", "freshness.cache_features=true"]
UNEQUAL = [
    "codec.kind=stochastic", "codec.bits=adaptive", "codec.assign_period=3", "codec.group_size=10",
    "schedule.kind=pipelined",
]  # fmt: skip
"""Bits are assigned after the third and the sixth epoch, between which the run breaks off."""
VARIANTS = {"dense": {}, "sparse": {"sparse_features": True}}


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    graphs = {name: small_graph(**options) for name, options in VARIANTS.items()}  # type: ignore[arg-type]
    runs = [(name, graph, SETTINGS) for name, graph in graphs.items()]
    skipping = "communication.kind=block-broadcast", "communication.resend_inputs=true", "freshness.kind=skip-broadcast"
    for rule in ("epoch-adaptive", "variation-gap"):
        runs.append((rule, small_graph(), [*SETTINGS[:2], *skipping, f"freshness.rule={rule}"]))
    runs.append(("dropped", small_graph(), [*SETTINGS, "model.dropout=0.5"]))
    runs.append(("own", small_graph(), [*SETTINGS[:2], "model.kind=tests.executor.layers.own_layers:Drop"]))
    cut = "partition.kind=ebv", "communication.kind=master-mirror", "model.hoist=never"
    runs.append(("replicas", small_graph(), [*SETTINGS[:2], *LAZY, *cut]))
    runs.append(("lazy", small_graph(), [*SETTINGS[:2], *LAZY]))
    late = "freshness.kind=one-epoch-stale", "freshness.smooth_rows=true", "schedule.kind=pipelined"
    runs.append(("late", small_graph(), [*SETTINGS, "model.layers=3", *late]))
    runs.append(("sampled", small_graph(), [*SETTINGS, *DRAWN]))
    runs.append(("unequal", small_graph(), [*SETTINGS, "model.layers=3", *UNEQUAL]))
    refreshed = "freshness.kind=refresh-interval", "freshness.refresh_interval=3", "freshness.grad=historical"
    places = "placement.device_rows=0.3", "placement.host_rows=0.4", "communication.resend_inputs=true"
    chunks = "partition.kind=metis-chunks", "partition.chunks=3", 'partition.candidates=["initial"]'
    offloaded = "communication.kind=transition", "placement.kind=host-offload"
    runs.append(("chunks", small_graph(), [*SETTINGS, "model.layers=3", "model.dropout=0.3", *chunks, *offloaded]))
    runs.append(("refreshed", small_graph(), [*SETTINGS, "model.layers=3", *refreshed, *places]))
    # of an odd number of refreshes ahead, so that the two memories of the host have changed places
    runs.append(("ahead", small_graph(), [*SETTINGS, "model.layers=3", *refreshed, *places, "freshness.mode=async"]))
    whole = [str(prepared_run(graph, tmp_path / name, 2, *settings)) for name, graph, settings in runs]
    broken = [str(prepared_run(graph, tmp_path / f"{name}-broken", 2, *settings)) for name, graph, settings in runs]
    expected = run_ranks(2, train_in_process, tmp_path / "whole", whole, joined=False)
    run_ranks(2, train_in_process, tmp_path / "broken", broken, None, False, 5, True, joined=False)
    for folder in broken:
        plan = RunPlan.open(Path(folder))
        assert find_checkpoint(plan.checkpoints, 2, plan.digest) == 4
        assert [path.name for path in plan.checkpoints.glob("epoch-*")] == ["epoch-4"], "older ones are deleted"
    got = run_ranks(2, train_in_process, tmp_path / "resumed", broken, None, True, joined=False)
    for rank in range(2):
        for one, other in zip(expected[rank], got[rank], strict=True):
            assert other["losses"] == one["losses"]
            assert other["evaluations"] == one["evaluations"]
            assert torch.equal(other["parameters"], one["parameters"])
            for mine, theirs in zip(one["buffers"], other["buffers"], strict=True):
                assert mine.keys() == theirs.keys()
                assert all(torch.equal(mine[name], theirs[name]) for name in mine)
            assert one["caches"].keys() == other["caches"].keys()
            assert all(torch.equal(one["caches"][name], other["caches"][name]) for name in one["caches"])
            assert len(other["gradients"]) == 3, "only the epochs after the checkpoint were trained again"
    assert any(one["caches"] for one in expected[0])
    recorded = 0
    for one, other in zip(whole, broken, strict=True):
        tables = [Path(folder) / "activity.parquet" for folder in (one, other)]
        assert tables[0].is_file() == tables[1].is_file()
        if tables[0].is_file():
            assert pq.read_table(tables[0]).equals(pq.read_table(tables[1]))
            recorded += 1
    assert recorded == 5, "two schedules of blocks, two caches, unequal bits"
    for one, other in zip(whole, broken, strict=True):
        traces = [pq.read_table(Path(folder) / "trace.parquet").to_pandas() for folder in (one, other)]
        keys = ["rank", "epoch", "step", "op_id", "bytes_sent", "collective_bytes", "control_bytes", "messages"]
        first, second = (trace[keys].sort_values(keys).reset_index(drop=True) for trace in traces)
        assert first.equals(second)
        assert traces[1].groupby(["rank", "epoch"])["issued_s"].min().groupby("rank").is_monotonic_increasing.all()
        traffic = [pq.read_table(Path(folder) / "traffic.parquet") for folder in (one, other)]
        assert traffic[0].equals(traffic[1])
        results = [json.loads((Path(folder) / "result.json").read_text()) for folder in (one, other)]
        for field in ("loss", "accuracy", "bytes_sent", "bytes_sent_first_epoch", "messages", "status", "epochs"):
            assert results[0][field] == results[1][field], field
        assert all(times["compute_s"] > 0 for times in results[1]["per_rank"])


def _end_after_last_checkpoint(rank: int, ranks: int, folder: str) -> list[dict[str, Any]]:
    """Train as a rank that is killed as soon as its last checkpoint is complete."""

    def killed(*_: object) -> None:
        raise BackendError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainedModel, "finish", killed)
        return train_in_process(rank, ranks, [folder], None, False, 10, True)


def test_a_run_killed_after_its_last_checkpoint_loses_no_record(tmp_path: Path) -> None:
    settings = "model.kind=sage", "train.epochs=4"
    folders = [str(prepared_run(small_graph(), tmp_path / name, 2, *settings)) for name in ("whole", "killed")]
    run_ranks(2, train_in_process, tmp_path / "a", folders[:1], joined=False)
    run_ranks(2, _end_after_last_checkpoint, tmp_path / "b", folders[1], joined=False)
    assert not RunDirectory(Path(folders[1])).result.exists()
    plan = RunPlan.open(Path(folders[1]))
    assert find_checkpoint(plan.checkpoints, 2, plan.digest) == 4
    run_ranks(2, train_in_process, tmp_path / "c", folders[1:], None, True, joined=False)
    results = [read_result(RunDirectory(Path(folder)).result) for folder in folders]
    assert len(results[1].epoch_s) == 4
    for field in ("loss", "accuracy", "payload_epochs", "bytes_sent", "messages", "epochs"):
        assert getattr(results[0], field) == getattr(results[1], field), field


def _check_more_epochs(place: Path, ranks: int, cases: dict[str, tuple[str, list[str]]], short: list[int]) -> None:
    """Runs of ``short`` epochs that train up to seven are runs of seven epochs. ``cases``: system and settings."""
    folders: dict[int, list[Path]] = {
        epochs: [
            prepared_run(
                small_graph(), place / f"{epochs}-{name}", ranks, f"train.epochs={epochs}", *own, system=system
            )
            for name, (system, own) in cases.items()
        ]
        for epochs in (*short, 7)
    }
    found = {
        epochs: run_ranks(ranks, train_in_process, place / f"first-{epochs}", list(map(str, runs)), joined=False)
        for epochs, runs in folders.items()
    }
    for epochs in short:
        for folder in folders[epochs]:
            longer = load_experiment(folder / "experiment.toml", ["train.epochs=7"])
            extend_run(folder, longer, Progress())
        longer_runs = list(map(str, folders[epochs]))
        again = run_ranks(ranks, train_in_process, place / f"more-{epochs}", longer_runs, None, True, joined=False)
        for case, one, other in zip(cases, found[7][0], again[0], strict=True):
            assert len(other["gradients"]) == 7 - epochs, case
            assert other["losses"] == one["losses"], case
            assert torch.equal(other["parameters"], one["parameters"]), case
        for ours, long in zip(folders[epochs], folders[7], strict=True):
            results = [json.loads((folder / "result.json").read_text()) for folder in (ours, long)]
            for field in ("loss", "bytes_sent", "bytes_sent_first_epoch", "messages", "epochs", "payload_epochs"):
                assert results[0][field] == results[1][field], (epochs, ours.name, field)


RATE = "train.learning_rate_schedule"


def test_more_epochs_go_on_as_one_long_run(tmp_path: Path) -> None:
    plateau = [f"{RATE}.kind=plateau", f"{RATE}.metric=validation", f"{RATE}.patience=0", "train.eval_every=3"]
    cases = {
        "dense": ["model.kind=sage"],
        "lazy": LAZY,
        "sampled": ["freshness.kind=boundary-sampling", "freshness.sampling=bernoulli", "freshness.p=0.4"],
        "adam": ["train.optimizer=adam", "model.dropout=0.5", *plateau],
    }
    _check_more_epochs(tmp_path, 2, {name: ("vanilla", settings) for name, settings in cases.items()}, [1, 4])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_more_epochs_of_every_full_graph_system(ranks: int, tmp_path: Path) -> None:
    step = [f"{RATE}.kind=step", f"{RATE}.step_size=2", "train.weight_decay=[0.1,0.2]", "train.decay_biases=false"]
    systems = ("vanilla", "cagnet", "sancus", "cdfgnn", "pipegcn", "bnsgcn")
    cases = {name: (name, ["model.layers=2", *(step if name == "cagnet" else [])]) for name in systems}
    if ranks > 1:  # one rank has no bits to assign
        cases["adaqp"] = ("adaqp", ["codec.assign_period=2", "codec.group_size=10"])
    _check_more_epochs(tmp_path, ranks, cases, [1, 3])


def test_a_cosine_whose_epochs_would_change_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = prepared_run(small_graph(), tmp_path / "run", 1, f"{RATE}.kind=cosine")

    def wanted(*settings: str) -> Experiment:
        return load_experiment(folder / "experiment.toml", ["train.epochs=8", *settings])

    for settings in ([], [f"{RATE}.t_max=8"]):
        with pytest.raises(ConfigError, match=rf"--resume: {RATE}\.t_max: got .*expected 5: .*--set {RATE}\.t_max=5"):
            check_resumable(wanted(*settings), folder, Progress())
    assert read_plan(folder / "plan" / "plan.json").train.epochs == 5
    check_resumable(wanted(f"{RATE}.t_max=5"), folder, Progress())
    train = read_plan(folder / "plan" / "plan.json").train
    assert (train.epochs, train.learning_rate_schedule) == (8, Cosine(t_max=5))


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    plan = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", 1))
    with pytest.raises(ConfigError, match=r"--resume: there is no complete checkpoint in .*checkpoint_every"):
        find_checkpoint(plan.checkpoints, 1, plan.digest)


def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    os.makedirs(folder)
    (folder / "latest.json").write_text(json.dumps({"epoch": 3, "ranks": 2, "program_digest": "other"}))
    with pytest.raises(ConfigError, match="belongs to another program"):
        find_checkpoint(folder, 2, "mine")


@pytest.mark.parametrize("text", ["", "{}", '{"epoch": "x", "ranks": 2, "program_digest": "mine"}', "[1]"])
def test_a_damaged_note_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "latest.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"latest\.json: not a readable note of a checkpoint .*start without --resume"
    ):
        find_checkpoint(tmp_path, 2, "mine")


def _context() -> Any:
    """As much of a rank as a checkpoint looks at."""
    nothing: Any = SimpleNamespace(state=dict)
    return SimpleNamespace(
        rank=0, device=torch.device("cpu"), optimizer=SimpleNamespace(state_dict=dict), network=nothing, store=nothing,
        decisions={}, pairs={}, apart={}, written=dict, program=SimpleNamespace(ranks=1),
    )  # fmt: skip


def _save(folder: Path) -> None:
    save_checkpoint(folder, 1, "mine", _context(), {}, lambda: None)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("raw", [b"", b"no checkpoint", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_refused(tmp_path: Path, raw: bytes, sealed: bool) -> None:
    """Also one of an earlier version, which wrote no digest beside it."""
    _save(tmp_path)
    assert find_checkpoint(tmp_path, 1, "mine") == 1
    path = tmp_path / "epoch-1" / "rank-0.pt"
    assert path.with_suffix(".sha256").is_file()
    if not sealed:
        path.with_suffix(".sha256").unlink()
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"rank-0\.pt.*start without --resume"):
        load_checkpoint(tmp_path, 1, _context())


@pytest.mark.parametrize("state", [[], {}, {"optimizer": 3}, {"optimizer": {"flat": "text"}}])
def test_a_file_of_something_else_is_refused(tmp_path: Path, state: object) -> None:
    _save(tmp_path)
    path = tmp_path / "epoch-1" / "rank-0.pt"
    path.with_suffix(".sha256").unlink()
    torch.save(state, path)
    with pytest.raises(ConfigError, match=r"rank-0\.pt: not a readable checkpoint .*start without --resume"):
        load_checkpoint(tmp_path, 1, _context())


def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    _save(tmp_path)
    with (tmp_path / "epoch-1" / "rank-0.pt").open("ab") as stream:
        stream.truncate(2**43)
    with pytest.raises(ConfigError, match=r"rank-0\.pt: reading it takes about .*start without --resume"):
        load_checkpoint(tmp_path, 1, _context())


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), RuntimeError("PytorchStreamWriter failed")])
def test_a_checkpoint_without_room_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """What was there before stays the last one."""
    _save(tmp_path)

    def full(state: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise fault

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(BackendError, match=r"rank-0\.pt cannot be written .* bytes are free"):
        save_checkpoint(tmp_path, 2, "mine", _context(), {}, lambda: None)
    assert not list((tmp_path / "epoch-2").iterdir())
    assert find_checkpoint(tmp_path, 1, "mine") == 1
