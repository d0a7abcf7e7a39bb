"""Collects losses and evaluations while training runs, and ends a run whose loss is not finite."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from executor.recording.failure import NonFiniteError
from executor.state.buffers import Now
from executor.state.task import SPLITS
from simgnn.policy import METRICS, Metrics
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program, steps_that_complete
from simgnn.record.result import Accuracy

Observe = Callable[[Now, torch.Tensor], None]


class Observed(NamedTuple):
    """What is called with the values of metrics, by buffer; and the training ``steps`` of an epoch, ascending, in which
    metrics are complete."""

    by_buffer: dict[str, Observe]
    steps: tuple[int, ...]


def observers(program: Program, trained: Observe, evaluated: Observe) -> Observed:
    """Return the functions to call after the last write of each buffer of metrics in a step: ``trained`` for those of
    training, ``evaluated`` for those of evaluations. Both see sums that are complete: where chunks add to a buffer, its
    value after the last of them, summed over ranks."""
    found, noted = dict[str, Observe](), set[int]()
    for op in (op for _, op in program.ops if op.kind is OpKind.LOSS):
        evaluates = len(op.writes) == 1
        buffer = op.writes[0 if evaluates else 1].buffer
        steps = steps_that_complete(program, buffer)
        found[buffer] = _in_steps(evaluated if evaluates else trained, steps)
        noted.update(() if evaluates else steps)
    return Observed(found, tuple(sorted(noted)) or (program.calendar.steps - 1,))


def _in_steps(observe: Observe, steps: Collection[int]) -> Observe:
    def observe_then(now: Now, value: torch.Tensor) -> None:
        if now.step in steps:
            observe(now, value)

    return observe_then


class History:
    """Losses by epoch and evaluations, the same on every rank since they are sums over all ranks.

    On a GPU numbers are copied to the host asynchronously, and checked in :meth:`settle` at the latest.
    """

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.seconds: dict[int, float] = {}
        self._begun_s, self._latest = 0.0, -1
        self.evaluations: dict[int, list[float]] = {}
        self._coming: deque[tuple[Now, torch.Tensor, Any]] = deque()

    def begin(self) -> None:
        """Start the clock of :attr:`seconds`, by epoch: time to its end, less pauses between starts of a run."""
        self._begun_s = time.perf_counter() - max(self.seconds.values(), default=0.0)

    def observe(self, now: Now, metrics: torch.Tensor) -> None:
        """Note the training metrics of a step. Raises :class:`NonFiniteError`, on all ranks alike."""
        if metrics.device.type != "cuda":
            self._note(now, metrics)
            return
        host = torch.empty(metrics.shape, dtype=metrics.dtype, pin_memory=True)
        host.copy_(metrics, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(metrics.device))
        self._coming.append((now, host, event))
        self.settle(wait=False)

    def settle(self, wait: bool = True) -> None:
        """Check the numbers that have arrived, or all after a wait."""
        while self._coming and (wait or self._coming[0][2].query()):
            now, numbers, event = self._coming.popleft()
            event.synchronize()
            self._note(now, numbers)

    def observe_evaluation(self, now: Now, counts: torch.Tensor) -> None:
        """Note the metrics of an evaluation, of all splits."""
        self.evaluations[now.epoch] = counts.flatten().tolist()

    def _note(self, now: Now, metrics: torch.Tensor) -> None:
        found = Metrics.of(metrics)
        loss = found.loss
        if found.nonfinite or not math.isfinite(loss):
            raise NonFiniteError(
                f"the loss of epoch {now.epoch + 1} is not finite ({loss}); "
                "lower train.learning_rate, or look for extreme values in the features"
            )
        # steps of one epoch add up; each is divided by the same number of training rows
        self.losses[now.epoch] = loss if now.epoch != self._latest else self.losses[now.epoch] + loss
        self._latest = now.epoch
        self.seconds[now.epoch] = time.perf_counter() - self._begun_s

    def loss_of(self, epoch: int) -> float:
        """Return the training loss of an epoch that has ended."""
        self.settle()
        return self.losses[epoch]

    def accuracy_of(self, epoch: int) -> Accuracy | None:
        """Return the accuracy after an epoch, counted from 0; None if it was not evaluated."""
        counts = self.evaluations.get(epoch)
        return None if counts is None else _accuracy(epoch, counts)

    def accuracy(self) -> list[Accuracy]:
        """Return accuracy, or micro-F1, after each evaluated epoch (counted from 1); None for a split without rows."""
        return [_accuracy(epoch, counts) for epoch, counts in sorted(self.evaluations.items())]

    def state(self) -> dict[str, Any]:
        return {"losses": dict(self.losses), "evaluations": dict(self.evaluations), "seconds": dict(self.seconds)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.losses = dict(state["losses"])
        self.evaluations = dict(state["evaluations"])
        self.seconds = dict(state["seconds"])


def _accuracy(epoch: int, counts: Sequence[float]) -> Accuracy:
    values = {
        split: Metrics(*counts[position * METRICS : (position + 1) * METRICS]).accuracy
        for position, split in enumerate(SPLITS)
    }
    return Accuracy(epoch=epoch + 1, **values)
