"""What the adaptive cache with quantised differences costs in accuracy, how many rows it saves, and how well rows that
were recorded at two ranks predict those of four.

    python tests/benchmarks/bench_cache.py --graphs cora amazon_computers coauthor_physics --seeds 0 1 2
    python tests/benchmarks/bench_cache.py --transfer --graphs cora --seeds 0 1

Every graph and seed is trained twice on the same vertex-cut: as the system is, and with ``freshness.kind = "always"``
and ``codec.kind = "none"``; both are evaluated LOOKS times, so that the noise of a last epoch shows beside it, and the
rows saved are told by sync point and stage too. Accuracies and rows are no times, so other work on the machine does not
matter. With ``--transfer`` the first seed is recorded at two ranks, the second trained at four, and rows sent in all
are compared. Real graphs come from SIMGNN_DATA. Ends with status 1 where a bar is missed.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from executor.launch.launcher import launch
from simgnn.api.activity import find_activity
from simgnn.api.train import write_run
from simgnn.cli.tables.console import Reporter
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.planner.prepare import Prepared, prepare
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.record.activity import read_activity
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import RunDirectory, read_table

EXACT = ["freshness.kind=always", "codec.kind=none"]
ACCURACY_BAR, SAVED_BAR, TRANSFER_BAR = 0.005, 0.5, 0.15
LOOKS, LATE = 20, 5
"""Evaluations of a run, at even distances, and how many of them are late."""

Rows = dict[str, int]
"""Rows sent over a whole run, by direction, layer and stage."""


def settings_of(options: argparse.Namespace, graph: str, seed: int) -> list[str]:
    """The experiment of a graph and a seed."""
    source = Path(os.environ.get("SIMGNN_DATA", "")) / f"{graph}.npz"
    if not source.is_file():
        raise SystemExit(f"{source} is not there; set SIMGNN_DATA to the folder of the real graphs")
    epochs = [f"train.epochs={options.epochs}", f"train.eval_every={max(options.epochs // LOOKS, 1)}"]
    return [f"graph.source={source}", f"seed={seed}", *epochs, *options.set]


def train(experiment: Experiment, folder: Path) -> tuple[Result, Rows]:
    """(result, rows sent)."""
    prepared = prepare(experiment, need_graph=True, cache=folder.parent / "cache")
    directory = RunDirectory(write_run(prepared, None, folder, Reporter(quiet=True)))
    if launch(directory.root, ["--device", "cpu"]) != 0:
        raise SystemExit(f"the run in {folder} failed")
    return read_result(directory.result), rows_sent(directory, prepared)


def rows_sent(directory: RunDirectory, prepared: Prepared) -> Rows:
    """Rows that crossed between ranks in training: as decided, or where nothing is decided, as counted at the
    transport. Evaluations, which are exact in both, do not count."""
    rows = Counter[str]()
    if directory.activity.is_file():
        table = read_activity(directory.activity)
        points, stages = table["point"].to_pylist(), table["phase"].to_pylist()
        sent = (table["peer"].to_numpy() >= 0) & (np.array(table["name"].to_pylist()) == "rows")
        values = table["value"].to_numpy()
        for place in np.flatnonzero(sent):
            _, layer, direction = points[place].split("/")
            rows[f"{direction}/{layer}/{stages[place]}"] += int(values[place])
        return dict(rows)
    trace = read_table(directory.trace)
    nbytes = np.bincount(trace["op_id"].to_numpy(), trace["bytes_sent"].to_numpy())
    ops = prepared.planned.program.ops
    exchanges = [
        (number, op.transfer.row_bytes, "/".join(op.name.split("/")[:3]))
        for number, (template, op) in enumerate(ops[: len(nbytes)])
        if op.kind is OpKind.EXCHANGE and op.transfer is not None and template != EVALUATE
    ]
    for number, row_bytes, name in exchanges:
        rows[name] += round(nbytes[number] / row_bytes)
    return dict(rows)


@dataclass(frozen=True)
class Trained:
    """What a run came to: test accuracy of each evaluation, rows sent."""

    tests: list[float]
    sent: Rows

    @property
    def rows(self) -> int:
        """Rows sent in all."""
        return sum(self.sent.values())

    def saved(self, exact: "Trained") -> float:
        """Share of the exact run's rows that this one did not send."""
        return 1 - self.rows / exact.rows

    def late(self) -> str:
        """Mean and range of the last evaluations: how noisy the very last one is."""
        last = self.tests[-LATE:]
        return f"{np.mean(last):.4f} ({min(last):.4f} to {max(last):.4f})"


