"""Early stopping: all ranks end after the same epoch, the result says why, and training can go on afterwards."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from simgnn.api.extend import check_resumable, extend_run
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.record.early_stop import Patience
from simgnn.record.result import Accuracy, EarlyStop
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import prepared_run, small_graph, train_in_process

QUIET = Reporter(quiet=True)
EPOCHS = 24


def _evaluated(*values: float | None, every: int = 1) -> list[Accuracy]:
    return [
        Accuracy(epoch=every * (place + 1), train=None, validation=value, test=None)
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "patience", "expected"),
    [
        ([], 1, None),
        ([0.5], 1, None),
        ([0.5, 0.6, 0.6], 1, EarlyStop(epoch=3, best_epoch=2, best_validation=0.6, evaluations=1)),
        ([0.5, 0.6, 0.6], 2, None),
        ([0.5, 0.6, 0.6, 0.59], 2, EarlyStop(epoch=4, best_epoch=2, best_validation=0.6, evaluations=2)),
        ([0.5, 0.4, 0.6, 0.3], 2, None),
        ([0.5, 0.4, 0.3], 0, None),
        ([None, None, None], 1, None),
    ],
)
def test_patience_counts_evaluations_since_the_first_best_one(
    values: list[float | None], patience: int, expected: EarlyStop | None
) -> None:
    assert Patience(patience, 1).over(_evaluated(*values)) == expected


def test_an_evaluation_at_the_end_of_a_shorter_run_does_not_count() -> None:
    known = [*_evaluated(0.5, 0.4, every=3), Accuracy(epoch=7, train=None, validation=0.3, test=None)]
    assert Patience(2, 3).over(known) is None
    assert Patience(1, 3).over(known) == EarlyStop(epoch=6, best_epoch=3, best_validation=0.5, evaluations=1)


CASES = {"vanilla": (2, ["train.patience=2", "train.eval_every=2"]), "distdgl": (1, ["train.patience=1"])}


def _prepared(folder: Path, case: str, *settings: str) -> Path:
    common = [f"train.epochs={EPOCHS}", "train.learning_rate=0.3", *settings]
    if case == "distdgl":
        return prepared_batches(small_graph(), folder, 2, 1, "distdgl", "train.eval_every=1", *common)
    return prepared_run(small_graph(), folder, 2, *common)


def _result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.parametrize("cases", [("vanilla",), pytest.param(("vanilla", "distdgl"), marks=pytest.mark.slow)])
def test_a_run_ends_early_and_goes_on_with_more_patience(cases: tuple[str, ...], tmp_path: Path) -> None:
    early = {case: _prepared(tmp_path / case, case, *CASES[case][1]) for case in cases}
    without = [f"{one.partition('=')[0]}=0" if "patience" in one else one for one in CASES["vanilla"][1]]
    whole = {
        case: _prepared(tmp_path / f"whole-{case}", case, *(without if case == "vanilla" else [])) for case in cases
    }
    folders = list(map(str, [*early.values(), *whole.values()]))
    found = run_ranks(2, train_in_process, tmp_path / "first", folders, joined=False)
    ended = {}
    for position, case in enumerate(cases):
        one, other, result = found[0][position], found[1][position], _result(early[case])
        stop, every = result["early_stop"], 2 if case == "vanilla" else 1
        ended[case] = stop["epoch"]
        assert len(one["losses"]) == len(other["losses"]) == stop["epoch"] == result["epochs"] < EPOCHS
        assert len(result["epoch_s"]) == stop["epoch"]
        assert one["losses"] == found[0][position + len(cases)]["losses"][: stop["epoch"]], "the same epochs as without"
        assert stop["epoch"] - stop["best_epoch"] == every * CASES[case][0] == every * stop["evaluations"]
        known = {each["epoch"]: each["validation"] for each in result["accuracy"]}
        assert stop["best_validation"] == known[stop["best_epoch"]] == max(known.values())
        described = json.loads((early[case] / "model" / "model.json").read_text())
        assert described["last"]["epoch"] == stop["epoch"]
        assert described["best"]["epoch"] == stop["best_epoch"]
        assert (early[case] / "checkpoint" / f"epoch-{stop['epoch']}" / "rank-1.pt").is_file()
        payload = _result(whole[case])["bytes_sent_first_epoch"]
        assert result["bytes_sent_first_epoch"] == payload
        assert result["payload_epochs"] == [1, stop["epoch"] - 1]
    assert _result(early["vanilla"])["bytes_sent"] == _result(whole["vanilla"])["bytes_sent"]
    _check_refused(early["vanilla"])
    with pytest.raises(ConfigError, match=r"would not go on: none of .*train\.patience = 1, expected more than"):
        check_resumable(_with(whole["vanilla"], epochs=2 * EPOCHS, patience=1), whole["vanilla"], QUIET)
    for case, folder in early.items():
        extend_run(folder, _with(folder, patience=0), QUIET)
        assert not (folder / "result.json").exists(), case
    again = run_ranks(2, train_in_process, tmp_path / "again", list(map(str, early.values())), None, True, joined=False)
    for position, case in enumerate(cases):
        assert again[0][position]["losses"] == found[0][position + len(cases)]["losses"], case
        assert torch.equal(again[0][position]["parameters"], found[0][position + len(cases)]["parameters"]), case
        assert len(again[0][position]["gradients"]) % (EPOCHS - ended[case]) == 0, "only epochs after the stop"
        rows = list(csv.DictReader((early[case] / "losses.csv").open()))
        assert [int(row["epoch"]) for row in rows] == list(range(1, EPOCHS + 1)), case
        ours, long = _result(early[case]), _result(whole[case])
        for field in ("loss", "accuracy", "bytes_sent", "messages", "epochs", "payload_epochs", "early_stop"):
            assert ours[field] == long[field], (case, field)


def _with(folder: Path, **train: Any) -> Any:
    """The experiment of a run, as a user would write it for ``--resume``."""
    return load_experiment(folder / "experiment.toml", [f"train.{key}={value}" for key, value in train.items()])


def _check_refused(folder: Path) -> None:
    """Going on where it would end again at once is refused, and changes nothing."""
    before = (folder / "plan" / "plan.json").read_bytes()
    for train in ({}, {"epochs": 2 * EPOCHS}, {"patience": 1}):
        with pytest.raises(
            ConfigError, match=r"training ended after epoch .*train\.patience = [12], expected more than 2"
        ):
            check_resumable(_with(folder, **train), folder, QUIET)
    assert (folder / "plan" / "plan.json").read_bytes() == before
    assert (folder / "result.json").is_file()
