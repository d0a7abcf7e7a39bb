"""Which versions and which machine a result comes from. Kept beside the numbers, never part of a digest."""

import os
import platform
from importlib import metadata
from typing import Any

import simgnn

RECORDED = ("numpy", "scipy", "numba", "simpy", "torch", "dgl", "pymetis", "pyarrow")


def versions() -> dict[str, str]:
    """Versions of Python, simgnn and the libraries that can change a number; absent ones are left out."""
    found = {"python": platform.python_version(), "simgnn": simgnn.__version__}
    for name in RECORDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """Host, cores and the environment variables that change times."""
    prefixes = ("OMP_", "MKL_", "NUMBA_", "NCCL_", "GLOO_", "TORCH_", "CUDA_", "MALLOC_", "SIMGNN_")
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(prefixes)},
    }


def processor() -> str:
    """The processor's model name, or the architecture where the system does not tell."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return platform.machine()
    return platform.machine()
