"""Which ready op of a stream runs next: the seam for schedules. A communicating stream never asks."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from executor.buffers import Now


class Ready(NamedTuple):
    """An op whose dependencies have ended. Sequences of these are in program order, earlier turns first."""

    now: Now
    op_id: int
    name: str


class Observed(NamedTuple):
    """What a schedule may look at: decisions so far, and how many ops of each stream have ended."""

    decisions: Mapping[str, int]
    ended: Mapping[str, int]


class Pick(Protocol):
    """A schedule at run time: a frozen value; its state goes in and comes out."""

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


class SeededRandom:
    """Any ready op, by a seeded draw: results must not depend on it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def init(self) -> random.Random:
        """A generator of its own."""
        return random.Random(self.seed)

    def pick(self, ready: Sequence[Ready], observed: Observed, state: random.Random) -> tuple[int, random.Random]:
        """A uniform draw."""
        return state.randrange(len(ready)), state
