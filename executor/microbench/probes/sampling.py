"""Probes of drawing mini-batches: one hop from many vertices, over generated graphs, on the host's processor."""

from collections.abc import Iterator
from functools import cache

import numpy as np

from executor.microbench.probes.bench import Bench, measures, shapes
from executor.microbench.probes.inputs import generated
from executor.microbench.timing import Probe, Run
from executor.microbench.world import World
from simgnn.hardware.primitives import SAMPLE
from simgnn.sampling.draw.sampler import Sampler

_graph = cache(generated)


@measures(
    SAMPLE,
    full=[
        *(("communities", 20_000, 150_000, *shape) for shape in shapes("100x5 2_000x15")),
        *(("communities", 80_000, 600_000, *shape) for shape in shapes("1_000x15 10_000x10 40_000x5")),
        *(("rmat", 65_536, 500_000, *shape) for shape in shapes("1_000x25 10_000x10 30_000x5")),
    ],
    quick=[
        *(("communities", 12_000, 90_000, *shape) for shape in shapes("100x5 1_000x10 5_000x5")),
        *(("rmat", 16_384, 100_000, *shape) for shape in shapes("1_000x15 8_000x5")),
    ],
)
def sampling_probes(bench: Bench, kind: str, vertices: int, edges: int, drawing: int, fanout: int) -> Iterator[Probe]:
    """One hop of a sampler, in which ``drawing`` vertices of a graph of that kind and size draw up to ``fanout``
    neighbours: it draws, numbers the new vertices and builds the block."""
    csr = _graph(kind, vertices, edges, vertices)
    seeds = np.sort(np.random.default_rng(drawing).permutation(csr.rows)[:drawing])
    sampler = Sampler(csr, [fanout])
    drawn = len(sampler.sample(seeds, 1).blocks[0].sources)

    def make(world: World) -> Run:
        numbers = iter(range(2**32))
        return lambda: sampler.sample(seeds, next(numbers))

    sizes = {"vertices": len(seeds), "edges": drawn, "item_bytes": csr.indices.itemsize}
    yield Probe(SAMPLE.name, f"{kind}-{vertices}-{fanout}", sizes, make)
