"""Times a fixed piece of reference work beside the runs, to show changes of the machine's speed; it corrects nothing.

``python -m simgnn.study.validate.drift_check`` prints seconds: one process on each core multiplies a sparse and two
dense matrices and passes over a large array. All cores work at once: on one of them other work would stay unnoticed.
"""

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from simgnn.errors import BackendError
from simgnn.graph.thread_pool import usable_threads

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue
    from multiprocessing.synchronize import Barrier

ROUNDS = 40
ROWS, EDGES_A_ROW, WIDTH, SIDE, ITEMS = 20_000, 10, 64, 512, 4_000_000
READY_S = 120.0
"""Seconds after which a core stops waiting for the others."""


def canary_seconds() -> float:
    """Measure the median seconds of a round of reference work, in new processes. Raises :class:`BackendError`."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-P", "-m", "simgnn.study.validate.drift_check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **one_thread})
    if done.returncode != 0:
        raise BackendError(f"validate: the timed workload failed with status {done.returncode}:\n{done.stderr.strip()}")
    return float(done.stdout)


def main() -> None:
    """Do the reference work on every usable core at once, and print the median over cores of the seconds of a round."""
    cores = usable_threads()
    context = multiprocessing.get_context("fork")  # numpy is not loaded yet, so there are no threads to lose
    together, found = context.Barrier(cores), context.SimpleQueue()
    workers = [context.Process(target=_work, args=(together, found), daemon=True) for _ in range(cores)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            sys.exit(f"a process of the reference work ended with status {worker.exitcode}")
    print(statistics.median(found.get() for _ in workers))


def _work(together: "Barrier", found: "SimpleQueue[float]") -> None:
    """Put the median seconds of a round on one core, begun when all cores are ready, into ``found``."""
    # loaded by the processes that do the work
    import numpy as np
    from scipy import sparse

    rng = np.random.default_rng(0)
    columns = rng.integers(0, ROWS, ROWS * EDGES_A_ROW)
    pointers = np.arange(0, len(columns) + 1, EDGES_A_ROW)
    matrix = sparse.csr_array((np.ones(len(columns), np.float32), columns, pointers), shape=(ROWS, ROWS))
    rows = rng.random((ROWS, WIDTH), dtype=np.float32)
    square = rng.random((SIDE, SIDE), dtype=np.float32)
    flat = rng.random(ITEMS, dtype=np.float32)
    together.wait(READY_S)
    seconds = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        matrix @ rows
        square @ square
        np.multiply(flat, 1.5, out=flat)
        seconds.append(time.perf_counter() - began)
    found.put(float(np.median(seconds[1:])))  # the first touches its memory for the first time


if __name__ == "__main__":
    main()
