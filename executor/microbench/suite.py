"""What is measured: the sizes of a full calibration and of a quick one, and the probes that they become."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from executor.microbench.aggregation import (
    GraphSpec,
    Subject,
    graph_subject,
    sparse_matmul_probes,
    spmm_probes,
    stream_subject,
)
from executor.microbench.attention import attention_probes, score_probes
from executor.microbench.coding import coding_probes, select_probes
from executor.microbench.dense import (
    copy_probes,
    elementwise_probes,
    gather_probes,
    loss_probes,
    matmul_probes,
    optimizer_probes,
)
from executor.microbench.network import Circle, collective_probes, exchange_probes, pair_exchange_probes, send_probes
from executor.microbench.pool import Pool
from executor.microbench.sampling import Draw, sampling_probes
from executor.microbench.streams import StreamSpec
from executor.microbench.timing import Plan, Probe, Who
from executor.microbench.world import World

KIB, MIB = 1 << 10, 1 << 20
Widths = tuple[int, ...]


@dataclass(frozen=True)
class Suite:
    """Sizes of one calibration. Shapes are (rows, inner, outer), (rows, width) or (rows, width, sources); ``sparse``:
    (rows, features, stored values a row, width); ``codes``: (rows, width, bits); ``draws``: :data:`Draw`; ``attended``:
    place of a graph and (width, heads) over it; ``scores``: (rows, width, heads). ``alone``:
    how long one rank is measured while the others wait. ``longest_s``: of a single message or collective between hosts;
    larger ones are left out."""

    pool_items: int
    matmul: Sequence[tuple[int, int, int]]
    graphs: Sequence[tuple[StreamSpec | GraphSpec, Widths]]
    sparse: Sequence[tuple[int, int, float, int]]
    elementwise: Sequence[tuple[int, int]]
    copies: Sequence[tuple[int, int]]
    gathers: Sequence[tuple[int, int, int]]
    losses: Sequence[tuple[int, int]]
    optimizers: Sequence[int]
    selects: Sequence[tuple[int, int]]
    codes: Sequence[tuple[int, int, int]]
    draws: Sequence[Draw]
    attended: Sequence[tuple[int, Sequence[tuple[int, int]]]]
    scores: Sequence[tuple[int, int, int]]
    messages: Sequence[int]
    collectives: Sequence[int]
    compute: Plan
    communicate: Plan
    alone: Plan | None
    longest_s: float


FULL = Suite(
    pool_items=96 * MIB,
    matmul=(
        (16, 16, 16),
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
    ),
    graphs=(
        (StreamSpec(100, 120, 4), (16, 64)),
        (StreamSpec(2_000, 2_200, 8), (7, 64, 256)),
        (StreamSpec(20_000, 20_000, 20), (16, 64, 256)),
        (StreamSpec(60_000, 80_000, 10), (40, 128, 256)),
        (StreamSpec(60_000, 66_000, 14, local=0.95, band=300), (16, 128, 256, 512)),
        (StreamSpec(40_000, 50_000, 25, local=0.6, band=2_000), (64, 256)),
        (StreamSpec(60_000, 80_000, 12, skew=0.8, degree_skew=1.0), (40, 128, 256)),
        (GraphSpec("communities", 20_000, 150_000, halo=0.1), (16, 64, 256)),
        (GraphSpec("communities", 80_000, 600_000, halo=0.1), (40, 128, 256)),
        (GraphSpec("rmat", 16_384, 160_000), (16, 256)),
        (GraphSpec("rmat", 65_536, 500_000), (64, 256)),
    ),
    sparse=(
        (1_300, 1_433, 18, 16),
        (1_300, 1_433, 18, 256),
        (9_000, 500, 50, 64),
        (9_000, 6_800, 60, 128),
        (17_000, 8_400, 33, 64),
        (20_000, 8_400, 33, 256),
        (4_000, 8_400, 33, 256),
        (30_000, 2_000, 20, 128),
        (30_000, 20_000, 20, 64),
    ),
    elementwise=(
        (16, 16),
        (1_000, 16),
        (2_500, 256),
        (17_000, 40),
        (17_000, 256),
        (60_000, 10),
        (50_000, 128),
        (85_000, 256),
    ),
    copies=((16, 64), (1_000, 64), (3_000, 128), (8_000, 128), (25_000, 256), (50_000, 256), (85_000, 256)),
    gathers=(
        (100, 256, 1_000),
        (1_000, 128, 10_000),
        (2_000, 40, 17_000),
        (8_000, 256, 17_000),
        (15_000, 64, 40_000),
        (30_000, 256, 85_000),
        (60_000, 64, 85_000),
    ),
    losses=((100, 7), (1_000, 40), (2_000, 10), (10_000, 5), (10_000, 47), (20_000, 16), (45_000, 40)),
    optimizers=(256, 10_000, 60_000, 200_000, 600_000, 1_500_000, 3_000_000),
    selects=((16, 16), (1_000, 64), (4_000, 256), (17_000, 40), (17_000, 256), (60_000, 64), (60_000, 256)),
    codes=(
        (16, 16, 8),
        (1_000, 64, 8),
        (4_000, 256, 8),
        (4_000, 256, 2),
        (17_000, 40, 8),
        (17_000, 256, 4),
        (17_000, 256, 8),
        (20_000, 128, 16),
        (40_000, 256, 8),
    ),
    draws=(
        ("communities", 20_000, 150_000, 100, 5),
        ("communities", 20_000, 150_000, 2_000, 15),
        ("communities", 80_000, 600_000, 1_000, 15),
        ("communities", 80_000, 600_000, 10_000, 10),
        ("communities", 80_000, 600_000, 40_000, 5),
        ("rmat", 65_536, 500_000, 1_000, 25),
        ("rmat", 65_536, 500_000, 10_000, 10),
        ("rmat", 65_536, 500_000, 30_000, 5),
    ),
    attended=(
        (0, ((16, 1), (64, 4))),
        (1, ((8, 8), (40, 1), (128, 4))),
        (2, ((16, 1), (64, 8))),
        (3, ((40, 1), (128, 4))),
        (4, ((16, 4), (64, 1), (256, 4))),
        (5, ((64, 4),)),
        (6, ((64, 4), (256, 1))),
        (7, ((16, 1), (64, 4), (256, 8))),
        (8, ((40, 1), (128, 4))),
        (9, ((16, 4), (256, 2))),
        (10, ((64, 4), (128, 1))),
    ),
    scores=(
        (16, 16, 1),
        (1_000, 64, 4),
        (5_000, 256, 4),
        (17_000, 40, 1),
        (17_000, 256, 8),
        (60_000, 64, 8),
        (85_000, 64, 1),
        (85_000, 256, 4),
    ),
    messages=tuple(4**power * KIB for power in range(9)),
    collectives=(32, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB),
    compute=Plan(budget_s=95.0, least=3, most=15),
    communicate=Plan(budget_s=20.0, least=5, most=25),
    alone=Plan(budget_s=20.0, least=2, most=5),
    longest_s=0.5,
)
QUICK = Suite(
    pool_items=24 * MIB,
    matmul=((16, 16, 16), (64, 256, 256), (2_000, 128, 64), (10_000, 256, 16), (10_000, 256, 128), (40_000, 64, 64)),
    graphs=(
        (StreamSpec(500, 600, 8), (16, 128)),
        (StreamSpec(20_000, 20_000, 15), (16, 64, 128)),
        (StreamSpec(20_000, 22_000, 15, local=0.95, band=300), (16, 64, 256)),
        (GraphSpec("communities", 12_000, 90_000, halo=0.1), (16, 64, 256)),
    ),
    sparse=(
        (300, 500, 18, 16),
        (1_300, 1_433, 18, 64),
        (4_000, 500, 50, 64),
        (4_000, 4_000, 30, 128),
        (6_000, 2_000, 20, 64),
        (8_000, 4_000, 30, 64),
        (8_000, 4_000, 30, 256),
    ),
    elementwise=((16, 16), (10_000, 16), (2_500, 128), (10_000, 128), (20_000, 256)),
    copies=((16, 64), (1_000, 64), (4_000, 64), (8_000, 128), (16_000, 256), (40_000, 256)),
    gathers=(
        (100, 64, 1_000),
        (1_000, 40, 5_000),
        (2_000, 256, 10_000),
        (5_000, 128, 10_000),
        (10_000, 256, 20_000),
        (20_000, 64, 40_000),
    ),
    losses=((100, 8), (1_000, 16), (2_000, 4), (3_000, 40), (10_000, 16)),
    optimizers=(256, 10_000, 100_000, 400_000, 1_500_000),
    selects=((16, 16), (1_000, 64), (4_000, 128), (2_000, 16), (10_000, 64), (40_000, 64), (20_000, 256)),
    codes=((16, 16, 8), (1_000, 64, 8), (4_000, 128, 2), (8_000, 64, 8), (8_000, 256, 8), (10_000, 128, 16)),
    draws=(
        ("communities", 12_000, 90_000, 100, 5),
        ("communities", 12_000, 90_000, 1_000, 10),
        ("communities", 12_000, 90_000, 5_000, 5),
        ("rmat", 16_384, 100_000, 1_000, 15),
        ("rmat", 16_384, 100_000, 8_000, 5),
    ),
    attended=(),  # its kernels alone would take what is left of 20 seconds to compile: results say that it is missing
    scores=(),
    messages=(KIB, 16 * KIB, 256 * KIB, 2 * MIB, 8 * MIB),
    collectives=(32, 16 * KIB, 512 * KIB),
    compute=Plan(budget_s=5.0, least=2, most=6),
    communicate=Plan(budget_s=4.0, least=3, most=20),
    alone=None,
    longest_s=0.3,
)


class Bench:
    """The suite's inputs on one rank, built once: the pool of dense rows and the graphs."""

    def __init__(self, suite: Suite, world: World, seed: int = 0) -> None:
        self.suite = suite
        self.world = world
        self.pool = Pool(suite.pool_items, world.device)
        self.subjects = [
            (self._subject(spec, seed + number), widths) for number, (spec, widths) in enumerate(suite.graphs)
        ]

    def _subject(self, spec: StreamSpec | GraphSpec, seed: int) -> Subject:
        build = graph_subject if isinstance(spec, GraphSpec) else stream_subject
        return build(spec, seed, self.world.device)  # type: ignore[arg-type]

    def compute_probes(self, who: Who = "all") -> list[Probe]:
        """Device work of one concurrency level."""
        suite, pool = self.suite, self.pool
        profiled = self.world.rank == 0
        return [
            *matmul_probes(pool, suite.matmul, who),
            *(probe for one, widths in self.subjects for probe in spmm_probes(pool, one, widths, profiled, who)),
            *sparse_matmul_probes(pool, suite.sparse, self.world.device, profiled, who),
            *elementwise_probes(pool, suite.elementwise, who),
            *copy_probes(pool, suite.copies, who),
            *gather_probes(pool, suite.gathers, who),
            *loss_probes(pool, suite.losses, who),
            *optimizer_probes(suite.optimizers, who),
            *select_probes(pool, suite.selects, who),
            *coding_probes(pool, suite.codes, who),
            *sampling_probes(suite.draws, who),
            *(
                probe
                for place, shapes in suite.attended
                for probe in attention_probes(pool, self.subjects[place][0], shapes, profiled, who)
            ),
            *score_probes(pool, suite.scores, who),
        ]


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
