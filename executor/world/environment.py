"""Environment variables that give a process its place in a run, and the cores of this host."""

import ctypes
import os
import signal
import sys

RENDEZVOUS = "SIMGNN_RENDEZVOUS"
"""File through which the ranks of one host find each other; without it torchrun's variables are used."""
LAUNCHER = "SIMGNN_LAUNCHER"
"""Process id of the launcher; ranks end with it."""
TESTBED = "SIMGNN_TESTBED"
"""JSON: the testbed that this rank runs in and its place there, recorded with the result."""
PR_SET_PDEATHSIG = 1


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(wanted: int | None, ranks_on_host: int, cores: int | None = None) -> int:
    """Threads that each rank computes with: those that the plan wants, else an equal part of the cores, at least one.

    ``cores``: number of the host's cores, if not those of this process.
    """
    return wanted or max(1, (cores or usable_cores()) // ranks_on_host)


def follow_launcher(launcher: int) -> None:
    """Let the kernel end this process when its launcher dies, however it dies (Linux; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the call
        os._exit(1)
