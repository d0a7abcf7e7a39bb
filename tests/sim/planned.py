"""Real plans of made-up partitions: GCN on uneven ranks, for tests of size and repetition."""

import numpy as np

from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.program.program import Program
from simgnn.program.sizes import Route


def statistics(hosts: list[int], rows: int = 50_000, seed: int = 0) -> PartitionStats:
    """An uneven edge-cut: halo rows of each rank pair are log-normal."""
    rng = np.random.default_rng(seed)
    ranks = len(hosts)
    halo = rng.lognormal(np.log(rows / ranks / 2), 1.0, (ranks, ranks)).astype(np.int64) + 1
    np.fill_diagonal(halo, 0)
    owned, edges = rng.integers(rows - rows // 30, rows + rows // 30, ranks), rng.integers(14 * rows, 16 * rows, ranks)
    vertices = int(owned.sum())
    facts = GraphFacts("made-up", vertices, int(edges.sum()), 100, None, 47, False, vertices // 2, 10, 10)
    locality = np.tile(np.linspace(0.0, 0.9, 32), (ranks, 1))
    tables = {"train_rows": owned // 2, "locality/forward": locality, "locality/backward": locality}
    return PartitionStats(facts, "edge-cut", np.array(hosts), owned, edges, Route.from_matrix(halo), "made-up", tables)


def vanilla(stats: PartitionStats, *overrides: str) -> Program:
    """The program of the vanilla system, three layers of GCN unless told otherwise."""
    return plan(load_experiment("vanilla", ["model.layers=3", "model.hidden=256", *overrides]), stats).program


def shipped(name: str, hosts: list[int]) -> Machine:
    """A shipped cluster."""
    return Machine.place(load_profile(name), hosts)


def spread(ranks: int, hosts: int) -> list[int]:
    """Host of each rank, in even blocks."""
    return [host for host in range(hosts) for _ in range(ranks // hosts)]
