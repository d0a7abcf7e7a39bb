"""Reads a DGL file in a process of its own: its reader is native code, which a damaged file may make abort or hang."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import simgnn
from simgnn.errors import GraphError
from simgnn.graph.graph import Graph
from simgnn.graph.readers import frameworks
from simgnn.graph.store import open_graph, save_graph
from simgnn.graph.typed_graph import ONE_TYPE, TypeChoice
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.outside import check_regular
from simgnn.process_end import follow_starter, with_lifeline

SECONDS, SECONDS_PER_MIB = 45.0, 1.0
"""Longest time to read a file: what loading DGL takes on a busy machine, and more for every MiB."""
SPARE_BYTES, TIMES_FILE = 2**31, 12
"""Memory that the process may take beyond what it has when DGL is loaded: so much, and so many times the file."""
PROBLEMS, GRAPH = "problems.json", "graph"


def read_dgl(
    path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN, types: TypeChoice = ONE_TYPE
) -> Graph:
    """Return what :func:`frameworks.read_dgl` reads, by another process; arrays lie in memory. Raises
    :class:`GraphError`, also when that process aborts, takes too long or too much memory."""
    options = {"symmetrise": symmetrise, "weights": asdict(weights), "types": asdict(types)}
    check_regular(path)
    with tempfile.TemporaryDirectory(prefix="simgnn-read-") as folder:
        # -P: nothing in the working directory is imported
        command = [sys.executable, "-P", "-m", __name__, str(path), folder, json.dumps(options)]
        ours = str(Path(simgnn.__file__).resolve().parent.parent)
        places = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
        environment = with_lifeline({**os.environ, "PYTHONPATH": places})
        limit_s = SECONDS + SECONDS_PER_MIB * path.stat().st_size / 2**20
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        ) as process:
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise GraphError(
                    f"{path}: reading it took more than {limit_s:.0f} s: is it damaged? write it again"
                ) from (None)
            finally:
                process.kill()
        problems = Path(folder) / PROBLEMS
        if problems.is_file():
            raise GraphError(json.loads(problems.read_text(encoding="utf-8")))
        if status != 0:
            end = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise GraphError(
                f"{path}: not a readable DGL file (its reader ended with {end}): is it damaged? write it again"
            )
        return open_graph(Path(folder) / GRAPH, mapped=False)


def _read(path: Path, folder: Path, options: dict[str, Any]) -> None:
    """Write the graph, or the problems that were found, into ``folder``."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        frameworks.load_dgl(str(path))
        _limit_memory(SPARE_BYTES + TIMES_FILE * path.stat().st_size)
        weights, types = WeightChoice(**options["weights"]), TypeChoice(**options["types"])
        graph = frameworks.read_dgl(path, symmetrise=options["symmetrise"], weights=weights, types=types)
        save_graph(graph, folder / GRAPH)
    except GraphError as error:
        partial = folder / f"{PROBLEMS}.partial"
        partial.write_text(json.dumps(error.problems), encoding="utf-8")
        partial.rename(folder / PROBLEMS)


def _limit_memory(more: int) -> None:
    """Let this process take ``more`` bytes of addresses beyond those that it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    follow_starter()
    _read(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
