"""What is measured: the probes of a full calibration and of a quick one."""

from collections.abc import Sequence
from dataclasses import dataclass

from executor.microbench.dense import (
    copy_probes,
    elementwise_probes,
    gather_probes,
    loss_probes,
    matmul_probes,
    optimizer_probes,
)
from executor.microbench.network import network_probes
from executor.microbench.pool import Pool
from executor.microbench.timing import Plan, Probe
from executor.microbench.world import World, threads_per_rank

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Suite:
    """Sizes of one calibration. Shapes are (rows, inner, outer), (rows, width) or (rows, width, sources)."""

    pool_items: int
    matmul: Sequence[tuple[int, int, int]]
    elementwise: Sequence[tuple[int, int]]
    copies: Sequence[tuple[int, int]]
    gathers: Sequence[tuple[int, int, int]]
    losses: Sequence[tuple[int, int]]
    optimizers: Sequence[int]
    messages: Sequence[int]
    collectives: Sequence[int]
    compute: Plan
    communicate: Plan


FULL = Suite(
    pool_items=96 * MIB,
    matmul=(
        (64, 256, 256),
        (700, 1433, 16),
        (2_000, 64, 64),
        (5_000, 500, 32),
        (8_000, 256, 7),
        (17_000, 256, 40),
        (17_000, 256, 256),
        (35_000, 128, 128),
        (60_000, 100, 47),
        (85_000, 128, 256),
        (85_000, 256, 40),
        (85_000, 256, 256),
        (170_000, 128, 256),
    ),
    elementwise=((16, 16), (1_000, 16), (2_500, 256), (17_000, 40), (17_000, 256), (50_000, 128), (85_000, 256)),
    copies=((16, 64), (1_000, 64), (8_000, 128), (25_000, 256), (85_000, 256)),
    gathers=((100, 256, 1_000), (2_000, 40, 17_000), (8_000, 256, 17_000), (30_000, 256, 85_000), (60_000, 64, 85_000)),
    losses=((100, 7), (2_000, 40), (17_000, 5), (45_000, 40), (85_000, 40)),
    optimizers=(16, 128, 256, 512),
    messages=tuple(4**power * KIB for power in range(9)),
    collectives=(32, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB),
    compute=Plan(budget_s=75.0, least=3, most=12),
    communicate=Plan(budget_s=20.0, least=5, most=20),
)
QUICK = Suite(
    pool_items=24 * MIB,
    matmul=((64, 256, 256), (2_000, 128, 64), (10_000, 256, 16), (10_000, 256, 256), (40_000, 64, 128)),
    elementwise=((16, 16), (2_500, 128), (10_000, 256), (40_000, 256)),
    copies=((16, 64), (8_000, 128), (32_000, 256)),
    gathers=((100, 64, 1_000), (5_000, 256, 10_000), (20_000, 64, 40_000)),
    losses=((100, 8), (10_000, 16)),
    optimizers=(16, 256),
    messages=(KIB, 16 * KIB, 256 * KIB, 2 * MIB, 16 * MIB),
    collectives=(32, 16 * KIB, 512 * KIB),
    compute=Plan(budget_s=6.0, least=2, most=6),
    communicate=Plan(budget_s=2.0, least=3, most=10),
)


def compute_probes(suite: Suite, pool: Pool, who: str = "all") -> list[Probe]:
    """Device work of one concurrency level."""
    assert who in ("all", "alone")
    level = "all" if who == "all" else "alone"
    return [
        *matmul_probes(pool, suite.matmul, level),
        *elementwise_probes(pool, suite.elementwise, level),
        *copy_probes(pool, suite.copies, level),
        *gather_probes(pool, suite.gathers, level),
        *loss_probes(pool, suite.losses, level),
        *optimizer_probes(suite.optimizers, level),
    ]


def communication_probes(suite: Suite, world: World) -> list[Probe]:
    """Transfers of this group."""
    return network_probes(world.ranks, suite.messages, suite.collectives, seed=1)


__all__ = ["FULL", "QUICK", "Suite", "communication_probes", "compute_probes", "threads_per_rank"]
