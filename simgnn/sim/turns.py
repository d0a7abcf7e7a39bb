"""Turns in flight and streams at work: what the engine keeps while it runs."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import simpy

from simgnn.program.ops import Stream
from simgnn.program.program import Turn
from simgnn.sim.compiled import CompiledTemplate

ABSENT, DONE = -2, -1
"""In ``TurnState.waiting``: a rank has not opened the turn, or does not run the op; the op has ended."""


@dataclass(eq=False)
class TurnState:
    """A turn in flight. ``sized``: the turn with the epoch that its sizes are looked up with.

    ``waiting`` [P][ops]: how many predecessors of each op on each rank have not ended. ``left`` [P]: ops of each rank
    that have not ended. ``followers``: (rank, op) -> who waits for it, as (turn, rank, op).
    """

    number: int
    sized: Turn
    template: CompiledTemplate
    waiting: list[list[int]]
    left: list[int]
    followers: dict[tuple[int, int], list[tuple["TurnState", int, int]]] = field(default_factory=dict)


@dataclass(eq=False)
class Lane:
    """A stream of one rank or host. ``queue``: its ops in program order, where it communicates; ``ready``: ops that
    wait for nothing, as (turn number, op, rank, turn), where it does not. ``asleep``: servers without work."""

    stream: Stream
    queue: deque[tuple[TurnState, int, int]] = field(default_factory=deque)
    ready: list[tuple[int, int, int, TurnState]] = field(default_factory=list)
    asleep: deque[simpy.Event] = field(default_factory=deque)
    state: Any = None
    ended: int = 0


def describe_stuck(turns: Mapping[int, TurnState]) -> str:
    """What a program that waits for ever waits for."""
    waiting = [
        f"'{state.template.ops[index].op.name}' of epoch {state.sized.epoch + 1} on rank {rank}"
        for _, state in sorted(turns.items())
        for rank, row in enumerate(state.waiting)
        for index, count in enumerate(row)
        if count >= 0
    ]
    return (
        f"the program waits for ever: {len(waiting)} ops cannot end, the first of them {', '.join(waiting[:3])}; "
        f"expected every dependency and every group call to be met: check it with simgnn.program.validate"
    )
