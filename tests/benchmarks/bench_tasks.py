"""Sampling by tasks on ogbn_arxiv: against the one-shot sampler, two threads against one, and a task's own cost.

    python tests/benchmarks/bench_tasks.py [--rounds 15] [--batches 40]

All contenders draw the same batches of one epoch (512 training vertices, fan-outs 15-10 from the seeds, chunks of 256),
in alternated rounds, each once a round in an order drawn anew. Bars: two threads at least 1.4 times the tasks a second
of one; tasks with one thread at least 0.7 of the one-shot sampler's batches a second. Other processes take cores from
two threads, not from one: the processor time of the pool over its wall time says how many it had. Processor time of
the one-thread contenders, too, is less disturbed than wall time. A task's own cost is that of one that does nothing:
chunks of one vertex in a graph without edges. Two threads of a compiled loop that share nothing say how many cores two
threads can have at all: the bar of two threads says something only where that is close to 2.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arxiv import load
from numba import njit
from numpy.typing import NDArray
from paired import ratio

from simgnn.graph.csr import CSR
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.draw.seeds import batch_seed
from simgnn.sampling.tasks.batch import BatchMaker
from simgnn.sampling.tasks.pool import TaskPool
from simgnn.sampling.tasks.rows import RowTable, gathered
from simgnn.sampling.tasks.structure import WholeStructure

SPEED_UP, SHARE = 1.4, 0.7
IN_FLIGHT = 4
Seeds = Sequence[NDArray[np.int64]]


def by_tasks(maker: BatchMaker, threads: int, seeds: Seeds) -> int:
    """Draw all batches with a pool, a few in flight; return the number of tasks."""
    pool = TaskPool(threads)
    try:
        for number, mine in enumerate(seeds):
            pool.launch(number, maker.begin(mine, batch_seed(0, 0, 0, number)))
            if number >= IN_FLIGHT:
                pool.take(number - IN_FLIGHT, 300)
        for number in range(max(0, len(seeds) - IN_FLIGHT), len(seeds)):
            pool.take(number, 300)
    finally:
        pool.close()
    return sum(len(maker.graph(len(mine)).tasks) for mine in seeds)


@njit(cache=True, nogil=True)
def _spin(turns: Any) -> Any:
    state = np.uint64(1)
    for _ in range(turns):
        state = (state * np.uint64(6364136223846793005)) ^ (state >> np.uint64(3))
    return state


def spin() -> None:
    """Keep two threads busy with compiled code that shares nothing."""
    threads = [threading.Thread(target=_spin, args=(20_000_000,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def at_once(sampler: Sampler, seeds: Seeds, table: NDArray[np.float32] | None) -> None:
    """Draw all batches one after the other; with a table, gather their input rows."""
    for number, mine in enumerate(seeds):
        batch = sampler.sample(mine, batch_seed(0, 0, 0, number))
        if table is not None:
            gathered(table, batch.vertices)


def measured(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, NDArray[np.float64]]:
    """Wall and processor seconds of each contender in each round, float64 [rounds, 2]."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    draw = np.random.default_rng(0)
    for turn in range(-2, rounds):
        for name in draw.permutation(list(contenders)):
            began, busy = time.perf_counter(), time.process_time()
            contenders[name]()
            seconds = time.perf_counter() - began, time.process_time() - busy
            if turn >= 0:
                found[str(name)].append(seconds)
    return {name: np.array(values) for name, values in found.items()}


def verdict(low: float, high: float, bar: float) -> str:
    return "holds" if low >= bar else "MISSES" if high < bar else "is inconclusive against"


def main() -> None:
    """Print rates, ratios with their spread, the load, and the cost of a task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40, help="of the epoch's first")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--data", type=Path, help="folder of ogbn_arxiv.npz (default: SIMGNN_DATA)")
    arguments = parser.parse_args()
    task, fanouts = load(arguments.data), (15, 10)
    plan = SamplingPlan(task.csr, np.zeros(task.csr.rows, np.int32), (task.train.numpy(),), fanouts, 512, 0)
    turn = plan.epoch(0, 0)
    seeds = [turn.seeds(number) for number in range(min(arguments.batches, len(turn)))]
    structure, table = WholeStructure(task.csr), task.features.numpy()
    plain = BatchMaker(structure, fanouts, arguments.chunk)
    fetching = BatchMaker(structure, fanouts, arguments.chunk, table=RowTable(table))
    sampler = Sampler(task.csr, fanouts)
    empty = CSR(np.zeros(1025, np.int64), np.empty(0, np.int32), 1024)
    idle = BatchMaker(WholeStructure(empty), fanouts, 1)
    idle_seeds = [np.arange(512) for _ in range(4)]
    print(f"load before {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    times = measured(
        {
            "one-shot": lambda: at_once(sampler, seeds, None),
            "tasks, 1 thread": lambda: by_tasks(plain, 1, seeds),
            "tasks, 2 threads": lambda: by_tasks(plain, 2, seeds),
            "one-shot, rows": lambda: at_once(sampler, seeds, table),
            "tasks with rows, 1 thread": lambda: by_tasks(fetching, 1, seeds),
            "tasks with rows, 2 threads": lambda: by_tasks(fetching, 2, seeds),
            "two threads that share nothing": spin,
            "idle tasks": lambda: by_tasks(idle, 1, idle_seeds),
        },
        arguments.rounds,
    )
    shared = times.pop("two threads that share nothing")
    print(f"two threads that share nothing had {np.median(shared[:, 1] / shared[:, 0]):.2f} cores")
    for name, both in times.items():
        wall, busy = np.median(both, axis=0)
        count = len(idle_seeds) if name == "idle tasks" else len(seeds)
        each = f"{1e3 * wall / count:.2f} ms a batch, {1e3 * busy / count:.2f} of processors"
        print(f"{name}: {each}, {busy / wall:.2f} cores")
    for kind, maker in (("tasks", plain), ("tasks with rows", fetching)):
        one, two = times[f"{kind}, 1 thread"], times[f"{kind}, 2 threads"]
        count = sum(len(maker.graph(len(mine)).tasks) for mine in seeds)
        found = ratio(one[:, 0], two[:, 0])
        rates = [count / np.median(some[:, 0]) for some in (one, two)]
        print(f"{kind}: {rates[0]:,.0f} and {rates[1]:,.0f} a second, 2 threads against 1: {found}", end=": ")
        print(f"{verdict(found.low, found.high, SPEED_UP)} the bar of {SPEED_UP}x")
    for before, after in (("one-shot", "tasks, 1 thread"), ("one-shot, rows", "tasks with rows, 1 thread")):
        for column, clock in enumerate(("wall time", "processor time")):
            found = ratio(times[before][:, column], times[after][:, column])
            print(f"{after} against {before}, batches a second by {clock}: {found}", end=": ")
            print(f"{verdict(found.low, found.high, SHARE)} the bar of {SHARE}x")
    tasks = sum(len(idle.graph(len(mine)).tasks) for mine in idle_seeds)
    cost = np.median(times["idle tasks"], axis=0) / tasks
    print(f"a task that does nothing: {1e6 * cost[0]:.0f} us, {1e6 * cost[1]:.0f} us of processors")
    print(f"load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
