"""What the engine keeps of turns in flight and of streams at work, beside the bookkeeping of the dispatcher."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from simgnn.program.dispatch import DONE, Lane, OpenTurn
from simgnn.program.program import Turn
from simgnn.sim.engine.compiled import CompiledTemplate


@dataclass(eq=False)
class SharedTurn:
    """What all ranks share of a turn in flight. ``sized``: the turn with the epoch that its sizes are looked up with;
    ``ranks``: how many ranks have ops left in it."""

    sized: Turn
    template: CompiledTemplate
    ranks: int


@dataclass(eq=False)
class ServedLane(Lane[SharedTurn]):
    """A stream of one rank or host. ``asleep``: its servers without work."""

    asleep: deque[simpy.Event] = field(default_factory=deque)

    def wake(self) -> None:
        """Let a server that sleeps look for work."""
        if self.asleep:
            self.asleep.popleft().succeed()


def describe_stuck(turns: Mapping[int, Sequence[OpenTurn[SharedTurn]]]) -> str:
    """What a program that waits for ever waits for."""
    waiting = [
        f"'{op.name}' of epoch {turn.epoch + 1} on rank {turn.on.rank}"
        for _, ranks in sorted(turns.items())
        for turn in ranks
        for op, count in zip(turn.order.ops, turn.waiting, strict=True)
        if turn.opened and count != DONE
    ]
    return (
        f"the program waits for ever: {len(waiting)} ops cannot end, the first of them {', '.join(waiting[:3])}; "
        f"expected every dependency and every group call to be met: check it with simgnn.program.validate"
    )
