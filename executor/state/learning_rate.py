"""The learning rate of each epoch, computed by the schedulers of ``torch.optim.lr_scheduler``."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau, StepLR


class _RateHolder(torch.optim.Optimizer):
    """An optimizer without parameters, whose learning rate a scheduler changes.

    It does not call the constructor of its base, which imports a compiler (100 MB, 1.5 s of a core).
    """

    def __init__(self, rate: float) -> None:
        self.param_groups = [{"params": [], "lr": rate}]
        self.defaults, self.state = {"lr": rate}, {}  # type: ignore[assignment]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing: schedulers warn about an optimizer that never makes a step."""

    @property
    def rate(self) -> float:
        return float(self.param_groups[0]["lr"])


class LearningRates:
    """The learning rate of every epoch, epochs counted from 0. Every rank computes the same ones.

    ``train``: the fields of ``[train]``. ``loss_of``: the training loss of a finished epoch; ``validation_of``: its
    validation accuracy, None if it was not evaluated. Only a plateau asks for them, when the next epoch's rate is
    needed.
    """

    def __init__(
        self,
        train: Mapping[str, Any],
        loss_of: Callable[[int], float],
        validation_of: Callable[[int], float | None],
    ) -> None:
        self._holder = _RateHolder(float(train["learning_rate"]))
        self._scheduler, self._metric = _scheduler(self._holder, train)
        self._value_of = {"loss": loss_of, "validation": validation_of}.get(self._metric)
        self._rates = [self._holder.rate]

    def of(self, epoch: int) -> float:
        """Return the learning rate of an epoch whose predecessors have ended."""
        while len(self._rates) <= epoch:
            self._advance(len(self._rates) - 1)
        return self._rates[epoch]

    def _advance(self, ended: int) -> None:
        self._holder.step()
        if isinstance(self._scheduler, ReduceLROnPlateau):
            assert self._value_of is not None
            value = self._value_of(ended)
            if value is not None:
                self._scheduler.step(value)
        elif self._scheduler is not None:
            self._scheduler.step()
        self._rates.append(self._holder.rate)

    def state_dict(self, epochs: int) -> dict[str, Any]:
        """Return the state after ``epochs`` epochs, with the rate of the next one."""
        self.of(epochs)
        scheduler = {} if self._scheduler is None else self._scheduler.state_dict()
        return {"rates": self._rates[: epochs + 1], "scheduler": scheduler}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rates = list(state["rates"])
        self._holder.param_groups[0]["lr"] = self._rates[-1]
        if self._scheduler is not None:
            self._scheduler.load_state_dict(dict(state["scheduler"]))


def _scheduler(holder: _RateHolder, train: Mapping[str, Any]) -> tuple[LRScheduler | ReduceLROnPlateau | None, str]:
    """Return torch's scheduler, and the name of the metric that it needs ("" for none)."""
    options = dict(train.get("learning_rate_schedule") or {"kind": "constant"})
    kind = options.pop("kind")
    if kind == "cosine":
        t_max = options.pop("t_max") or int(train["epochs"])
        return CosineAnnealingLR(holder, t_max, **options), ""
    if kind == "step":
        return StepLR(holder, **options), ""
    if kind == "plateau":
        metric = options.pop("metric")
        return ReduceLROnPlateau(holder, mode="max" if metric == "validation" else "min", **options), metric
    assert kind == "constant", kind
    return None, ""
