"""What late, sampled, coded, cached and dropped halo rows cost in accuracy: final test accuracy beside ``vanilla``.

    python tests/benchmarks/bench_accuracy.py --out DIR --seeds 0 1 2

Every system trains the same GCN on the same partition of a graph, with each seed. A difference is of the two runs of a
seed, in points (hundredths). Times play no part, so other work on the machine does no harm. DIR keeps the run
directories; a run that is there is not repeated. The graphs come from SIMGNN_DATA.
"""

import argparse
import os
from pathlib import Path

import numpy as np

import simgnn
from simgnn.hardware.price.device_times import device_times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory

GRAPHS = ("cora", "amazon_computers", "coauthor_physics")
MODEL = {"model.kind": "gcn", "model.layers": 2, "model.hidden": 64, "model.dropout": 0.5, "model.order": "auto"}
TRAINING = {"train.learning_rate": 0.01, "train.weight_decay": 5e-4, "train.eval_every": 0}
CACHED = {"freshness.kind": "refresh-interval", "freshness.refresh_interval": 10, "placement.device_rows": 1.0}
UNEQUAL = (0, 2, 4, 6)
"""Ranks of the profile ``mixed-pcie3-8`` whose devices RAPA divides for: RTX 3090, A40, RTX 3060, GTX 1660 Ti."""
SYSTEMS: dict[str, tuple[str, dict[str, object]]] = {
    "vanilla": ("vanilla", {}),
    "pipegcn": ("pipegcn", {}),
    "pipegcn, GF": ("pipegcn", {"freshness.smooth_rows": True, "freshness.smooth_gradients": True}),
    "bnsgcn, 0.1": ("bnsgcn", {"freshness.p": 0.1}),
    "bnsgcn, 0.5": ("bnsgcn", {"freshness.p": 0.5}),
    "adaqp, 8 bits": ("adaqp", {"codec.bits": 8}),
    "adaqp": ("adaqp", {}),
    "caches": ("vanilla", CACHED),
    "caches, async": ("vanilla", {**CACHED, "freshness.mode": "async"}),
    "rapa": ("vanilla", {"partition.kind": "rapa"}),
    "rapa, caches": ("vanilla", {**CACHED, "partition.kind": "rapa"}),
}
"""Name here -> shipped system and what is set on top."""


def test_accuracy(name: str, graph: Path, seed: int, options: argparse.Namespace) -> float:
    """Test accuracy after the last epoch, in points."""
    directory = options.out / f"{graph.stem}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    system, settings = SYSTEMS[name]
    if settings.get("partition.kind") == "rapa":
        settings = {**settings, "partition.devices": unequal_devices()}
    if not RunDirectory(directory).result.is_file():
        chosen = {"graph.source": str(graph), **MODEL, **TRAINING, **settings, "seed": seed}
        simgnn.run(system, ranks=options.ranks, epochs=options.epochs, set=chosen, out=directory, force=True)
    result = read_result(RunDirectory(directory).result)
    found, dropped = result.accuracy, result.dropped_edges
    if dropped is not None:
        print(f"{graph.stem}, {name}, seed {seed}: {sum(dropped.by_rank) / dropped.of:.1%} of the edges dropped")
    assert found, f"{directory} has no accuracy"
    assert found[-1].test is not None, f"{graph} has no test vertices"
    return 100 * found[-1].test


def unequal_devices() -> list[dict[str, object]]:
    """The devices of ``UNEQUAL``, as ``partition.devices`` states them."""
    devices = device_times(Machine.place(load_profile("mixed-pcie3-8"), [0] * 8))
    return [devices[rank].model_dump(mode="json") for rank in UNEQUAL]


def main() -> None:
    """Train all, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs, new or that of an earlier call")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(["vanilla", *options.systems]))
    for graph in options.graphs:
        source = Path(os.environ.get("SIMGNN_DATA", "")) / f"{graph}.npz"
        if not source.is_file():
            raise SystemExit(f"{source} is not there; set SIMGNN_DATA to the folder of the real graphs")
        points = np.array([[test_accuracy(name, source, seed, options) for seed in options.seeds] for name in names])
        for name, found in zip(names, points, strict=True):
            apart = found - points[0]
            print(
                f"{graph:17s} {name:18s} {found.mean():6.2f} % [{found.min():.2f}, {found.max():.2f}],"
                f" {apart.mean():+.2f} points beside vanilla [{apart.min():+.2f}, {apart.max():+.2f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
