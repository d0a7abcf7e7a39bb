"""How much memory this process may still take, and a check before much of it is taken."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from simgnn.errors import GraphError, SimgnnError

CGROUPS = Path("/sys/fs/cgroup")
GIB = 2**30
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage of a control group, of version 2 and of version 1."""


def available_bytes(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes that this process can still take: the least of what the machine has free, what the limits of
    its control groups leave (containers, batch systems), and what its own limit (``ulimit -v``) leaves."""
    found = [psutil.virtual_memory().available, *_left_in_groups(cgroups, membership)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        found.append(max(0, limit - psutil.Process().memory_info().vms))
    return int(min(found))


def check_memory(needed: float, what: str, remedy: str, error: type[SimgnnError] = GraphError) -> None:
    """Raise ``error`` if ``needed`` bytes are more than this process can still take. ``what`` begins the message, such
    as "graph.source: reading g.csv"; ``remedy`` ends it."""
    available = available_bytes()
    if needed > available:
        raise error(
            f"{what} takes about {needed / GIB:.1f} GiB of memory, but {available / GIB:.1f} GiB are free here: "
            f"{remedy}"
        )


def _left_in_groups(cgroups: Path, membership: Path) -> Iterator[int]:
    """Yield what each control group above this process leaves; pages of files that it can drop count as free."""
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            number, controllers, name = line.split(":", 2)
            if number != "0" and "memory" not in controllers.split(","):
                continue
            top = cgroups if number == "0" else cgroups / "memory"
            here = top / name.lstrip("/")
            for folder in (here, *here.parents):
                if folder != top and top not in folder.parents:
                    break
                yield from _left_in(folder)


def _left_in(folder: Path) -> Iterator[int]:
    for limit_file, usage_file in _FILES:
        with suppress(OSError, ValueError):  # absent, or "max": no limit
            limit, usage = (int((folder / name).read_text()) for name in (limit_file, usage_file))
            yield max(0, limit - usage + _droppable(folder))


def _droppable(folder: Path) -> int:
    with suppress(OSError, ValueError):
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(value) for name, value in lines if name == "inactive_file")
    return 0
