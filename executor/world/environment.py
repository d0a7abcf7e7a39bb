"""Environment variables that give a process its rank in a run, and the number of usable cores."""

import ctypes
import os
import signal
import sys

RENDEZVOUS = "SIMGNN_RENDEZVOUS"
"""File through which the ranks of one host find each other; without it torchrun's variables are used."""
LAUNCHER = "SIMGNN_LAUNCHER"
"""Process id of the launcher; ranks end when it ends."""
TESTBED = "SIMGNN_TESTBED"
"""JSON of the testbed that this rank runs in and of the rank's place there, recorded with the result."""
NO_STORAGE = 74
"""Exit status of a rank that cannot write the run directory, and so may not even note why; sysexits.h: EX_IOERR."""
PR_SET_PDEATHSIG = 1


def meeting_place() -> str | None:
    """Return the URL at which the ranks find each other; None: at the address that torchrun's variables name."""
    rendezvous = os.environ.get(RENDEZVOUS)
    return None if rendezvous is None else f"file://{rendezvous}"


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(wanted: int | None, ranks_on_host: int, cores: int | None = None) -> int:
    """Return the threads of each rank: the number that the plan wants, else an equal part of the cores, at least one.

    ``cores``: number of the host's cores, if not those of this process.
    """
    return wanted or max(1, (cores or usable_cores()) // ranks_on_host)


def follow_launcher(launcher: int) -> None:
    """Let the kernel kill this process when its launcher ends for any reason (Linux; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the call
        os._exit(1)
