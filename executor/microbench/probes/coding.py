"""Probes of what policies do with rows: choosing those that moved, encoding and decoding them, as training does."""

from collections.abc import Iterator

from executor.microbench.probes.bench import Bench, float32, measures
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World
from executor.policies.accelerated import measured_cache, measured_codec
from simgnn.hardware.primitives import DECODE, ENCODE, SELECT
from simgnn.policy import PolicyContext

DTYPE = "float32"
HERE = PolicyContext(0, 0, 0, 0, "forward", 0, 1)


@measures(
    SELECT,
    full=((16, 16), (1_000, 64), (4_000, 256), (17_000, 40), (17_000, 256), (60_000, 64), (60_000, 256)),
    quick=((16, 16), (1_000, 64), (4_000, 128), (2_000, 16), (10_000, 64), (40_000, 64), (20_000, 256)),
)
def select_probes(bench: Bench, rows: int, width: int) -> Iterator[Probe]:
    """Which rows moved from those that were sent last."""

    def make(world: World) -> Run:
        policy, table = measured_cache(), bench.pool.matrix(rows, width)
        cached, state = bench.pool.matrix(rows, width).clone(), policy.init(HERE)
        return lambda: policy.moved(HERE, table, cached, state)

    yield Probe(SELECT.name, "moved", float32(rows=rows, width=width), make)


@measures(
    ENCODE,
    DECODE,
    full=(
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
    quick=((16, 16, 8), (1_000, 64, 8), (4_000, 128, 2), (8_000, 64, 8), (8_000, 256, 8), (10_000, 128, 16)),
)
def coding_probes(bench: Bench, rows: int, width: int, bits: int) -> Iterator[Probe]:
    """Linear codes of dense rows, and rows from them."""
    policy = measured_codec(bits)

    def encode(world: World) -> Run:
        table = bench.pool.matrix(rows, width)
        return lambda: policy.pack(table)

    def decode(world: World) -> Run:
        packed = policy.pack(bench.pool.matrix(rows, width))
        return lambda: policy.decode(HERE, packed, width, DTYPE)

    sizes = float32(rows=rows, width=width, row_bytes=policy.row_bytes(width, DTYPE))
    yield Probe(ENCODE.name, f"{bits}-bit", sizes, encode)
    yield Probe(DECODE.name, f"{bits}-bit", sizes, decode)
