"""RapidGNN against DistDGL on a testbed: remote rows, step times, and the speed-ups that are predicted.

    python tests/benchmarks/bench_minibatch.py --profile machine.toml --out DIR

Needs root and iproute2, a quiet machine, and a profile that was calibrated on it beforehand (``simgnn calibrate
--ranks 1,2,4``), from which the testbed's declaration makes the profile that is predicted with, after it has measured
what its link does while messages fill it: before any prediction and any run. For every graph and batch size the three
contenders train on the same model, fan-outs and seeds: distdgl on METIS's partition, distdgl on a random one, rapidgnn
on the very partition of the first. All are predicted first; then come the repeats, interleaved, in fresh processes. A
time is that of all epochs but the first, divided by its steps. Ends with status 1 where a speed-up over distdgl is
predicted further off than 12 % and two standard errors, or the order of two contenders whose measured gap exceeds the
noise is wrong. Graphs come from SIMGNN_DATA; structure, labels and split are real, features stand-ins of one width: the
real ones of coauthor_physics, 8,415 numbers a row, would take half a minute a step on such a link.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
from bench_speedups import report
from numpy.typing import NDArray

from simgnn.api.backend import CommandBackend
from simgnn.api.predict import ChosenProfile, predict
from simgnn.api.train import write_run
from simgnn.cli.tables.console import Reporter
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.planner.prepare import prepare
from simgnn.program.program import Program
from simgnn.program.storage import load_program
from simgnn.record.result import Result
from simgnn.tomlfile import write_toml

BAR = 0.12
WIDTH = 128
COMMON = ["model.kind=sage", "model.layers=2", "model.hidden=256", "batching.fanouts=[25,10]"]
BALANCED = 'partition.balance=["train","validation","test","edges"]'
"""What distdgl balances: of one policy there is one partition, so that both train on the same batches."""
CONTENDERS: dict[str, tuple[str, list[str]]] = {
    "distdgl metis": ("distdgl", []),
    "distdgl random": ("distdgl", ["partition.kind=random"]),
    "rapidgnn": ("rapidgnn", [BALANCED]),
}
"""Name here -> shipped system and what is set on top; speed-ups are over the first."""


def step_seconds(result: Result, steps: int) -> float:
    """Mean over the steps of all epochs but the first."""
    return float(sum(result.epoch_s[1:])) / (steps * (len(result.epoch_s) - 1))


def graph_file(name: str, out: Path) -> Path:
    """The graph without its features, so that it gets stand-ins."""
    source = Path(os.environ.get("SIMGNN_DATA", "")) / f"{name}.npz"
    if not source.is_file():
        raise SystemExit(f"{source} is not there; set SIMGNN_DATA to the folder of the real graphs")
    with np.load(source, allow_pickle=False) as held:
        kept = {key: held[key] for key in held.files if not key.startswith("feat")}
    np.savez(out / f"{name}.npz", **kept)
    return (out / f"{name}.npz").resolve()


def experiment_of(contender: str, graph: Path, batch: int, options: argparse.Namespace, profile: Path) -> Experiment:
    """A contender on a graph."""
    system, settings = CONTENDERS[contender]
    common = [f"graph.source={graph}", f"graph.stand_in_features={WIDTH}", f"batching.batch_size={batch}"]
    common += [f"train.epochs={options.epochs}", f"hardware.profile={profile}", *COMMON]
    loaded = load_experiment(system, [*common, *settings, *options.set])
    return loaded.with_cluster(options.hosts, options.ranks_per_host)


def remote_rows(program: Program) -> tuple[int, int]:
    """Rows that cross hosts for batches and for caches, over the whole run."""
    routes = program.sizes.routes
    cached = sum(int(routes[name].rows.sum()) for name in ("hot", "hot/setup") if name in routes)
    return int(routes["rows"].rows.sum()), cached


def compare(
    graph: str, batch: int, options: argparse.Namespace, backend: CommandBackend, testbed: Path, profile: Path
) -> bool:
    """One graph and batch size; whether bar and order hold."""
    folder = options.out / f"{graph}-{batch}"
    folder.mkdir()
    loaded, names = load_profile(profile), list(CONTENDERS)
    source = graph_file(graph, folder)
    predicted: dict[str, float] = {}
    measured: dict[str, list[float]] = {name: [] for name in names}
    steps = 0
    for name in names:
        ready = folder / name.replace(" ", "-")
        experiment = experiment_of(name, source, batch, options, profile)
        write_run(prepare(experiment, need_graph=True), loaded, ready, Reporter(quiet=True))
        program = load_program(ready / "plan")
        steps = program.calendar.steps
        predicted[name] = step_seconds(predicted_result(experiment, loaded), steps)
        pulled, cached = remote_rows(program)
        print(
            f"{graph}, batch {batch}: {name:14s} {steps} steps an epoch, {pulled:,} remote rows for batches, "
            f"{cached:,} for caches; predicted {predicted[name]:.4f} s a step", flush=True,
        )  # fmt: skip
    for repeat in range(options.repeats):
        for place in np.random.default_rng(repeat).permutation(len(names)):
            ready = folder / names[place].replace(" ", "-")
            directory = ready.with_name(f"{ready.name}-{repeat}")
            shutil.copytree(ready, directory)
            measured[names[place]].append(step_seconds(backend.run(directory, testbed), steps))
    times: dict[str, NDArray[np.float64]] = {name: np.array(found) for name, found in measured.items()}
    for name, found in times.items():
        spread = f"[{found.min():.4f}, {found.max():.4f}]"
        print(f"{graph}, batch {batch}: {name:14s} measured {np.median(found):.4f} s a step {spread}", flush=True)
    (folder / "times.json").write_text(json.dumps({"predicted_s": predicted, "measured_s": measured}, indent=2))
    ratios = {name: times[names[0]] / times[name] for name in names[1:]}
    return report(names, predicted, times, ratios, BAR)


def predicted_result(experiment: Experiment, profile: Profile) -> Result:
    """What ``simgnn simulate`` says."""
    return predict(experiment, Reporter(quiet=True), ChosenProfile(profile, profile.meta.name, False)).result


def main() -> None:
    """All graphs and batch sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, required=True, help="this machine as calibrated")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--graphs", nargs="+", default=["ogbn_arxiv", "coauthor_physics"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[500, 1000, 2000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--link", default="200 Mbit/s")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of every contender")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    backend = CommandBackend(Reporter())
    testbed, declared = options.out / "testbed.toml", (options.out / "declared.toml").resolve()
    table = {"name": "minibatch", "hosts": options.hosts, "ranks_per_host": options.ranks_per_host}
    write_toml(testbed, {**table, "link": options.link})
    backend.declare(testbed, options.profile, declared, measure_load=True)
    backend.up(testbed)
    try:
        held = [
            compare(graph, batch, options, backend, testbed, declared)
            for graph in options.graphs
            for batch in options.batch_sizes
        ]
    finally:
        backend.down(testbed)
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
