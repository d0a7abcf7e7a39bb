"""Schedules as a user writes them: they import what a policy is and the nouns of a program, nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from simgnn.policy import Schedule
from simgnn.program.dispatch import Observed, Ready
from simgnn.program.ops import Dependency, Nature, Op, Stream


class Aside(Schedule):
    """Small messages that steer a run, such as sums of metrics, travel on a stream of their own."""

    kind: Literal["aside"] = "aside"

    def stream(self, nature: Nature, op: Op) -> Stream:
        """A stream with a process group of its own for control messages."""
        if nature is Nature.COMMUNICATION and op.transfer is not None and op.transfer.control:
            return Stream("aside", group="aside")
        return super().stream(nature, op)


class InOrder(Schedule):
    """Each op waits for the one before it."""

    kind: Literal["in-order"] = "in-order"

    def after(self, nature: Nature, op: Op, before: Sequence[Op]) -> Sequence[Dependency]:
        """The op before."""
        return [Dependency(before[-1].name)] if before else []


class ByRows(Schedule):
    """Of the ready ops the last one while a decision is odd, else the first. The state is all that was seen."""

    kind: Literal["by-rows"] = "by-rows"
    decision: str

    def init_pick(self) -> tuple[Any, ...]:
        """Nothing was seen."""
        return ()

    def pick(self, ready: Sequence[Ready], observed: Observed, state: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        """By what ended ops have decided."""
        known: Mapping[str, int] = observed.decisions
        choice = len(ready) - 1 if known.get(self.decision, 0) % 2 else 0
        return choice, (*state, (tuple(ready), dict(known), dict(observed.ended), choice))
