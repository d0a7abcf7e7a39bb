"""Reads facts of the machine without timing: cores, memory, processor, caches, accelerator, versions."""

import os
import platform
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil
import torch

from executor.world.environment import usable_cores

CORE_FOLDER = Path("/sys/devices/system/cpu")
CACHE_FOLDER = CORE_FOLDER / "cpu0/cache"
MULTIPLIERS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_caches(folder: Path = CACHE_FOLDER) -> list[dict[str, Any]]:
    """Return the data caches of one core, smallest first: level, size_bytes, sharers (cores per instance), source.

    Empty where the system does not show them (containers, other systems).
    """
    caches: list[dict[str, Any]] = []
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
            level = int((index / "level").read_text())
            shared = (index / "shared_cpu_list").read_text().strip()
        except OSError:
            continue
        if kind == "Instruction":
            continue
        size_bytes = int(size[:-1]) * MULTIPLIERS[size[-1]] if size[-1] in MULTIPLIERS else int(size)
        caches.append(
            {"level": level, "size_bytes": size_bytes, "sharers": _count_list(shared), "source": str(index / "size")}
        )
    return sorted(caches, key=lambda cache: cache["size_bytes"])


def count_sockets(cores: Collection[int], folder: Path = CORE_FOLDER) -> int | None:
    """Return the number of sockets that ``cores`` are on; None where the system does not show it."""
    try:
        return len({(folder / f"cpu{core}/topology/physical_package_id").read_text().strip() for core in cores})
    except OSError:
        return None


def _count_list(text: str) -> int:
    """Count the members of a kernel list such as ``0-3,8``."""
    parts = (part.partition("-") for part in text.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in parts)


def read_cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_facts(device: torch.device) -> dict[str, Any]:
    """Return all facts of this machine that the profile states without timing; sizes in bytes."""
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cpu_model": read_cpu_model(),
        "cores": usable_cores(),
        "sockets": count_sockets(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "caches": read_caches(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device.type,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts["device_name"] = properties.name
        facts["device_memory_bytes"] = properties.total_memory
        facts["device_caches"] = [
            {"level": 2, "size_bytes": properties.L2_cache_size, "sharers": 1, "source": "cudaDeviceProp"}
        ]
        facts["devices"] = torch.cuda.device_count()
    return facts
