"""The age of late rows in the executor, at each use: the check runs, the rows are those of the epoch before, and a
program that uses other rows ends."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from executor.handlers import pairwise
from executor.rank.session import Session
from executor.state.plan import RunPlan
from simgnn.emit.sync import carry, land
from simgnn.policies.freshness import one_epoch_stale
from simgnn.policies.freshness.one_epoch_stale import UseLate, UseNow
from simgnn.program.calendar import FIRST, epoch_names
from simgnn.program.kinds import OpKind
from tests.equality.counting import turns_of
from tests.equality.late_runs import HIDDEN, PIPED, STALE, ZEROS, train_delayed
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process

EPOCHS, RANKS = 5, 3
CASES = {
    "gcn": ("model.kind=gcn", HIDDEN, *PIPED),
    "gat": ("model.kind=gat", "model.heads=2", *STALE),
    "sage, zeros": ("model.kind=sage", "model.dropout=0.5", *PIPED, ZEROS),
    "gin, coded": ("model.kind=gin", "train.learning_rate=0.001", "codec.kind=linear", *PIPED),
}
COMMON = ("model.layers=3", "train.eval_every=0")
QUICK = ("gcn", "sage, zeros")


def train_noting(rank: int, ranks: int, folder: str, seed: int) -> list[Any]:
    """Train with ops in random order, after delays: what each use of late rows checked and gave, and what each exchange
    was handed."""
    checks, uses, sent = [], [], []
    check, exchange = one_epoch_stale._check_age, pairwise.all_to_all

    def noted(context: Any, version: Any, age: int, zeros: bool) -> None:
        check(context, version, age, zeros)
        checks.append((context.epoch, context.layer, context.phase, age, int(version)))

    def use(plain: Any) -> Any:
        def run(self: Any, context: Any, *read: Any) -> tuple[Any, ...]:
            (found,) = plain(self, context, *read)
            uses.append((context.epoch, context.layer, context.phase, found.clone()))
            return (found,)

        return run

    def all_to_all(packed: torch.Tensor, send: Sequence[int], *others: Any) -> torch.Tensor:
        sent.append(torch.split(packed.clone(), list(send)))
        return exchange(packed, send, *others)

    with (
        patch.object(one_epoch_stale, "_check_age", noted), patch.object(pairwise, "all_to_all", all_to_all),
        patch.object(UseLate, "run", use(UseLate.run)), patch.object(UseNow, "run", use(UseNow.run)),
    ):  # fmt: skip
        train_delayed(rank, ranks, [folder], seed)
    return [checks, uses, sent]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]
)
def test_each_use_is_of_the_rows_that_were_sent_in_the_epoch_before(case: str, tmp_path: Path) -> None:
    folder = prepared_run(small_graph(), tmp_path / "run", RANKS, *COMMON, *CASES[case])
    found = run_ranks(RANKS, train_noting, tmp_path / "ranks", str(folder), 3, joined=False)
    waits = ZEROS not in CASES[case]
    places = [(epoch, layer, phase) for epoch in range(EPOCHS) for layer in (2, 3) for phase in ("forward", "backward")]
    program = RunPlan.open(folder).program
    exchanges = [
        (turn.epoch, op.layer, op.phase)
        for turn in turns_of(program, EPOCHS, [EPOCHS - 1])
        for op in program.templates[turn.template].ops
        if op.kind is OpKind.EXCHANGE
    ]
    sent = []
    for checks, uses, messages in found:
        ages = {tuple(place): (age, place[0] + 1 - version) for *place, age, version in checks}
        assert len(ages) == len(checks) == len(uses), "each use is checked, and happens once an epoch"
        cold = (0, 0) if waits else (1, 1)
        assert ages == {place: (1, 1) if place[0] else cold for place in places}
        # of the last epoch's rows those of training, which come before those of the evaluation
        sent.append(dict(zip(reversed(exchanges), reversed(messages), strict=True)))
    if "codec.kind=linear" in CASES[case]:  # what was sent are codes
        return
    for rank, (_, uses, _) in enumerate(found):
        for epoch, layer, phase, rows in uses:
            origin = epoch - 1 if epoch or not waits else 0
            if origin < 0:
                assert not rows.any(), "zeros before anything was sent"
                continue
            arrived = torch.cat([sent[peer][origin, layer, phase][rank] for peer in range(RANKS)])
            assert torch.equal(rows, arrived), (rank, epoch, layer, phase)


def train_until_stopped(rank: int, ranks: int, folder: str) -> list[Any]:
    """The message of what ended the run, and the number of epochs that had ended."""
    messages: list[str] = []
    with patch.object(Session, "abandon", lambda session, error: messages.append(str(error))):
        [found] = train_in_process(rank, ranks, [folder], None, False, EPOCHS)
    return [messages, len(found["losses"])]


def _use_after_exchange(stage: Any) -> None:
    """Rows that arrive in an epoch are used in the same one, but for the first."""
    for template in stage.sync.templates:
        here = replace(stage.sync, templates=(template,))
        carry(stage.builder, here, stage.stage, stage.codec, stage.late, stage.version)
        stage._use(here, UseNow if FIRST in epoch_names(template) else UseLate)
        land(stage.builder, here, stage.stage)


def _exchange_once(stage: Any) -> None:
    """Rows of the first epoch are used in all."""
    for template in stage.sync.templates:
        here = replace(stage.sync, templates=(template,))
        if FIRST in epoch_names(template):
            carry(stage.builder, here, stage.stage, stage.codec, stage.late, stage.version)
            stage._use(here, UseNow)
        else:
            stage._use(here, UseLate)
        land(stage.builder, here, stage.stage)


@pytest.mark.parametrize(
    ("emit", "trained", "message"),
    [
        (_use_after_exchange, 1, "in use in epoch 2 (layer 2, forward) are of epoch 2; expected those of epoch 1"),
        (_exchange_once, 2, "in use in epoch 3 (layer 2, forward) are of epoch 1; expected those of epoch 2"),
    ],
)
def test_a_program_that_uses_rows_of_another_age_ends(
    emit: Any, trained: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_epoch_stale._LateStage, "emit", emit)
    folder = prepared_run(small_graph(), tmp_path / "run", 2, "model.kind=gcn", HIDDEN, *COMMON, *STALE)
    for messages, epochs in run_ranks(2, train_until_stopped, tmp_path / "ranks", str(folder), joined=False):
        assert len(messages) == 1
        assert message in messages[0]
        assert "fault of simgnn" in messages[0]
        assert epochs == trained
