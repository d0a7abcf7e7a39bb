"""Rows that are used one epoch late: what ops do with them, ages that are wrong, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from simgnn.cli.main import invoke
from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.policies.freshness.one_epoch_stale import OneEpochStale, Smooth, UseLate, UseNow
from simgnn.policy import Action
from simgnn.record.result import read_result
from tests.golden.cases import command
from tests.policies.acting import HERE, does

LATE = "freshness.kind=one-epoch-stale"


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value, -value] for value in values], dtype=torch.float64)


def version(epoch: int) -> torch.Tensor:
    """What an exchange notes of rows that were sent in an epoch; -1: none were."""
    return torch.full((1, 1), epoch + 1, dtype=torch.int64)


def test_late_rows_are_handed_over_and_those_of_this_epoch_copied() -> None:
    late, used = rows(1, 2), rows(5, 6)
    (found,) = does(UseLate, OneEpochStale())(replace(HERE, epoch=4), late, version(3), used)
    assert found is late
    (found,) = does(UseNow, OneEpochStale())(replace(HERE, epoch=4), late, version(4), used)
    assert found is used
    assert torch.equal(used, late)


def test_smoothed_rows_are_mixtures() -> None:
    late, used = rows(1, 2), rows(5, 6)
    (found,) = does(Smooth, OneEpochStale(smooth_rows=True, gamma=0.75))(replace(HERE, epoch=4), late, used)
    assert found is late
    np.testing.assert_allclose(found, rows(4, 5))
    assert torch.equal(used, rows(5, 6))


@pytest.mark.parametrize(
    ("action", "epoch", "sent", "cold"),
    [
        (UseLate, 4, 4, "sync"), (UseLate, 4, 2, "sync"), (UseLate, 4, -1, "sync"), (UseLate, 1, -1, "zeros"),
        (UseLate, 0, -1, "sync"), (UseLate, 0, 0, "zeros"), (UseNow, 4, 3, "sync"), (UseNow, 0, -1, "sync"),
    ],
)  # fmt: skip
def test_rows_of_a_wrong_epoch_end_the_run(
    action: type[Action[OneEpochStale]], epoch: int, sent: int, cold: Literal["sync", "zeros"]
) -> None:
    policy = OneEpochStale(cold_start=cold)
    with pytest.raises(BackendError, match="fault of simgnn"):
        does(action, policy)(replace(HERE, epoch=epoch), rows(1), version(sent), rows(2))


def test_nothing_was_sent_before_an_epoch_of_zeros() -> None:
    used = rows(0)
    (found,) = does(UseLate, OneEpochStale(cold_start="zeros"))(HERE, rows(0), version(-1), used)
    assert found is used, "the first epoch has memory for rows that arrive, too"


REFUSED = {
    "gamma of 1": ("freshness.gamma", LATE, "freshness.smooth_rows=true", "freshness.gamma=1.0"),
    "gamma below 0": ("freshness.gamma", LATE, "freshness.smooth_rows=true", "freshness.gamma=-0.1"),
    "gamma of nothing": ("freshness.gamma", LATE, "freshness.gamma=0.5"),
    "an unknown start": ("freshness.cold_start", LATE, "freshness.cold_start=ones"),
    "mini-batches": (
        "freshness.kind", LATE, "batching.kind=sampled", "communication.kind=store", "placement.kind=store"
    ),
    "blocks": ("freshness.kind", LATE, "partition.kind=block-row", "communication.kind=block-broadcast"),
    "a vertex-cut": ("freshness.kind", LATE, "partition.kind=ebv", "communication.kind=master-mirror"),
    "transformed inputs": ("communication.rows", LATE, "communication.rows=transformed"),
    "inputs sent again": ("communication.resend_inputs", LATE, "communication.resend_inputs=true"),
    "a rate below 0": ("train.learning_rate", "train.learning_rate=-0.1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused(case: str) -> None:
    key, *settings = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        load_experiment("vanilla", settings)
    assert caught.value.exit_status == 2
    assert any(f"{key}: got " in problem for problem in caught.value.problems), caught.value.problems


def test_all_faults_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["freshness.gamma=2.0", "communication.rows=transformed", "train.learning_rate=-1.0"]
    assert invoke(["simulate", "pipegcn", *(part for fault in faults for part in ("--set", fault))]) == 2
    told = capsys.readouterr().err
    assert all(key in told for key in ("freshness.gamma", "train.learning_rate"))


def test_a_rate_of_0_is_a_rate() -> None:
    assert load_experiment("vanilla", ["train.learning_rate=0"]).train.learning_rate == 0


def test_a_prediction_says_what_an_evaluation_between_epochs_costs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert invoke(command("simulate", ("pipegcn", "sage", "2"), out)) == 0
    cost = read_result(out / "result.json").evaluation
    assert cost is not None
    assert cost.evaluate_s > 0
    assert cost.drain_s is not None
    assert cost.drain_s >= 0
