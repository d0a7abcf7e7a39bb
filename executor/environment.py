"""How a process learns its place in a run: environment variables, and the cores of this host."""

import os

RENDEZVOUS = "SIMGNN_RENDEZVOUS"
"""File through which ranks of one host find each other; without it the variables of torchrun are used."""
LAUNCHER = "SIMGNN_LAUNCHER"
"""Process id of the launcher: ranks that find it here end with it."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(wanted: int | None, ranks_on_host: int) -> int:
    """Threads that each rank computes with: what the plan says, else the cores shared out evenly, at least one."""
    return wanted or max(1, usable_cores() // ranks_on_host)
