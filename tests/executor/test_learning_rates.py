"""Learning rates and L2 penalties are those of plain PyTorch: its schedulers, its parameter groups."""

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from executor.state.learning_rate import LearningRates
from executor.state.optimizer import FlatOptimizer, decayed_groups
from simgnn.experiment.load import load_experiment

EPOCHS = 14
LOSSES = [1.0, 0.8, 0.79995, 0.7999, 0.9, 0.9, 0.9, 0.9, 0.3, 0.3, 0.3, 0.3, 0.3, 0.29]
ACCURACIES = [0.1, 0.5, 0.5, 0.4, 0.5, 0.50001, 0.6, 0.6, 0.6, 0.6, 0.6, 0.59, 0.6, 0.6]
EVERY = 2
"""Epochs between evaluations."""
PLAIN: dict[str, tuple[dict[str, Any], Any]] = {
    "constant": ({}, lambda it: lr_scheduler.ConstantLR(it, factor=1.0)),
    "cosine": ({}, lambda it: lr_scheduler.CosineAnnealingLR(it, EPOCHS)),
    "cosine-again": ({"t_max": 5, "eta_min": 0.002}, lambda it: lr_scheduler.CosineAnnealingLR(it, 5, eta_min=0.002)),
    "step": ({"step_size": 3}, lambda it: lr_scheduler.StepLR(it, 3)),
    "step-gamma": ({"step_size": 4, "gamma": 0.5}, lambda it: lr_scheduler.StepLR(it, 4, gamma=0.5)),
    "plateau": ({"patience": 2}, lambda it: lr_scheduler.ReduceLROnPlateau(it, patience=2)),
    "plateau-options": (
        {"patience": 1, "factor": 0.3, "threshold": 0.01, "threshold_mode": "abs", "cooldown": 2, "min_lr": 0.004},
        lambda it: lr_scheduler.ReduceLROnPlateau(
            it, patience=1, factor=0.3, threshold=0.01, threshold_mode="abs", cooldown=2, min_lr=0.004
        ),
    ),
    "plateau-validation": (
        {"metric": "validation", "patience": 1},
        lambda it: lr_scheduler.ReduceLROnPlateau(it, mode="max", patience=1),
    ),
}
"""Options, and the scheduler that a user of PyTorch would write."""


def settings_of(case: str, *more: str) -> dict[str, Any]:
    """The fields of ``[train]`` as a run has them."""
    key, kind = "train.learning_rate_schedule", case.partition("-")[0]
    options = [f"{key}.{name}={value}" for name, value in PLAIN[case][0].items()]
    chosen = [f"train.epochs={EPOCHS}", f"train.eval_every={EVERY}", f"{key}.kind={kind}", *options, *more]
    return load_experiment("vanilla", chosen).train.model_dump(mode="json")


def validation_of(epoch: int) -> float | None:
    return ACCURACIES[epoch] if (epoch + 1) % EVERY == 0 else None


def rates_of(settings: dict[str, Any]) -> LearningRates:
    return LearningRates(settings, LOSSES.__getitem__, validation_of)


def layers() -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [torch.nn.Linear(5, 4, dtype=torch.float64), torch.nn.Linear(4, 3, dtype=torch.float64)]


def gradients(models: list[torch.nn.Module], epoch: int) -> None:
    """Write gradients that depend on epoch and parameters."""
    for parameter in (parameter for model in models for parameter in model.parameters()):
        parameter.grad = torch.sin(parameter.detach() * (epoch + 1))


DECAYS = ((0.0, True), (0.1, False), ([0.2, 0.05], True), ([0.3, 0.0], False))
CHECKED = [("adam", case, [0.2, 0.05], True) for case in PLAIN]
CHECKED += [(optimizer, "step", *decay) for optimizer in ("adam", "sgd") for decay in DECAYS]


@pytest.mark.parametrize(("optimizer", "case", "decay", "biases"), CHECKED)
def test_training_is_that_of_plain_pytorch(optimizer: str, case: str, decay: Any, biases: bool) -> None:
    more = [f"train.optimizer={optimizer}", f"train.weight_decay={decay}"]
    more += ["train.momentum=0.9"] if optimizer == "sgd" else []
    more += [] if biases else ["train.decay_biases=false"]
    settings = settings_of(case, *more)
    ours, theirs = layers(), layers()
    flat, rates = FlatOptimizer(ours, settings), rates_of(settings)
    groups = []
    for number, layer in enumerate(theirs):
        own = decay[number] if isinstance(decay, list) else decay
        groups += [
            {"params": [layer.weight], "weight_decay": own},
            {"params": [layer.bias], "weight_decay": own if biases else 0.0},
        ]
    rate = settings["learning_rate"]
    plain: torch.optim.Optimizer = torch.optim.Adam(groups, lr=rate, foreach=False)
    if optimizer == "sgd":
        plain = torch.optim.SGD(groups, lr=rate, momentum=0.9, foreach=False)
    scheduler = PLAIN[case][1](plain)
    used = []
    for epoch in range(EPOCHS):
        flat.rate = rates.of(epoch)
        used.append(flat.rate)
        assert flat.rate == plain.param_groups[0]["lr"], epoch
        gradient = torch.cat([torch.sin(p.detach() * (epoch + 1)).reshape(-1) for m in ours for p in m.parameters()])
        flat.gradient.copy_(gradient)
        flat.step()
        gradients(theirs, epoch)
        plain.step()
        if not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step()
        elif case != "plateau-validation":
            scheduler.step(LOSSES[epoch])
        elif (value := validation_of(epoch)) is not None:
            scheduler.step(value)
    assert (len(set(used)) > 1) == (case != "constant")
    expected = torch.cat([p.detach().reshape(-1) for m in theirs for p in m.parameters()])
    assert torch.allclose(flat.flat.detach(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", PLAIN)
def test_rates_go_on_from_a_checkpoint(case: str) -> None:
    settings = settings_of(case)
    whole = rates_of(settings)
    expected = [whole.of(epoch) for epoch in range(EPOCHS)]
    for ended in (1, 5, 9):
        first, second = rates_of(settings), rates_of(settings)
        second.load_state_dict(first.state_dict(ended))
        assert [second.of(epoch) for epoch in range(EPOCHS)] == expected


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_state_of_parameter_groups_goes_on_from_a_checkpoint(optimizer: str) -> None:
    settings = {"optimizer": optimizer, "learning_rate": 0.1, "momentum": 0.9 * (optimizer == "sgd"),
                "weight_decay": [0.1, 0.3], "decay_biases": False}  # fmt: skip
    found = []
    for stopped in (False, True):
        one = FlatOptimizer(layers(), settings)
        for epoch in range(6):
            if stopped and epoch == 3:
                state = one.state_dict()
                one = FlatOptimizer(layers(), settings)
                one.load_state_dict(state)
            one.gradient.copy_(torch.cos(one.flat.detach() * epoch))
            one.step()
        found.append(one.flat.detach().clone())
    assert torch.equal(found[0], found[1])


def test_neighbours_with_the_same_penalty_are_one_group() -> None:
    assert [group.decay for group in decayed_groups(layers(), 0.1)] == [0.1]
    assert [group.decay for group in decayed_groups(layers(), [0.1, 0.1])] == [0.1]
    parts = decayed_groups(layers(), [0.1, 0.2], biases=False)
    assert [(group.part.stop - group.part.start, group.decay) for group in parts] == [
        (20, 0.1), (4, 0.0), (12, 0.2), (3, 0.0)
    ]  # fmt: skip
