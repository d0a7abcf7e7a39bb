"""Makes, limits and removes control groups for CPU quotas, in version 1 and 2 of cgroups."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simgnn.errors import BackendError, ConfigError

PERIOD_US = 10_000
"""Period of a quota: short, so that a slow rank is slow within an op too, not stopped for long and then fast."""
LEAST_QUOTA_US = 1_000
"""The kernel's smallest quota; a smaller share of a core gets a longer period."""
MOST_PERIOD_US = 1_000_000
SWITCH = "cgroup.subtree_control"
"""File in the folder of a version 2 group that gives controllers to the groups below it."""
PATIENCE_S = 5.0
POLL_S = 0.02


@dataclass(frozen=True)
class Controller:
    """The mounted CPU controller: the cgroup version, and the folder below which groups are made."""

    version: Literal[1, 2]
    base: Path

    def lacks_switch(self) -> bool:
        """Return whether :meth:`make` must first switch the controller on for groups below ``base``."""
        return self.version == 2 and "cpu" not in (self.base / SWITCH).read_text().split()

    def make(self, group: str, cores: float) -> None:
        """Make a group and its parents, and limit it to the time of ``cores`` cores, on any cores."""
        folder = self.base / group
        period, quota = limits(cores)
        try:
            if self.version == 2:
                if self.lacks_switch():
                    (self.base / SWITCH).write_text("+cpu")
                folder.parent.mkdir(exist_ok=True)
                (folder.parent / SWITCH).write_text("+cpu")
                folder.mkdir()
                (folder / "cpu.max").write_text(f"{quota} {period}")
            else:
                folder.mkdir(parents=True)
                (folder / "cpu.cfs_period_us").write_text(str(period))
                (folder / "cpu.cfs_quota_us").write_text(str(quota))
        except OSError as error:
            raise BackendError(
                f"testbed: the quota of cgroup {folder} cannot be set ({error.strerror}). In a container, "
                "delegate the CPU controller; or leave out 'slow', which needs it"
            ) from error


def is_cgroup(folder: Path) -> bool:
    """Return whether a folder is inside a cgroup mount."""
    inside = folder.resolve()
    return any(inside.is_relative_to(point) for _, point, _, _ in _mounts(Path("/")))


def limits(cores: float) -> tuple[int, int]:
    """Return (period, quota) in microseconds for a number of cores."""
    period = min(MOST_PERIOD_US, max(PERIOD_US, round(LEAST_QUOTA_US / cores)))
    return period, max(LEAST_QUOTA_US, round(period * cores))


def limits_of(folder: Path) -> tuple[int, int] | None:
    """Return the kernel's (period, quota) of a group in microseconds, or None where it has none."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            period, quota = ((folder / f"cpu.cfs_{word}_us").read_text() for word in ("period", "quota"))
        return int(period), int(quota)
    except (OSError, ValueError):  # gone, or "max"
        return None


def find_controller(root: Path = Path("/")) -> Controller:
    """Find the CPU controller of this machine: version 2 of cgroups where it has the CPU, else version 1.

    ``root``: the root folder, for tests. Raises :class:`ConfigError` when there is no controller.
    """
    mounts = _mounts(root)
    for kind, point, _, _ in mounts:
        controllers = root / point.lstrip("/") / "cgroup.controllers"
        if kind == "cgroup2" and controllers.is_file() and "cpu" in controllers.read_text().split():
            return Controller(2, controllers.parent)
    for kind, point, inside, options in mounts:
        if kind == "cgroup" and "cpu" in options:
            folder = root / point.lstrip("/")
            own = os.path.relpath(_own_group(root), inside)
            below = folder if own.startswith("..") else folder / own
            return Controller(1, below if below.is_dir() else folder)
    raise ConfigError(
        "testbed: slow: no CPU controller of cgroups is mounted here (neither version 1 nor 2), so no rank can be "
        "slowed down; mount one, or leave out 'slow'"
    )


def _mounts(root: Path) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Return (file system, mount point, mounted folder, options of the file system) of each cgroup mount."""
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    mounts = []
    for line in lines:
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            _, _, _, inside, point, *_ = fields.split(" ")
            mounts.append((kind, point, inside, tuple(options.split(","))))
    return mounts


def _own_group(root: Path) -> str:
    try:
        entries = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        entries = []
    return next((path for _, controllers, path in entries if "cpu" in controllers.split(",")), "/")


def members(folders: Sequence[Path]) -> set[int]:
    """Return the process ids in groups; a group that does not exist has none."""
    found: set[int] = set()
    for folder in folders:
        try:
            found.update(int(word) for word in (folder / "cgroup.procs").read_text().split())
        except OSError:
            continue
    return found


def remove(folder: Path) -> None:
    """Remove a group, if it exists, whose processes have ended. The kernel may need a moment."""
    end = time.monotonic() + PATIENCE_S
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_S)


def switch_off(base: Path) -> None:
    """Take the controller from the groups below ``base``, unless any of them uses it."""
    idle = {"cpu.max": "max", "cpu.weight": "100"}
    files = [folder / name for folder in base.iterdir() for name in idle]
    if all(file.read_text().split()[0] == idle[file.name] for file in files if file.is_file()):
        with suppress(OSError):
            (base / SWITCH).write_text("-cpu")