def tell(graph: str, seed: int, cached: Trained, exact: Trained) -> None:
    """Print what two runs of a graph and a seed came to."""
    title = f"{graph:18s} seed {seed}:"
    print(
        f"{title} test accuracy {cached.tests[-1]:.4f} cached, {exact.tests[-1]:.4f} exact; of the last {LATE}"
        f" evaluations {cached.late()} and {exact.late()}"
    )
    shares = (f"{point} {1 - cached.sent.get(point, 0) / rows:.1%}" for point, rows in sorted(exact.sent.items()))
    print(
        f"{title} rows {cached.rows:>12,} of {exact.rows:>12,}: {cached.saved(exact):.1%} saved, {', '.join(shares)}",
        flush=True,
    )


def compare_accuracy(options: argparse.Namespace, folder: Path) -> bool:
    """Print two lines a graph and seed, and one of their means; whether the bars hold."""
    held, saving = True, 0
    for graph in options.graphs:
        pairs = []
        for seed in options.seeds:
            settings = settings_of(options, graph, seed)
            plain = [one for one in settings if not one.startswith(("freshness.", "codec."))]
            found = []
            for name, chosen in (("cached", settings), ("exact", [*plain, *EXACT])):
                experiment = load_experiment(options.system, chosen).with_cluster(1, options.ranks)
                result, sent = train(experiment, folder / f"{graph}-{seed}-{name}")
                assert result.accuracy is not None
                found.append(Trained([float(one.test or 0.0) for one in result.accuracy], sent))
            tell(graph, seed, *found)
            pairs.append(found)
        cached, exact = np.array([[one.tests[-1] for one in pair] for pair in pairs]).T
        saved = [first.saved(second) for first, second in pairs]
        change = float(np.mean(cached) - np.mean(exact))
        print(
            f"{graph:18s} mean over {len(cached)} seeds: {cached.mean():.4f} cached (spread {np.ptp(cached):.4f}),"
            f" {exact.mean():.4f} exact (spread {np.ptp(exact):.4f}): {100 * change:+.2f} points; rows saved"
            f" {np.mean(saved):.1%} ({min(saved):.1%} to {max(saved):.1%})",
            flush=True,
        )
        held &= change >= -ACCURACY_BAR
        saving += float(np.mean(saved)) >= SAVED_BAR
    return held and 3 * saving >= 2 * len(options.graphs)


def compare_transfer(options: argparse.Namespace, folder: Path) -> bool:
    """Print a line a graph; whether the bar holds."""
    held = True
    for graph in options.graphs:
        recorded, actual = (
            load_experiment(options.system, settings_of(options, graph, seed)).with_cluster(1, ranks)
            for seed, ranks in zip(options.seeds[:2], (2, 4), strict=True)
        )
        train(recorded, folder / f"{graph}-recorded")
        rows = sum(train(actual, folder / f"{graph}-actual")[1].values())
        prepared = prepare(actual, need_graph=True, cache=folder / "cache")
        found = find_activity(prepared, folder / f"{graph}-recorded")
        assert found.transferred
        sent = [values for name, values in found.activity.items() if values.ndim == 4 and name.endswith("/rows")]
        predicted = sum(int(values[values > 0].sum()) for values in sent)
        error = predicted / rows - 1
        print(f"{graph:18s} rows sent at 4 ranks: {predicted:,} from 2 ranks, {rows:,} run: {error:+.1%}", flush=True)
        held &= abs(error) <= TRANSFER_BAR
    return held


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["cora", "amazon_computers", "coauthor_physics"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--system", default="cdfgnn")
    parser.add_argument("--transfer", action="store_true", help="compare rows across rank counts instead")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of the experiment")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="simgnn-cache-") as scratch:
        held = (compare_transfer if options.transfer else compare_accuracy)(options, Path(scratch))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
