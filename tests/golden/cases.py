"""The golden file: what the shipped systems predict for small experiments, so that a refactoring can prove no change.

``python -m tests.golden.cases predict`` writes ``golden.json`` anew. ``python -m tests.golden.cases compare OLD NEW``
trains and simulates every case in two checkouts of this repository and prints whatever differs: losses, decisions and
cached bytes follow from training, which depends on the processor, so they are compared on one machine, not stored.

All fields but the two digests are those of commit 6937e02, before policies said everything about themselves. Digests
were recorded anew after it, since the stored form of programs changed: ops name an ``action``, a ``form`` or a
``segment`` where options and ``module`` named a face, a function or "layers.2.update"; guards of collectives are
``agreed``; buffers of parameters are ``inner``; programs list their ``publications``. Times of ``gat`` on edge-cuts
were recorded anew when attention came to be divided alike under all schedules, those of ``adaqp`` when the sorting and
the dividing of its rows got their prices.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

HERE = Path(__file__).resolve().parent
HARDWARE, GOLDEN = HERE / "hardware.toml", HERE / "golden.json"
SYSTEMS = ("vanilla", "cagnet", "sancus", "cdfgnn", "distdgl", "rapidgnn", "pipegcn", "bnsgcn", "adaqp", "capgnn")
KINDS = ("gcn", "sage", "gat")
CLUSTERS: Mapping[str, tuple[int, int]] = {"1": (1, 1), "2": (1, 2), "4": (1, 4), "2x2": (2, 2)}
"""Name of a cluster -> hosts, ranks a host."""
COMMON = (
    "graph.source=synthetic:communities", "graph.vertices=600", "graph.edges=4000", "graph.classes=5",
    "graph.feature_width=24", "train.epochs=6", "model.hidden=16", "hardware.threads_per_rank=1",
)  # fmt: skip
PREDICTED = (
    "program_digest", "digest", "epoch_s_median", "bytes_sent", "collective_bytes", "control_bytes",
    "peak_memory_bytes", "buffer_bytes", "input_rows",
)  # fmt: skip
"""Fields of a predicted result that are compared."""
MEASURED = (
    "program_digest", "loss", "accuracy", "bytes_sent", "bytes_sent_first_epoch", "collective_bytes", "control_bytes",
    "messages", "buffer_bytes", "input_rows",
)  # fmt: skip
"""Fields of a run's result that are compared."""


def labels() -> Iterator[tuple[str, str, str]]:
    """Every case as (system, kind of layer, cluster). One rank alone has no rows to assign bits to."""
    every = ((system, kind, cluster) for system in SYSTEMS for kind in KINDS for cluster in CLUSTERS)
    return (case for case in every if case[0] != "adaqp" or case[2] != "1")


def overrides(system: str, kind: str, cluster: str) -> list[str]:
    """The settings of a case. Edge-cuts are random: METIS need not divide a graph alike on two machines."""
    hosts, ranks = CLUSTERS[cluster]
    found = [*COMMON, f"model.kind={kind}", f"cluster.hosts={hosts}", f"cluster.ranks_per_host={ranks}"]
    if kind == "gat":
        found += ["model.heads=4", "model.order=auto"]
    if system == "adaqp":
        found += ["codec.assign_period=2", "codec.expected_bits=4", "partition.kind=random"]
    if system == "capgnn":
        found += ["freshness.refresh_interval=3", "partition.base=random", "placement.host_rows=0.4"]
    if system in ("vanilla", "distdgl", "rapidgnn", "pipegcn", "bnsgcn"):
        found.append("partition.kind=random")
    if system in ("distdgl", "rapidgnn"):
        found += ["model.layers=2", "batching.batch_size=60", "batching.fanouts=[4,3]", "train.epochs=3"]
    if system == "rapidgnn":
        found.append("placement.hot_rows=40")
    if system == "cdfgnn":
        found += ["freshness.epsilon=0.2", *(["codec.kind=none"] if kind == "gat" else [])]
    return found


def needs_record(system: str) -> bool:
    """Whether what a system sends depends on training, so that it is predicted from a recorded run alone."""
    return system == "cdfgnn"


def command(verb: str, case: tuple[str, str, str], out: Path, activity: Path | None = None) -> list[str]:
    """The arguments of ``simgnn`` for a case."""
    sets = [part for setting in overrides(*case) for part in ("--set", setting)]
    replayed = [] if activity is None else ["--activity", str(activity)]
    return [verb, case[0], *sets, "--hardware", str(HARDWARE), *replayed, "--out", str(out), "--json"]


def fields(out: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """These fields of the result in a run directory."""
    result = json.loads((out / "result.json").read_text())
    return {name: result[name] for name in names}


def decisions(out: Path) -> str | None:
    """SHA-256 of a run's recorded decisions, in an order of their own; None: nothing was decided."""
    path = out / "activity.parquet"
    if not path.is_file():
        return None
    table = pd.read_parquet(path)
    ordered = table[sorted(table.columns)].sort_values(sorted(table.columns))
    return hashlib.sha256(ordered.to_csv(index=False).encode()).hexdigest()


def _outcome(checkout: Path, case: tuple[str, str, str], folder: Path) -> dict[str, Any]:
    """What a checkout measures and predicts for a case."""
    run, predicted = folder / "run", folder / "predicted"
    replayed = run if needs_record(case[0]) else None
    for arguments in (command("run", case, run), command("simulate", case, predicted, replayed)):
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(
            [sys.executable, "-m", "simgnn", *arguments], cwd=checkout, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            return {"failed": done.stderr[-300:]}
    measured = {f"measured {name}": value for name, value in fields(run, MEASURED).items()}
    promised = {f"predicted {name}": value for name, value in fields(predicted, PREDICTED).items()}
    return {**measured, **promised, "decisions": decisions(run)}


def compare(old: Path, new: Path) -> int:
    """Print what differs between two checkouts; returns how many fields do, digests left out."""
    differences = 0
    for case in labels():
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for name, checkout in (("old", old), ("new", new)):
                (Path(folder) / name).mkdir()
                found.append(_outcome(checkout, case, Path(folder) / name))
        differ = [name for name in found[0] if found[0][name] != found[1].get(name)]
        stated = [name for name in differ if name.endswith("digest")]
        differences += len(differ) - len(stated)
        print("/".join(case), "digests differ" if stated else "", *(name for name in differ if name not in stated))
    return differences


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])) > 0)
    found = {}
    for case in labels():
        if not needs_record(case[0]):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "out"
                arguments = [sys.executable, "-m", "simgnn", *command("simulate", case, out)]
                subprocess.run(arguments, check=True, capture_output=True)
                found["/".join(case)] = fields(out, PREDICTED)
    GOLDEN.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(one)}' for name, one in found.items()) + "\n}\n")
