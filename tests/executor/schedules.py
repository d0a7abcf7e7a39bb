"""A schedule that results must not depend on."""

import random
from collections.abc import Sequence

from simgnn.program.dispatch import Observed, Ready


class SeededRandom:
    """Any ready op, by a seeded draw."""

    picks = True

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def init_pick(self) -> random.Random:
        """A generator of its own."""
        return random.Random(self.seed)

    def pick(self, ready: Sequence[Ready], observed: Observed, state: random.Random) -> tuple[int, random.Random]:
        """A uniform draw."""
        return state.randrange(len(ready)), state
