"""Every run leaves its trained weights: of the last epoch, and of the epoch with the best validation accuracy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executor.layers.build import build_layers
from executor.recording.trained_model import TrainedModel
from simgnn.errors import BackendError
from simgnn.record.plan import read_plan
from simgnn.record.result import Accuracy
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process

CASES = {
    "gcn": ("model.kind=gcn",),
    "gat": ("model.kind=gat", "model.heads=2", "train.dtype=float32"),
    "own": ("model.kind=tests.executor.layers.own_layers:Drop",),
    "cached": ("partition.kind=ebv", "communication.kind=master-mirror", "freshness.kind=adaptive-vertex"),
    "rare": ("model.kind=sage", "train.eval_every=0"),
}
EPOCHS = 9


def test_weights_of_the_last_and_of_the_best_epoch_are_kept(tmp_path: Path) -> None:
    settings = [f"train.epochs={EPOCHS}", "train.learning_rate=0.1"]
    folders = [prepared_run(small_graph(), tmp_path / name, 2, *settings, *case) for name, case in CASES.items()]
    found = run_ranks(2, train_in_process, tmp_path / "ranks", list(map(str, folders)), joined=False)[0]
    for name, folder, run in zip(CASES, folders, found, strict=True):
        described = json.loads((folder / "model" / "model.json").read_text())
        last = load_file(folder / "model" / described["last"]["file"])
        assert {key: list(value.shape) for key, value in last.items()} == described["weights"], name
        assert described["last"]["epoch"] == EPOCHS
        layers = build_layers(read_plan(folder / "plan" / "plan.json").layers, 0, run["parameters"].dtype)
        layers.load_state_dict({key.removeprefix("layers."): value for key, value in last.items()})
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in layers.parameters()])
        assert torch.equal(flat, run["parameters"]), name
        accuracy = json.loads((folder / "result.json").read_text())["accuracy"]
        best = accuracy[int(np.argmax([each["validation"] for each in accuracy]))]
        assert described["best"] == {"file": "best.safetensors", **best}
        kept = load_file(folder / "model" / "best.safetensors")
        same = all(torch.equal(kept[key], last[key]) for key in last)
        assert same == (best["epoch"] == EPOCHS), name
        assert (folder / "checkpoint" / f"epoch-{EPOCHS}" / "rank-1.pt").is_file(), "a checkpoint ends every run"


def _model(folder: Path) -> TrainedModel:
    return TrainedModel(folder, (), [torch.nn.Linear(2, 1)])


def test_without_validation_rows_there_is_no_best_epoch(tmp_path: Path) -> None:
    model = _model(tmp_path)
    model.evaluated([Accuracy(epoch=1, train=0.5, validation=None, test=None)])
    model.finish(1, {})
    assert json.loads((tmp_path / "model" / "model.json").read_text())["best"] is None
    assert not (tmp_path / "model" / "best.safetensors").exists()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("in the way")
    with pytest.raises(BackendError, match=r"last\.safetensors cannot be written"):
        _model(tmp_path).finish(1, {})
