"""Simulating one epoch of a 3-layer GCN with METIS-like traffic (<= 32 peers a rank), in process, warm, on one core.

Prints wall and CPU seconds, peak memory of the process, what 100 epochs take against 2, the estimate of the spread
against an epoch, and how far batches lie from exact events (--exact) and dense rounds in bundles from rounds of single
messages (--dense). Each size runs in a fresh process, so that its peak memory is its own.

python tests/benchmarks/bench_simulate.py [--rounds 5] [--ranks 8 64 1024] [--exact] [--dense]
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.program.program import Program
from simgnn.program.sizes import Route
from simgnn.sim.simulate import Simulation, simulate
from simgnn.sim.spread.intervals import estimate_spread

PROFILE = Path(__file__).resolve().parent.parent / "hardware" / "data" / "invented-8x8.toml"
HOSTS = {8: 1, 16: 2, 64: 8, 256: 32, 320: 40, 1024: 128}
BARS = {8: 0.05, 64: 1.0, 1024: 20.0}
MEMORY_BAR_GIB = 4.0


def metis_like(
    ranks: int, hosts: int, vertices: int = 2_000_000, seed: int = 0, peers: int | None = None
) -> PartitionStats:
    """Ranks send most to their neighbours, all pairs of different sizes; ``peers``: to so many nearest ones only."""
    draw = np.random.default_rng(seed)
    each = vertices // ranks
    apart = np.abs(np.subtract.outer(np.arange(ranks), np.arange(ranks)))
    apart = np.minimum(apart, ranks - apart)
    rows = (0.05 * each * draw.lognormal(0, 0.7, (ranks, ranks)) / (1 + apart) ** 1.2).astype(np.int64) + 1
    rows[(apart == 0) | (apart > (ranks if peers is None else peers // 2))] = 0
    tables = {"train_rows": np.full(ranks, each // 2)}
    for name in ("locality/forward", "locality/backward"):
        tables[name] = np.tile(np.linspace(0.1, 0.9, 32), (ranks, 1))
    hosts_of = np.repeat(np.arange(hosts), ranks // hosts)
    counts = (each * draw.uniform(0.98, 1.02, ranks)).astype(np.int64)
    edges = (25 * vertices // ranks * draw.uniform(0.9, 1.1, ranks)).astype(np.int64)
    train = int(tables["train_rows"].sum())
    facts = GraphFacts("metis-like", int(counts.sum()), int(edges.sum()), 128, None, 40, False, train, 0, 0)
    return PartitionStats(facts, "edge-cut", hosts_of, counts, edges, Route.from_matrix(rows), "made up", tables)


def cluster(folder: Path, hosts: int) -> Path:
    """A profile of the invented cluster with as many hosts as it takes, written to a folder."""
    path = folder / "cluster.toml"
    path.write_text(PROFILE.read_text().replace("count = 8\n", f"count = {max(hosts, 8)}\n", 1))
    return path


def planned(
    ranks: int, hosts: int, peers: int | None = 32, seed: int = 0, layers: int = 3
) -> tuple[Program, Machine, PartitionStats]:
    """A program, from statistics alone, and the invented cluster with as many hosts as it takes."""
    stats = metis_like(ranks, hosts, 31_250 * max(ranks, 64), seed, peers)
    program = plan(
        load_experiment("vanilla", [f"model.layers={layers}"]).with_cluster(hosts, ranks // hosts), stats
    ).program
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine.place(load_profile(str(cluster(Path(folder), hosts))), [int(host) for host in stats.hosts])
    return program, machine, stats


def timed(run: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of each round."""
    wall, cpu = [], []
    for _ in range(rounds):
        began = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - began[0])
        cpu.append(time.process_time() - began[1])
    return wall, cpu


