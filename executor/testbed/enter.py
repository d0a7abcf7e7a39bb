"""``python -m executor.testbed.enter --parent PID --namespace NAME --cores 0,1 [--cgroup DIR] -- COMMAND``.

Becomes COMMAND inside a namespace, on some cores, in a cgroup; the process keeps its id and ends with PID.
"""

import argparse
import ctypes
import os
import sys
from pathlib import Path

from executor.testbed.network import NAMESPACES
from executor.world.environment import follow_launcher

CLONE_NEWNET = 0x40000000


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m executor.testbed.enter", description=__doc__)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--cores", required=True)
    parser.add_argument("--cgroup", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    follow_launcher(options.parent)
    try:
        if options.cgroup is not None:
            (options.cgroup / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
        _join_namespace(NAMESPACES / options.namespace)
    except OSError as error:
        sys.exit(f"executor: error: testbed: entering {options.namespace} failed ({error}); bring it up again")
    program = options.command[0]
    try:
        os.execvp(program, options.command)
    except OSError as error:
        sys.exit(f"executor: error: testbed: '{program}' cannot be started ({error.strerror}); name another command")


def _join_namespace(path: Path) -> None:
    """Move this process's network into a named namespace (``os.setns`` exists from Python 3.12 on)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))


if __name__ == "__main__":
    main(sys.argv[1:])
