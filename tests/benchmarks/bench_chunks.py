"""Planning chunks of an R-MAT graph on disk: seconds, peak resident memory and rows that move, each in a fresh process.

``generate`` makes a folder of the graph store, and ``owners`` gives each vertex an owner, by METIS or (``--owners
random``) at random, kept on disk. Then, for each number of ranks and
chunks, ``plan`` does what a user waits for, with owners given: sets, order, slots, request lists and edges by slot, all
written. It prints the share of choosing the order, the volumes of the initial and of the chosen order by either cost,
and host rows relative to those that chunks copy by themselves (``none``).

python tests/benchmarks/bench_chunks.py --folder DIR [--edges 10000000] [--scale 20] [--ranks 2,4] [--chunks 4,8,16,32]
                                        [--owners metis|random] [--keep]
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from simgnn.graph.generators.generate import generate_to_disk
from simgnn.graph.generators.recipes import RMat
from simgnn.graph.store import open_graph
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.transfer_rates import transfer_rates
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.algorithms.metis import metis_owner
from simgnn.partition.chunks.needed_rows import ChunkedGraph, measure_order
from simgnn.partition.chunks.orders import CANDIDATES
from simgnn.partition.chunks.rank_chunks import RankChunks
from simgnn.partition.chunks.reorganise import reorganise
from simgnn.partition.chunks.store import write_chunks
from simgnn.partition.chunks.tables import buffer_rows, volumes_of
from simgnn.partition.folder import ArtifactWriter
from simgnn.partition.partitioners.block_row import random_owner
from tests.partition.chunk_checks import check_chunks

SURPLUS = 1.12  # of draws over different edges wanted: R-MAT repeats itself
SECONDS_BAR, GIB_BAR = 300.0, 6.0  # of 100 million edges, 4 ranks, 32 chunks
PROFILE = "a100-nvlink-4"


def generate(arguments: argparse.Namespace) -> dict[str, object]:
    """Draw edges, in both directions, sorted to a folder of the graph store."""
    recipe = RMat(2**arguments.scale, int(SURPLUS * arguments.edges / 2), classes=0, feature_width=0)
    graph = generate_to_disk(recipe, arguments.folder / "graph")
    assert graph.edges >= arguments.edges
    return {"vertices": graph.vertices, "stored_edges": graph.edges}


def owners(arguments: argparse.Namespace) -> dict[str, object]:
    """Give each vertex its owner."""
    graph, ranks = open_graph(arguments.folder / "graph"), arguments.rank_count
    if arguments.owners == "metis":
        owner = metis_owner(graph, ranks, 0, None, 1.03)
    else:
        owner = random_owner(graph.vertices, ranks, 0)
    np.save(arguments.folder / f"owner-{ranks}.npy", owner)
    return {"ranks": ranks}


def plan(arguments: argparse.Namespace) -> dict[str, object]:
    """Divide, choose the order and write all that ranks need."""
    graph, ranks, chunks = open_graph(arguments.folder / "graph"), arguments.rank_count, arguments.chunk_count
    owner = np.load(arguments.folder / f"owner-{ranks}.npy", mmap_mode="r")
    rates = transfer_rates(Machine.place(load_profile(PROFILE), [0] * ranks))
    target = arguments.folder / "chunks"
    target.mkdir()
    began = time.perf_counter()
    chunked = ChunkedGraph.of(graph.csr, owner, ranks, chunks, 1.0, True)
    found = reorganise(chunked, CANDIDATES, rates, "eq4")
    chosen_s = time.perf_counter() - began
    tables = write_chunks(ArtifactWriter(target), chunked.ordered(found.order), found.transition)
    volumes, initial = volumes_of(tables), found.costs["initial"]
    return {
        "order_s": round(chosen_s, 1), "planned_s": round(time.perf_counter() - began, 1), "order": found.chosen,
        "cost_over_initial": round((found.costs[found.chosen].cost or 0) / (initial.cost or 1), 4),
        "initial_v_p2p": initial.v_p2p, "initial_v_ru": initial.v_ru, **volumes.as_dict(),
        "host_rows_over_none": round(volumes.v_ru / volumes.v_ori, 4),
        "replication": round(volumes.v_ori / graph.vertices, 3), "buffer_rows": int(buffer_rows(tables).max()),
        "written_GiB": round(sum(file.stat().st_size for file in target.rglob("*.npy")) / 2**30, 2),
    }  # fmt: skip


def check(arguments: argparse.Namespace) -> dict[str, object]:
    """What was written against the graph, and either cost against the initial order; not timed against a bar."""
    graph, ranks, chunks = open_graph(arguments.folder / "graph"), arguments.rank_count, arguments.chunk_count
    owner = np.load(arguments.folder / f"owner-{ranks}.npy")
    rates = transfer_rates(Machine.place(load_profile(PROFILE), [0] * ranks))
    chunked = ChunkedGraph.of(graph.csr, owner, ranks, chunks, 1.0, True)
    told: dict[str, object] = {}
    for peer_rows in ("eq4", "exact"):
        found = reorganise(chunked, CANDIDATES, rates, peer_rows)  # type: ignore[arg-type]
        initial, chosen = found.costs["initial"].cost or 0.0, found.costs[found.chosen].cost or 0.0
        assert chosen <= initial
        told[peer_rows] = f"{found.chosen} {chosen / initial:.4f}"
        if peer_rows == "eq4":
            kept = found
    ordered = chunked.ordered(kept.order)
    volumes = measure_order(ordered, kept.transition).volumes
    initial = measure_order(chunked, reorganise(chunked, ("initial",), None, "eq4").transition).volumes
    assert (initial.v_ori, initial.v_dd) == (volumes.v_ori, volumes.v_dd)
    folders = [arguments.folder / "chunks" / f"rank-{rank}" for rank in range(ranks)]
    arrays = ({file.stem: np.load(file, mmap_mode="r") for file in folder.glob("*.npy")} for folder in folders)
    check_chunks(ordered, volumes, (RankChunks(rank, held) for rank, held in enumerate(arrays)))
    return told


STEPS = {"generate": generate, "owners": owners, "plan": plan, "check": check}


def step(name: str, arguments: argparse.Namespace) -> None:
    """One step, in this process; prints one JSON line."""
    began, worked = time.perf_counter(), time.process_time()
    told = STEPS[name](arguments)
    taken = {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - worked}
    taken["peak_GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({key: round(value, 2) for key, value in taken.items()} | told))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Print a line for each step, and whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=10_000_000, help="stored (directed) edges, at least")
    parser.add_argument("--scale", type=int, default=20, help="2**scale vertices")
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--chunks", type=numbers, default=[4, 8, 16, 32])
    parser.add_argument("--owners", choices=("metis", "random"), default="metis")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the graph, on a disk")
    parser.add_argument("--keep", action="store_true", help="keep graph and owners for the next time")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--rank-count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--chunk-count", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        step(arguments.step, arguments)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)

    def fresh(name: str, ranks: int = 0, chunks: int = 0) -> dict[str, float]:
        words = ["--step", name, "--rank-count", str(ranks), "--chunk-count", str(chunks)]
        told = subprocess.run([sys.executable, *sys.argv, *words], check=True, stdout=subprocess.PIPE, text=True)
        print(f"{name} {ranks or ''} {chunks or ''}: {told.stdout.strip()}", flush=True)
        return dict(json.loads(told.stdout))

    if not (arguments.folder / "graph").exists():
        fresh("generate")
    slowest, largest = 0.0, 0.0
    for ranks in arguments.ranks:
        if not (arguments.folder / f"owner-{ranks}.npy").exists():
            fresh("owners", ranks)
        for chunks in arguments.chunks:
            told = fresh("plan", ranks, chunks)
            slowest, largest = max(slowest, told["seconds"]), max(largest, told["peak_GiB"])
            fresh("check", ranks, chunks)
            shutil.rmtree(arguments.folder / "chunks")
    fits = slowest <= SECONDS_BAR and largest <= GIB_BAR
    print(f"plan: at most {slowest} s, {largest} GiB: {'within' if fits else 'ABOVE'} the bars")
    if not arguments.keep:
        shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
