"""What is measured: the sizes of a full calibration and of a quick one, and the probes of communication.

The modules of :data:`MODULES` register the probes of device work (:func:`executor.microbench.probes.bench.measures`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from executor.microbench.probes import aggregation, attention, coding, dense, sampling
from executor.microbench.probes.bench import Bench
from executor.microbench.probes.network import (
    Circle,
    collective_probes,
    exchange_probes,
    pair_exchange_probes,
    send_probes,
)
from executor.microbench.timing import Plan, Probe
from executor.microbench.world import World

KIB, MIB = 1 << 10, 1 << 20
MODULES = (dense, aggregation, coding, sampling, attention)
"""The modules whose functions measure device work."""


@dataclass(frozen=True)
class Suite:
    """Sizes of one calibration; shapes of device work stand beside the function that measures it. ``alone``: how long
    one rank is measured while the others wait. ``longest_s``: of a single message or collective between hosts; larger
    ones are left out."""

    quick: bool
    pool_items: int
    messages: Sequence[int]
    collectives: Sequence[int]
    compute: Plan
    communicate: Plan
    alone: Plan | None
    longest_s: float

    def bench(self, world: World) -> Bench:
        """The inputs of device work on one rank."""
        return Bench(world, self.pool_items, self.quick)


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


def host_probes(suite: Suite, world: World) -> list[Probe]:
    """Transfers among the ranks of each host by itself, all hosts at once."""
    probes: list[Probe] = []
    groups = [world.group(ranks) for ranks in world.members]
    for count in sorted({len(ranks) for ranks in world.members} - {1}):
        mine = next((group for group in groups if group is not None and len(group.members) == count), None)
        circle = Circle(count, mine, "host")
        probes += send_probes(circle, suite.messages)
        probes += exchange_probes(circle, suite.messages, seed=1)
        probes += collective_probes(circle, suite.collectives)
    return probes


def pair_probes(suite: Suite, world: World) -> list[Probe]:
    """Transfers between every two hosts, one pair after another: one message, and all ranks to all of the other."""
    probes: list[Probe] = []
    for one, other in combinations(range(len(world.members)), 2):
        ranks = (*world.members[one], *world.members[other])
        circle = Circle(len(ranks), world.group(ranks), "all")
        members = sorted(ranks)
        ends = members.index(world.members[one][0]), members.index(world.members[other][0])
        probes += send_probes(circle, suite.messages, *ends)
        probes += pair_exchange_probes(circle, suite.messages, [world.hosts[rank] for rank in members])
    return probes


def cluster_probes(suite: Suite, world: World) -> list[Probe]:
    """Transfers among all ranks of all hosts at once."""
    circle = Circle(world.ranks, world.group(range(world.ranks)), "all")
    return [*exchange_probes(circle, suite.messages, seed=1), *collective_probes(circle, suite.collectives)]
