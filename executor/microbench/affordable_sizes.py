"""Which sizes a calibration across hosts can afford: links between hosts may be a thousand times slower than one host.

One exchange of a middle size is timed before anything is measured, and sizes that would take too long are left out.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import log2

import torch

from executor.handlers.wire import all_to_all
from executor.microbench.suite import Suite
from executor.microbench.world import World

PILOT_BYTES = 1 << 20
ITEM_BYTES = 4
FEWEST = 3
"""Sizes, at least: of fewer no floor can be told from a rate."""


def slowest_pair_s(world: World) -> float:
    """Seconds per byte of an exchange in which every rank sends as many bytes to every other: of the slowest rank."""
    group = world.group(range(world.ranks))
    assert group is not None  # every rank is a member
    items = [0 if rank == world.rank else PILOT_BYTES // ITEM_BYTES for rank in range(world.ranks)]
    payload = torch.ones(sum(items), device=world.device)
    elapsed = 0.0
    for _ in range(2):  # the first makes the connections
        world.barrier()
        start = time.perf_counter()
        all_to_all(payload, items, items, group)
        world.synchronize()
        elapsed = time.perf_counter() - start
    return float(max(world.gather(elapsed))) / PILOT_BYTES


def affordable(suite: Suite, seconds_per_byte: float) -> Suite:
    """The suite without messages and collectives that would take more than ``suite.longest_s``, but for the smallest
    ``FEWEST``, without which nothing is fitted; in their place the largest power of two that does not."""
    most = suite.longest_s / seconds_per_byte

    def fitting(sizes: Sequence[int]) -> tuple[int, ...]:
        ordered = sorted(sizes)
        kept = [size for place, size in enumerate(ordered) if size <= most or place < FEWEST]
        largest = 1 << int(log2(max(most, 1.0)))
        return tuple(kept if len(kept) == len(ordered) or largest <= kept[-1] else [*kept, largest])

    return replace(suite, messages=fitting(suite.messages), collectives=fitting(suite.collectives))
