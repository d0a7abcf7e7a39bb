"""Times a fixed piece of reference work beside the runs, to show changes of the machine's speed; it corrects nothing.

``python -m simgnn.study.validate.drift_check`` prints the seconds of one thread in a new process: a sparse times a
dense matrix, a matrix product, and a pass over a large array.
"""

import os
import subprocess
import sys
import time

from simgnn.errors import BackendError

ROUNDS = 40
ROWS, EDGES_A_ROW, WIDTH, SIDE, ITEMS = 20_000, 10, 64, 512, 4_000_000


def canary_seconds() -> float:
    """Measure the median seconds of a round of reference work, in a new process. Raises :class:`BackendError`."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-P", "-m", "simgnn.study.validate.drift_check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **one_thread})
    if done.returncode != 0:
        raise BackendError(f"validate: the timed workload failed with status {done.returncode}:\n{done.stderr.strip()}")
    return float(done.stdout)


def main() -> None:
    """Do the reference work and print the median seconds of a round."""
    # loaded by the process that does the work
    import numpy as np
    from scipy import sparse

    rng = np.random.default_rng(0)
    columns = rng.integers(0, ROWS, ROWS * EDGES_A_ROW)
    pointers = np.arange(0, len(columns) + 1, EDGES_A_ROW)
    matrix = sparse.csr_array((np.ones(len(columns), np.float32), columns, pointers), shape=(ROWS, ROWS))
    rows = rng.random((ROWS, WIDTH), dtype=np.float32)
    square = rng.random((SIDE, SIDE), dtype=np.float32)
    flat = rng.random(ITEMS, dtype=np.float32)
    seconds = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        matrix @ rows
        square @ square
        np.multiply(flat, 1.5, out=flat)
        seconds.append(time.perf_counter() - began)
    print(float(np.median(seconds[1:])))  # the first touches its memory for the first time


if __name__ == "__main__":
    main()
