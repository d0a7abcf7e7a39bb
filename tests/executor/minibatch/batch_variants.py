"""Mini-batch runs that differ in when and whence rows come, and what training them leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from executor.state.plan import RunPlan
from simgnn.graph.graph import Graph
from simgnn.program.program import Program
from simgnn.record.rundir import RunDirectory
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import small_graph, train_in_process

ALONE = ["schedule.lanes=2", "batching.structure=replicated"]
"""Each rank draws its batches alone, two at once; else hosts of ``distdgl`` draw for one another."""
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "online": ("distdgl", ["schedule.window=1"]),
    "online, parted, ahead": ("distdgl", ["schedule.window=3"]),
    "online, ahead": ("distdgl", ["schedule.window=4", *ALONE]),
    "online, rows ahead": ("distdgl", ["schedule.window=3", "schedule.staged=rows"]),
    "no cache": ("rapidgnn", ["placement.hot_rows=0", "schedule.window=1"]),
    "no cache, 4": ("rapidgnn", ["placement.hot_rows=0", "schedule.window=4"]),
    "hot": ("rapidgnn", ["placement.hot_rows=6", "schedule.window=2"]),
    "delta": ("rapidgnn", ["placement.hot_rows=6", "schedule.window=8", "placement.pull=delta"]),
    "all hot": ("rapidgnn", ["placement.hot_rows=1000", "schedule.window=2", "placement.pull=delta"]),
    "across epochs": ("rapidgnn", ["placement.hot_rows=6", "schedule.window=4", "schedule.across_epochs=true"]),
    "whole run": ("rapidgnn", ["placement.hot_rows=6", "schedule.window=3", "placement.hot_scope=run"]),
    "not evaluated": ("rapidgnn", ["placement.hot_rows=6", "schedule.window=2", "batching.evaluation=none"]),
}
"""They differ in when and whence rows come, in nothing that training computes."""
COMMON = ["train.dtype=float32", "batching.batch_size=3", "batching.split=local"]


@dataclass(frozen=True)
class Trained:
    """What runs of ``VARIANTS`` left. ``results``: by rank, then in the order of ``folders``."""

    graph: Graph
    folders: Mapping[str, Path]
    results: list[list[dict[str, Any]]]

    def program(self, name: str) -> Program:
        return RunPlan.open(self.folders[name]).program

    def trace(self, name: str) -> list[dict[str, Any]]:
        return pq.read_table(RunDirectory(self.folders[name]).trace).to_pylist()


def trained_variants(folder: Path) -> Trained:
    """All variants on two hosts of two ranks, in float32."""
    graph = small_graph(120, seed=3)
    folders = {
        name: prepared_batches(graph, folder / name.replace(" ", "-"), 2, 2, system, *COMMON, *settings)
        for name, (system, settings) in VARIANTS.items()
    }
    paths = [str(path) for path in folders.values()]
    return Trained(graph, folders, run_ranks(4, train_in_process, folder / "ranks", paths, joined=False))
