"""Presampling ogbn_arxiv to disk: batches a second and peak memory above the graph, each round in a fresh process.

    python tests/benchmarks/bench_presample.py [--epochs 10] [--fanouts 25 10] [--ranks 4] [--hot-rows 1000]

The graph is loaded and a small run of the same code compiled for first; from there on the clock runs and the peak
resident memory is compared with that at the start. Writing, digests and statistics are inside. Bar: 1 GiB above the
graph. ``--copies N`` samples a graph of N arxivs side by side, its arrays memory-mapped. ``--hot-rows N`` also tells of
caches of 0, N and 10 N rows and plans the fetches of N, each rank on a host of its own; the peak is then that of all.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from arxiv import load

from simgnn.graph.csr import CSR
from simgnn.sampling.batches.plan import SamplingPlan, local_split
from simgnn.sampling.batches.presample import presample
from simgnn.sampling.fetches.fetch_plan import plan_fetches
from simgnn.sampling.fetches.measured_sizes import forecast

GIB_BAR = 1.0


def plan_of(arguments: argparse.Namespace) -> SamplingPlan:
    """The plan of random owners; a graph of several copies lies in memory-mapped files."""
    task = load(arguments.data)
    csr, train = task.csr, task.train.numpy()
    if arguments.copies > 1:
        parts = np.arange(arguments.copies, dtype=np.int64)[:, None]
        indptr = np.append((csr.indptr[:-1] + parts * csr.edges).ravel(), arguments.copies * csr.edges)
        np.save(arguments.folder / "indptr.npy", indptr)
        np.save(arguments.folder / "indices.npy", (csr.indices + parts * csr.rows).astype(np.int32).ravel())
        arrays = (np.load(arguments.folder / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices"))
        train = (train + parts * csr.rows).ravel()
        csr = CSR(*arrays, arguments.copies * csr.rows)
    owner = np.random.default_rng(0).integers(0, arguments.ranks, csr.rows).astype(np.int32)
    workers = local_split(train, owner, arguments.ranks)
    return SamplingPlan(csr, owner, workers, tuple(arguments.fanouts), arguments.batch_size, 0)


def plan_all(plan: SamplingPlan, arguments: argparse.Namespace) -> dict[str, float | str]:
    """Seconds of the forecast and of the fetch plan, and what the middle cache hits."""
    hosts, folder, hot_rows = np.arange(plan.ranks), arguments.folder / "batches", arguments.hot_rows
    began = time.perf_counter()
    found = forecast(plan, folder, hosts, arguments.epochs, [0, hot_rows, 10 * hot_rows])
    forecast_s = time.perf_counter() - began
    began = time.perf_counter()
    planned = plan_fetches(plan, "bench", folder, arguments.epochs, hosts, hot_rows, threads=arguments.threads)
    return {
        "forecast_s": round(forecast_s, 2),
        "fetch_plan_s": round(time.perf_counter() - began, 2),
        "hit_rate": round(found.curve.hits(hot_rows) / found.curve.remote, 4),
        "fetch_digest": planned.digest[:12],
    }


def one(arguments: argparse.Namespace) -> None:
    """One round, in this process; prints one JSON line."""
    plan = plan_of(arguments)
    few = SamplingPlan(plan.csr, plan.owner, tuple(part[:9] for part in plan.workers), plan.fanouts, 9, 1)
    presample(few, "compiling", arguments.folder / "few", 1, threads=1)
    process = psutil.Process()
    before = process.memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    began, worked = time.perf_counter(), time.process_time()
    made = presample(plan, "bench", arguments.folder / "batches", arguments.epochs, threads=arguments.threads)
    seconds, processor = time.perf_counter() - began, time.process_time() - worked
    fetches = plan_all(plan, arguments) if arguments.hot_rows else {}
    peak = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    assert made.tally is not None
    edges = int(made.tally.edges.sum())
    told = {
        "batches": made.tally.batches,
        "seconds": round(seconds, 2),
        "processor_seconds": round(processor, 2),
        "batches_per_s": round(made.tally.batches / seconds, 1),
        "million_edges_per_s": round(edges / seconds / 1e6, 2),
        "MiB_on_disk": round(made.size_bytes / 2**20, 1),
        "GiB_before": round(before / 2**30, 3),
        "GiB_above": round((peak * 1024 - before) / 2**30, 3),
        "digest": (made.digest or "")[:12],
        **fetches,
    }
    print(json.dumps(told))


def main() -> None:
    """Print a line a round, and whether the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[25, 10])
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--hot-rows", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="folder of ogbn_arxiv.npz (default: SIMGNN_DATA)")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-presample"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments)
        return
    above = []
    for _ in range(arguments.rounds):
        shutil.rmtree(arguments.folder, ignore_errors=True)
        arguments.folder.mkdir(parents=True)
        told = subprocess.run([sys.executable, *sys.argv, "--one"], check=True, capture_output=True, text=True).stdout
        print(told.strip(), flush=True)
        above.append(json.loads(told)["GiB_above"])
    shutil.rmtree(arguments.folder)
    print(f"{max(above)} GiB above the graph at most: {'within' if max(above) <= GIB_BAR else 'ABOVE'} the bar")


if __name__ == "__main__":
    main()
