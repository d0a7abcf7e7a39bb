"""Seconds to simulate one epoch of a 3-layer GCN with METIS-like traffic, in process and warm.

python tests/benchmarks/bench_simulate.py [--rounds 9]
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np

from simgnn.experiment.load import load_experiment
from simgnn.experiment.planner import plan
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.machine import Machine
from simgnn.hardware.profile import load_profile
from simgnn.partition.stats import PartitionStats
from simgnn.program.sizes import Route
from simgnn.sim.simulate import simulate

PROFILE = Path(__file__).resolve().parent.parent / "hardware" / "data" / "invented-8x8.toml"


def metis_like(ranks: int, hosts: int, vertices: int = 2_000_000, seed: int = 0) -> PartitionStats:
    """Every rank sends to every other, most to its neighbours, all pairs of different sizes."""
    draw = np.random.default_rng(seed)
    each = vertices // ranks
    apart = np.abs(np.subtract.outer(np.arange(ranks), np.arange(ranks)))
    apart = np.minimum(apart, ranks - apart)
    rows = (0.05 * each * draw.lognormal(0, 0.7, (ranks, ranks)) / (1 + apart) ** 1.2).astype(np.int64) + 1
    np.fill_diagonal(rows, 0)
    tables = {"train_rows": np.full(ranks, each // 2)}
    for name in ("locality/forward", "locality/backward"):
        tables[name] = np.tile(np.linspace(0.1, 0.9, 32), (ranks, 1))
    facts = GraphFacts("metis-like", vertices, 50_000_000, 128, None, 40, False, vertices // 2, 0, 0)
    hosts_of = np.repeat(np.arange(hosts), ranks // hosts)
    counts = (each * draw.uniform(0.98, 1.02, ranks)).astype(np.int64)
    edges = (50_000_000 // ranks * draw.uniform(0.9, 1.1, ranks)).astype(np.int64)
    return PartitionStats(facts, "edge-cut", hosts_of, counts, edges, Route.from_matrix(rows), "made up", tables)


def main() -> None:
    """Print one line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    profile = load_profile(str(PROFILE))
    for ranks, hosts, bar_s in ((16, 2, 0.2), (64, 8, 2.0)):
        stats = metis_like(ranks, hosts)
        program = plan(
            load_experiment("vanilla", ["model.layers=3"]).with_cluster(hosts, ranks // hosts), stats
        ).program
        machine = Machine.place(profile, [int(host) for host in stats.hosts])
        simulate(program, machine, stats=stats, epochs=1)
        times = []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            simulation = simulate(program, machine, stats=stats, epochs=1)
            times.append(time.perf_counter() - start)
        spread = np.percentile(times, [25, 75])
        times_s = f"{median(times):.3f} s [{spread[0]:.3f}, {spread[1]:.3f}] (bar {bar_s} s)"
        print(f"{ranks} ranks on {hosts} hosts: {times_s}, "
              f"{len(simulation.columns['rank'])} ops, epoch {simulation.epoch_s[0] * 1e3:.1f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
