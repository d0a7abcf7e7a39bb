"""What METIS's balance changes: epochs of ``balance = "auto"`` and of ``["vertices"]``, predicted and measured.

    python tests/benchmarks/bench_balance.py --profile machine.toml --out DIR --repeats 5

Needs a profile that was calibrated on this machine beforehand (``simgnn calibrate --ranks 1,2,4``) and the graphs of
SIMGNN_DATA. Everything is predicted before the first run. In a repeat both choices of a graph run one after the other,
in an order that alternates, each in fresh processes; a ratio is of the two runs of a repeat, so that even drift of the
machine drops out. A time is the median over all epochs but the first. DIR is a new folder.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

import numpy as np
from paired import Paired, ratio

from simgnn.api.backend import CommandBackend
from simgnn.api.predict import ChosenProfile, predict
from simgnn.api.train import write_run
from simgnn.cli.tables.console import Reporter
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import load_profile
from simgnn.planner.prepare import prepare

GRAPHS = {
    "ogbn_arxiv": ["graph.source=$DATA/ogbn_arxiv.npz", "graph.stand_in_features=128"],
    "coauthor_physics": ["graph.source=$DATA/coauthor_physics.npz"],
    "amazon_computers": ["graph.source=$DATA/amazon_computers.npz"],
    "tolokers": ["graph.source=$DATA/tolokers.npz"],
}
BALANCES = {"vertices": 'partition.balance=["vertices"]', "auto": "partition.balance=auto"}


def experiment_of(graph: str, balance: str, options: argparse.Namespace) -> Experiment:
    """Training on a graph with one balance; the name tells both."""
    data = os.environ.get("SIMGNN_DATA", "")
    settings = [setting.replace("$DATA", data) for setting in GRAPHS[graph]]
    settings += [BALANCES[balance], f"name={graph}-{balance}", f"model.hidden={options.hidden}", "train.eval_every=0"]
    settings += [f"train.epochs={options.epochs}", f"hardware.profile={options.profile.resolve()}"]
    return load_experiment("vanilla", [*settings, *options.set]).with_cluster(1, options.ranks)


def main() -> None:
    """Predict all, run all, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, required=True, help="this machine as calibrated")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=11)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of every experiment")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    profile, backend, quiet = load_profile(options.profile), CommandBackend(Reporter()), Reporter(quiet=True)
    chosen = ChosenProfile(profile, profile.meta.name, False)
    predicted: dict[str, dict[str, float]] = {graph: {} for graph in options.graphs}
    for graph in options.graphs:
        for balance in BALANCES:
            experiment = experiment_of(graph, balance, options)
            write_run(prepare(experiment, need_graph=True), profile, options.out / f"{graph}-{balance}", quiet)
            found = predict(experiment, quiet, chosen, limits=False).result.epoch_s_median
            assert found is not None
            predicted[graph][balance] = found
            print(f"{graph} {balance}: predicted {found:.4f} s an epoch", flush=True)
    measured: dict[str, dict[str, list[float]]] = {g: {name: [] for name in BALANCES} for g in options.graphs}
    for repeat in range(options.repeats):
        for graph in options.graphs:
            for balance in list(BALANCES)[:: 1 if repeat % 2 else -1]:
                directory = options.out / "run"
                shutil.copytree(options.out / f"{graph}-{balance}", directory)
                result = backend.run(directory, None)
                shutil.rmtree(directory)
                assert result.epoch_s_median is not None
                measured[graph][balance].append(result.epoch_s_median)
                print(f"repeat {repeat + 1}: {graph} {balance}: {result.epoch_s_median:.4f} s an epoch", flush=True)
    (options.out / "times.json").write_text(json.dumps({"predicted_s": predicted, "measured_s": measured}, indent=2))
    for graph in options.graphs:
        times = {balance: np.array(found) for balance, found in measured[graph].items()}
        speed_up: Paired = ratio(times["vertices"], times["auto"])
        said = predicted[graph]["vertices"] / predicted[graph]["auto"]
        print(
            f"{graph:18s} vertices over auto: predicted {said:.3f}x, measured {speed_up}; "
            + ", ".join(
                f"{name} predicted {predicted[graph][name]:.4f} s, measured {np.median(times[name]):.4f} s"
                for name in BALANCES
            )
        )


if __name__ == "__main__":
    main()
