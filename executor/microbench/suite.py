"""What is measured: the sizes of a full calibration and of a quick one, and the probes of communication.

The modules of :data:`MODULES` register the probes of device work (:func:`executor.microbench.probes.bench.measures`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log2
from typing import Self

import torch

from executor.handlers.wire import all_to_all
from executor.microbench.probes import aggregation, dense, sampling
from executor.microbench.probes.network import Circle
from executor.microbench.timing import Plan, Probe
from executor.microbench.world import World

KIB, MIB = 1 << 10, 1 << 20
MODULES = (aggregation, dense, sampling)
"""The modules whose functions measure device work."""
PILOT_BYTES = 1 << 20
ITEM_BYTES = 4
FEWEST = 3
"""Fewest sizes from which a fixed cost and a rate can be fitted."""


@dataclass(frozen=True)
class Suite:
    """Sizes of a calibration; shapes of device work are beside the functions that measure it. ``alone``: how long one
    rank is measured while the others wait. ``longest_s``: a message or collective between hosts that would take longer
    is left out."""

    quick: bool
    pool_items: int
    messages: Sequence[int]
    collectives: Sequence[int]
    compute: Plan
    communicate: Plan
    alone: Plan | None
    longest_s: float

    def host_probes(self, world: World) -> list[Probe]:
        """Return probes of transfers among the ranks of each host, all hosts at once."""
        probes: list[Probe] = []
        groups = [world.group(ranks) for ranks in world.members]
        for count in sorted({len(ranks) for ranks in world.members} - {1}):
            mine = next((group for group in groups if group is not None and len(group.members) == count), None)
            circle = Circle(count, mine, "host")
            probes += circle.send_probes(self.messages)
            probes += circle.exchange_probes(self.messages, seed=1)
            probes += circle.collective_probes(self.collectives)
        return probes

    def pair_probes(self, world: World) -> list[Probe]:
        """Return probes between every two hosts, pair by pair: one message, and all ranks to all of the other host."""
        probes: list[Probe] = []
        for one, other in combinations(range(len(world.members)), 2):
            ranks = (*world.members[one], *world.members[other])
            circle = Circle(len(ranks), world.group(ranks), "all")
            members = sorted(ranks)
            ends = members.index(world.members[one][0]), members.index(world.members[other][0])
            probes += circle.send_probes(self.messages, *ends)
            probes += circle.pair_exchange_probes(self.messages, [world.hosts[rank] for rank in members])
        return probes

    def cluster_probes(self, world: World) -> list[Probe]:
        """Return probes of transfers among all ranks of all hosts at once."""
        circle = Circle(world.ranks, world.group(range(world.ranks)), "all")
        return [*circle.exchange_probes(self.messages, seed=1), *circle.collective_probes(self.collectives)]

    def affordable(self, seconds_per_byte: float) -> Self:
        """Return the suite without messages and collectives that would take more than ``longest_s``, but with the
        largest power of two that takes less. The ``FEWEST`` smallest sizes stay in any case, since a fit needs them."""
        most = self.longest_s / seconds_per_byte

        def fitting(sizes: Sequence[int]) -> tuple[int, ...]:
            ordered = sorted(sizes)
            kept = [size for place, size in enumerate(ordered) if size <= most or place < FEWEST]
            largest = 1 << int(log2(max(most, 1.0)))
            return tuple(kept if len(kept) == len(ordered) or largest <= kept[-1] else [*kept, largest])

        return replace(self, messages=fitting(self.messages), collectives=fitting(self.collectives))


FULL = Suite(
    quick=False,
    pool_items=96 * MIB,
    messages=tuple(4**power * KIB for power in range(9)),
    collectives=(32, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB),
    compute=Plan(budget_s=95.0, least=3, most=15),
    communicate=Plan(budget_s=20.0, least=5, most=25),
    alone=Plan(budget_s=20.0, least=2, most=5),
    longest_s=0.5,
)
QUICK = Suite(
    quick=True,
    pool_items=24 * MIB,
    messages=(KIB, 16 * KIB, 256 * KIB, 2 * MIB, 8 * MIB),
    collectives=(32, 16 * KIB, 512 * KIB),
    compute=Plan(budget_s=5.0, least=2, most=6),
    communicate=Plan(budget_s=4.0, least=3, most=20),
    alone=None,
    longest_s=0.3,
)


def slowest_pair_s(world: World) -> float:
    """Seconds per byte, on the slowest rank, of an exchange in which every rank sends as much to every other.

    Links between hosts may be a thousand times slower than those inside one, so this is timed before anything else.
    """
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
