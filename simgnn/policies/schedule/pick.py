"""Which ready op of a stream runs next: how schedules choose. A communicating stream never asks.

The simulator and the executor ask alike: a schedule sees the same ops in the same order.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Ready(NamedTuple):
    """An op whose dependencies have ended. Sequences of these are in program order, earlier turns first."""

    epoch: int
    step: int
    op_id: int
    name: str


class Observed(NamedTuple):
    """What a schedule may look at: decisions so far, and how many ops of each stream have ended."""

    decisions: Mapping[str, int]
    ended: Mapping[str, int]


class Pick(Protocol):
    """A schedule at run time: a frozen value; its state, which must be hashable, goes in and comes out."""

    def init(self) -> Any:
        """State before the first choice."""
        ...

    def pick(self, ready: Sequence[Ready], observed: Observed, state: Any) -> tuple[int, Any]:
        """Index of the op that runs next, and the new state."""
        ...


class ProgramOrder:
    """The first ready op in program order."""

    def init(self) -> None:
        """No state."""

    def pick(self, ready: Sequence[Ready], observed: Observed, state: None) -> tuple[int, None]:
        """Always the first."""
        return 0, None
