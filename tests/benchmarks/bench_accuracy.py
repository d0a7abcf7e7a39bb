"""How far predictions are from runs on this machine: calibrate once, simulate everything, then train it.

Calibration and all simulations come before the first run, so nothing measured in a run flows into its prediction.
Repeats are interleaved: every experiment runs once, then every experiment runs again. Printed: predicted epoch, median
over repeats of the measured median epoch, run-to-run spread (half the range of the repeats' medians), error.

    python tests/benchmarks/bench_accuracy.py --data FOLDER --out FOLDER [--repeats 5] [--epochs 12] [--profile FILE]
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np

GRAPHS = {
    "coauthor_physics": ["graph.source={data}/coauthor_physics.npz"],
    "ogbn_arxiv": ["graph.source={data}/ogbn_arxiv.npz", "graph.stand_in_features=128"],
}


def simgnn(*arguments: str) -> dict:
    """Run the command line and read what it prints as JSON."""
    command = [sys.executable, "-m", "simgnn", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    """Print one line an experiment and the median absolute error of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the real graphs")
    parser.add_argument("--out", type=Path, required=True, help="folder for the profile and the run directories")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--profile", type=Path, help="a calibration made before; default: calibrate now")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    profile = arguments.profile
    if profile is None:
        profile = arguments.out / "calibrated.toml"
        ranks = ",".join(map(str, sorted({1, *arguments.ranks})))
        subprocess.run(
            [sys.executable, "-m", "simgnn", "calibrate", "--ranks", ranks, "--out", str(profile)], check=True
        )
    cases = list(itertools.product(arguments.graphs, arguments.ranks, arguments.layers))
    predicted: dict[tuple, float] = {}
    for case in cases:
        result = simgnn("simulate", *options(case, arguments), "--hardware", str(profile), "--json", "--force",
                        "--out", str(arguments.out / name(case) / "sim"))  # fmt: skip
        predicted[case] = result["epoch_s_median"]
    measured: dict[tuple, list[float]] = {case: [] for case in cases}
    for repeat in range(arguments.repeats):
        for case in cases:
            result = simgnn("run", *options(case, arguments), "--json", "--force",
                            "--out", str(arguments.out / name(case) / f"run{repeat}"))  # fmt: skip
            measured[case].append(result["epoch_s_median"])
            times = f"predicted {predicted[case]:.4f} s, measured {measured[case][-1]:.4f} s"
            print(f"repeat {repeat}: {name(case)}: {times}", flush=True)
    errors = []
    print(f"{'experiment':34s} {'predicted':>10s} {'measured':>10s} {'spread':>8s} {'error':>8s}")
    for case in cases:
        middle = median(measured[case])
        spread = (max(measured[case]) - min(measured[case])) / 2 / middle
        errors.append(predicted[case] / middle - 1)
        print(f"{name(case):34s} {predicted[case]:8.4f} s {middle:8.4f} s {spread:7.1%} {errors[-1]:+8.1%}")
    sizes = np.abs(errors)
    print(f"median absolute error {np.median(sizes):.1%}, largest {np.max(sizes):.1%}, n = {len(sizes)}")


def name(case: tuple) -> str:
    """Folder and label of an experiment."""
    return f"{case[0]}-P{case[1]}-L{case[2]}"


def options(case: tuple, arguments: argparse.Namespace) -> list[str]:
    """Command-line options of an experiment."""
    graph, ranks, layers = case
    sets = [text.format(data=arguments.data) for text in GRAPHS[graph]]
    sets += [f"model.layers={layers}", f"model.hidden={arguments.hidden}", f"train.eval_every={arguments.epochs}"]
    return ["vanilla", *itertools.chain.from_iterable(("--set", text) for text in sets), "--ranks", str(ranks),
            "--epochs", str(arguments.epochs)]  # fmt: skip


if __name__ == "__main__":
    main()
