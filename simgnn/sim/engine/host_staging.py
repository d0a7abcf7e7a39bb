"""Calls of a library that sends from host memory, on the ranks of GPUs.

What a rank sends is copied from its device to its host's memory before it takes part, and what it has received to its
device after: whole buffers, as the executor hands them over (``executor/handlers/wire.py``). The copies are fluids on
the links between, so they contend with all else that crosses them. Ids and counts of a fetch are copied with its rows.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np
import simpy

from simgnn.program.kinds import OpKind
from simgnn.program.sizes import IntArray
from simgnn.sim.engine.op_prices import Messages


class Staged(NamedTuple):
    """Bytes that each rank copies out of its device before a call, and into it after; int64 [P] each."""

    out: IntArray
    back: IntArray


def of_messages(rounds: Sequence[Messages], ranks: int) -> Staged:
    """All that each rank sends and receives in the rounds of a pairwise op."""
    out, back = np.zeros(ranks), np.zeros(ranks)
    for messages in rounds:
        out += np.bincount(messages.pairs.source, messages.sizes, ranks)
        back += np.bincount(messages.pairs.target, messages.sizes, ranks)
    return Staged(out.astype(np.int64), back.astype(np.int64))


def of_collective(kind: OpKind, handed: IntArray, members: Sequence[int]) -> Staged:
    """``handed`` [P]: bytes of the tensor that each rank hands over (of a broadcast: the root's alone)."""
    out, back = np.zeros_like(handed), np.zeros_like(handed)
    mine = list(members)
    out[mine] = handed[mine]
    if kind is OpKind.ALLREDUCE:
        back[mine] = handed[mine]
    elif kind is OpKind.ALLGATHER:
        back[mine] = handed[mine].sum()
    elif kind is OpKind.BROADCAST:
        back[mine] = np.where(handed[mine] > 0, 0, handed[mine].max(initial=0))
    return Staged(out, back)


def copied_around(
    env: simpy.Environment,
    copy: Callable[[int, bool], simpy.Event | None],
    out: int,
    back: int,
    take_part: Callable[[], int | simpy.Event],
) -> simpy.Event:
    """An event at the end of: ``out`` bytes off the device, the call, ``back`` bytes onto it. ``copy(bytes,
    to_device)``: starts a copy; None where it takes no time."""

    def steps() -> Generator[simpy.Event, object, None]:
        before = copy(out, False)
        if before is not None:
            yield before
        outcome = take_part()
        if isinstance(outcome, simpy.Event):
            yield outcome
        elif outcome:
            yield env.timeout(outcome)
        after = copy(back, True)
        if after is not None:
            yield after

    return env.process(steps())
