"""``python -m executor.testbed.enter PARENT NAMESPACE CORES CGROUP COMMAND...``, called by the testbed's runs.

Replaces itself by COMMAND in a network namespace, on some cores ("0,1"), in a cgroup's folder ("-": none). The process
keeps its id and ends when the process PARENT ends.
"""

import ctypes
import os
import sys
from pathlib import Path

from executor.testbed.network import NAMESPACES
from executor.world.environment import follow_launcher

CLONE_NEWNET = 0x40000000


def main(parent: str, namespace: str, cores: str, cgroup: str, *command: str) -> None:
    follow_launcher(int(parent))
    try:
        if cgroup != "-":
            (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
        _join_namespace(NAMESPACES / namespace)
    except OSError as error:
        sys.exit(f"executor: error: testbed: entering {namespace} failed ({error}); bring it up again")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"executor: error: testbed: '{command[0]}' cannot be started ({error.strerror}); name another command")


def _join_namespace(path: Path) -> None:
    """Move this process's network into a named namespace (``os.setns`` exists from Python 3.12 on)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
