"""What a prediction of 100 epochs that repeat every 10 takes against one of 21 epochs, in process, warm, on one core.

Both plan the same program, of which some epochs differ: halo rows travel in every tenth epoch only (the example of
docs/extend.md). A prediction is the simulation and the estimate of its spread. Prints the ratio of their times, round
by round, and how many epochs each simulates.

python tests/benchmarks/bench_periods.py [--rounds 9] [--ranks 8]
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from bench_simulate import HOSTS, PROFILE, metis_like
from paired import alternate, ratio

from simgnn.experiment.load import load_experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.program.program import Program
from simgnn.sim.simulate import Simulation, simulate
from simgnn.sim.spread.intervals import estimate_spread
from tests.extension.worlds import outside

PERIOD, FEW, MANY, BAR = 10, 21, 100, 2.0


def predicted(program: Program, on: Machine, stats: PartitionStats, epochs: int) -> Simulation:
    """Simulate a run and estimate its spread."""
    found = simulate(program, on, stats=stats, epochs=epochs)
    estimate_spread(found, on, stats)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, choices=HOSTS, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outside(Path(folder))
        kept = ("freshness.kind=my_policies.refreshed:Refreshed", f"freshness.interval={PERIOD}")
        experiment = load_experiment("vanilla", ["model.layers=3", *kept]).with_cluster(
            HOSTS[asked.ranks], asked.ranks // HOSTS[asked.ranks]
        )
        stats = metis_like(asked.ranks, HOSTS[asked.ranks])
        program = plan(experiment, stats).program
        on = Machine.place(load_profile(str(PROFILE)), experiment.rank_hosts())
        contenders = {epochs: partial(predicted, program, on, stats, epochs) for epochs in (FEW, MANY)}
        for epochs, predict in contenders.items():
            found = predict()
            simulated = epochs - sum(count for _, count in found.copied)
            print(f"{epochs} epochs: {simulated} simulated, {found.events} events")
        times = alternate({str(epochs): predict for epochs, predict in contenders.items()}, asked.rounds)
        for name, seconds in times.items():
            print(f"{name} epochs: {np.median(seconds):.3f} s (median of {asked.rounds})")
        found_ratio = ratio(times[str(MANY)], times[str(FEW)])
        verdict = "met" if found_ratio.median <= BAR else "MISSED"
        print(f"{MANY} epochs against {FEW}: {found_ratio}; bar {BAR}x: {verdict}")


if __name__ == "__main__":
    main()
