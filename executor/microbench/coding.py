"""Probes of what policies do with rows: choosing those that moved, encoding and decoding them, as training does."""

from collections.abc import Sequence

from executor.microbench.pool import Pool
from executor.microbench.timing import Probe, Run, Who
from executor.microbench.world import World
from executor.policies.accelerated import accelerated
from simgnn.policies.codec.linear import Linear
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import PolicyContext

ITEM_BYTES, DTYPE = 4, "float32"
HERE = PolicyContext(0, 0, 0, 0, "forward", 0, 1)


def select_probes(pool: Pool, shapes: Sequence[tuple[int, int]], who: Who = "all") -> list[Probe]:
    """For each (rows, width): which rows moved from those that were sent last."""

    def build(rows: int, width: int) -> Probe:
        def make(world: World) -> Run:
            policy, table = accelerated(AdaptiveVertex()), pool.matrix(rows, width)
            cached, state = pool.matrix(rows, width).clone(), policy.init(HERE)
            return lambda: policy.moved(HERE, table, cached, state)

        return Probe("select", "moved", {"rows": rows, "width": width, "item_bytes": ITEM_BYTES}, make, who)

    return [build(*shape) for shape in shapes]


def coding_probes(pool: Pool, shapes: Sequence[tuple[int, int, int]], who: Who = "all") -> list[Probe]:
    """For each (rows, width, bits): linear codes of dense rows, and rows from them."""

    def build(rows: int, width: int, bits: int, primitive: str) -> Probe:
        policy = accelerated(Linear.model_validate({"bits": bits}))

        def make(world: World) -> Run:
            table = pool.matrix(rows, width)
            if primitive == "encode":
                return lambda: policy.pack(table)
            packed = policy.pack(table)
            return lambda: policy.decode(HERE, packed, width, DTYPE)

        sizes = {"rows": rows, "width": width, "row_bytes": policy.row_bytes(width, DTYPE), "item_bytes": ITEM_BYTES}
        return Probe(primitive, f"{bits}-bit", sizes, make, who)

    return [build(*shape, primitive) for shape in shapes for primitive in ("encode", "decode")]