def compare(name: str, found: Sequence[Simulation], expected: Sequence[Simulation]) -> None:
    """Print how far epochs, ends of ops and durations of ops lie from those expected."""
    epoch = max(abs(one.epoch_s[0] / other.epoch_s[0] - 1) for one, other in zip(found, expected, strict=True))
    end, took = 0.0, 0.0
    for one, other in zip(found, expected, strict=True):
        ends = one.columns["ended_s"], other.columns["ended_s"]
        spans = ends[0] - one.columns["issued_s"], ends[1] - other.columns["issued_s"]
        end = max(end, float(np.max(np.abs(ends[0] / ends[1] - 1))))
        took = max(took, float(np.max(np.abs(spans[0] - spans[1]) / np.maximum(spans[1], 1e-12))))
    print(
        f"  {name}, {len(found)} seeds: epoch {epoch:.4%}, any op's end {end:.3%}, its duration {took:.2%}", flush=True
    )


def measure_dense(ranks: int) -> None:
    """One layer of traffic between all ranks: in bundles, and message by message."""
    found: dict[bool, list[Simulation]] = {True: [], False: []}
    for seed in range(2):
        program, machine, stats = planned(ranks, HOSTS[ranks], None, seed, layers=1)
        for bundled, above in ((True, 0), (False, ranks * ranks)):
            began = time.process_time()
            found[bundled].append(simulate(program, machine, stats=stats, epochs=1, bundle_above=above))
            taken = time.process_time() - began
            print(f"{ranks} ranks, dense, bundled {bundled}: CPU {taken:.1f} s", flush=True)
    compare("bundles against messages", found[True], found[False])


def measure(ranks: int, rounds: int, exact: bool) -> None:
    """One size, in this process."""
    hosts = HOSTS[ranks]
    began = time.perf_counter()
    program, machine, stats = planned(ranks, hosts)
    ready = time.perf_counter() - began
    simulation = simulate(program, machine, stats=stats, epochs=1)
    wall, cpu = timed(lambda: simulate(program, machine, stats=stats, epochs=1), rounds)
    two, _ = timed(lambda: simulate(program, machine, stats=stats, epochs=2), min(rounds, 3))
    hundred, _ = timed(lambda: simulate(program, machine, stats=stats, epochs=100), min(rounds, 3))
    estimate_spread(simulation, machine, stats)
    spread, _ = timed(lambda: estimate_spread(simulation, machine, stats), rounds)
    low, high = np.percentile(wall, [25, 75])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    bar = f" (bar {BARS[ranks]} s)" if ranks in BARS else ""
    print(
        f"{ranks} ranks on {hosts} hosts: {median(wall):.3f} s [{low:.3f}, {high:.3f}]{bar}, CPU {median(cpu):.3f} s, "
        f"planned and placed in {ready:.2f} s, peak {peak:.2f} GiB (bar {MEMORY_BAR_GIB} GiB), "
        f"spread {median(spread):.3f} s, 100 epochs {median(hundred) / median(two):.2f}x of 2 (bar 1.5x), "
        f"{len(simulation.columns['rank'])} ops, "
        f"epoch {simulation.epoch_s[0] * 1e3:.1f} ms, digest {simulation.digest[:12]}",
        flush=True,
    )
    if exact:
        found = []
        for seed in range(5):
            program, machine, stats = planned(ranks, hosts, seed=seed)
            found.append([simulate(program, machine, stats=stats, epochs=1, **o) for o in ({}, {"window": 0.0})])
        batched, precise = zip(*found, strict=True)
        compare("batched against exact", batched, precise)


def main() -> None:
    """Print one line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", choices=sorted(HOSTS), default=[8, 64, 1024])
    parser.add_argument("--exact", action="store_true", help="also compare with exact events (minutes above 64 ranks)")
    parser.add_argument("--dense", action="store_true", help="instead: every rank talks to every other")
    arguments = parser.parse_args()
    if len(arguments.ranks) == 1 and arguments.dense:
        measure_dense(arguments.ranks[0])
        return
    if len(arguments.ranks) == 1:
        measure(arguments.ranks[0], arguments.rounds, arguments.exact)
        return
    for ranks in arguments.ranks:
        command = [sys.executable, __file__, "--rounds", str(arguments.rounds), "--ranks", str(ranks)]
        command += ["--exact"] * arguments.exact + ["--dense"] * arguments.dense
        subprocess.run(command, check=True, env=os.environ)


if __name__ == "__main__":
    main()
