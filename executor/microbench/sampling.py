"""Probes of drawing mini-batches: one hop from many vertices, over generated graphs, on the host's processor."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from executor.microbench.timing import Probe, Run, Who
from executor.microbench.world import World
from simgnn.graph.csr import CSR
from simgnn.graph.load import load_graph
from simgnn.sampling.sampler import Sampler

Draw = tuple[str, int, int, int, int]
"""Kind of the graph, its vertices and undirected edges, vertices that draw, neighbours of each at most."""


def sampling_probes(draws: Sequence[Draw], who: Who = "all") -> list[Probe]:
    """A sampler's hop for each draw: choosing, numbering what is new, and the block."""

    @cache
    def graph(kind: str, vertices: int, edges: int) -> CSR:
        options = {"vertices": vertices, "edges": edges, "feature_width": 0}
        return load_graph(f"synthetic:{kind}", options=options, seed=vertices).csr

    def build(kind: str, vertices: int, edges: int, drawing: int, fanout: int) -> Probe:
        csr = graph(kind, vertices, edges)
        seeds = np.sort(np.random.default_rng(drawing).permutation(csr.rows)[:drawing])
        sampler = Sampler(csr, [fanout])
        drawn = len(sampler.sample(seeds, 1).blocks[0].sources)

        def make(world: World) -> Run:
            numbers = iter(range(2**32))
            return lambda: sampler.sample(seeds, next(numbers))

        sizes = {"vertices": len(seeds), "edges": drawn, "item_bytes": csr.indices.itemsize}
        return Probe("sample", f"{kind}-{vertices}-{fanout}", sizes, make, who)

    return [build(*draw) for draw in draws]
