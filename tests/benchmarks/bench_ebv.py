"""EBV on an R-MAT graph on disk: seconds and peak resident memory, each step in a fresh process.

Draws edges until at least ``--edges`` different undirected ones are there, writes them as an edge list (.npy, int32,
unsorted, with repeats and self loops), and then times what a user waits for:

- ``sort``: the edge list to a folder of the graph store (symmetrised, sorted, without repeats), which happens once;
- ``ebv``: that folder, opened memory-mapped, to ranks of all edges and masters of all vertices in .npy files: reading,
  sorting by degree sum, assigning, choosing masters and writing are inside.

python tests/benchmarks/bench_ebv.py --folder DIR [--edges 100000000] [--scale 23] [--ranks 16] [--keep]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from simgnn.graph.generators.recipes import RMat
from simgnn.graph.readers.edge_array import read_npy
from simgnn.graph.store import npy_header, open_graph
from simgnn.graph.thread_pool import in_order
from simgnn.partition.edges import UndirectedEdges, ends_of
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.statistics.count import vertex_cut_stats
from simgnn.partition.statistics.partition_stats import measure

CHUNK = 1 << 20
SURPLUS = 1.04  # of draws over different edges wanted: R-MAT repeats itself
SECONDS_BAR, GIB_BAR = 60.0, 4.0


def draw(arguments: argparse.Namespace) -> dict[str, object]:
    """Write the edge list."""
    edges = int(SURPLUS * arguments.edges)
    stream = RMat(2**arguments.scale, edges, classes=0, feature_width=0).prepare()

    def chunk(number: int) -> np.ndarray:
        return np.ascontiguousarray(stream.edges(number * CHUNK, min(CHUNK, edges - number * CHUNK)).T, dtype=np.int32)

    with (arguments.folder / "edges.npy").open("wb") as file:
        file.write(npy_header(np.dtype(np.int32), (edges, 2)))
        for pairs in in_order(chunk, -(-edges // CHUNK)):
            file.write(pairs.data)
    return {"listed": edges}


def sort(arguments: argparse.Namespace) -> dict[str, object]:
    """Edge list to graph folder, through the loader's cache."""
    os.environ["SIMGNN_CACHE"] = str(arguments.folder)
    graph = read_npy(arguments.folder / "edges.npy", vertices=2**arguments.scale)
    return {"vertices": graph.vertices, "undirected_edges": graph.edges // 2}


def ebv(arguments: argparse.Namespace) -> dict[str, object]:
    """Graph folder to ``edge_part.npy`` and ``owner.npy``."""
    graph = open_graph(next((arguments.folder / "graphs").iterdir()))
    hosts = np.arange(arguments.ranks) // 8
    partition = partitioned(Ebv(), graph, hosts, 0, arguments.folder)
    np.save(arguments.folder / "edge_part.npy", partition.edge_part)
    np.save(arguments.folder / "owner.npy", partition.owner)
    return {"million_edges": graph.edges / 2e6}


def check(arguments: argparse.Namespace) -> dict[str, object]:
    """Quality of what ``ebv`` wrote; not timed against a bar."""
    graph = open_graph(next((arguments.folder / "graphs").iterdir()))
    edge_part = np.load(arguments.folder / "edge_part.npy", mmap_mode="r")
    partition = Partition("vertex-cut", arguments.ranks, np.load(arguments.folder / "owner.npy"), edge_part).check()
    found = sum(len(low) for _, (low, _) in UndirectedEdges.of(graph).scan(ends_of))
    assert found == len(edge_part) >= arguments.edges
    quality = measure(vertex_cut_stats(graph, partition, np.arange(arguments.ranks) // 8, "not kept"))
    return {key: getattr(quality, key) for key in ("replication_factor", "edge_imbalance", "outer_sum")}


STEPS = {"draw": draw, "sort": sort, "ebv": ebv, "check": check}


def step(name: str, arguments: argparse.Namespace) -> None:
    """One step, in this process; prints one JSON line."""
    began, worked = time.perf_counter(), time.process_time()
    told = STEPS[name](arguments)
    taken = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - worked}
    taken["peak_GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({key: round(value, 2) for key, value in taken.items()} | told))


def main() -> None:
    """Print a line for each step, and whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--scale", type=int, default=23, help="2**scale vertices")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3, help="of the steps sort and ebv")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the graph, on a disk")
    parser.add_argument("--keep", action="store_true", help="keep the edge list for the next time")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        step(arguments.step, arguments)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)

    def fresh(name: str) -> dict[str, float]:
        told = subprocess.run([sys.executable, *sys.argv, "--step", name], check=True, capture_output=True, text=True)
        print(f"{name}: {told.stdout.strip()}", flush=True)
        return dict(json.loads(told.stdout))

    if not (arguments.folder / "edges.npy").exists():
        fresh("draw")
    sorting, assigning = [], []
    for _ in range(arguments.rounds):
        shutil.rmtree(arguments.folder / "graphs", ignore_errors=True)
        sorting.append(fresh("sort"))
        assigning.append(fresh("ebv"))
    fresh("check")
    for name, told in (("sort", sorting), ("ebv", assigning)):
        seconds, peak = [one["seconds"] for one in told], max(one["peak_GiB"] for one in told)
        fits = max(seconds) <= SECONDS_BAR and peak <= GIB_BAR
        print(f"{name}: {min(seconds)} to {max(seconds)} s, {peak} GiB: {'within' if fits else 'ABOVE'} the bars")
    if not arguments.keep:
        shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
