"""RAPL: energy of processor packages and of memory modules, from Linux's powercap folder.

Each domain has a folder with its ``name``, a counter ``energy_uj`` (microjoules) and the value after which that begins
anew, ``max_energy_range_uj``. Packages are summed. Their parts (core, uncore) and the platform (psys), which holds
them, are left out. It is the energy of the whole machine, whoever else computes there.
"""

from dataclasses import dataclass
from pathlib import Path

from executor.energy.gauges import Gauge, Sensor, counted_joules
from simgnn.errors import BackendError
from simgnn.record.energy import Floats, Part

POWERCAP = Path("/sys/class/powercap")
PACKAGE, MEMORY = "package", "dram"
"""How the names of domains begin that are counted."""
J_PER_UJ = 1e-6


@dataclass(frozen=True)
class RaplDomain:
    """The counter of one domain, which begins anew after ``range_J``."""

    folder: Path
    range_J: float  # noqa: N815  the unit is part of the name

    @classmethod
    def open(cls, folder: Path) -> "RaplDomain":
        """A domain whose counter can be read; raises :class:`BackendError` for one whose cannot."""
        domain = cls(folder, _microjoules(folder / "max_energy_range_uj") * J_PER_UJ)
        domain.read()
        return domain

    def read(self) -> float:
        """See :class:`~executor.energy.gauges.Sensor`; joules."""
        return _microjoules(self.folder / "energy_uj") * J_PER_UJ

    def joules(self, times_s: Floats, readings: Floats) -> Floats:
        """See :class:`~executor.energy.gauges.Sensor`."""
        return counted_joules(readings, self.range_J)


def processor_gauges(part: Part, root: Path = POWERCAP) -> list[Gauge]:
    """Of this machine's processors, as ``part`` of it, and of its memory, where that has counters of its own."""
    domains = _domains(root)
    packages = {name: folder for name, folder in domains.items() if name.startswith(PACKAGE)}
    memories = {name: folder for name, folder in domains.items() if name.startswith(MEMORY)}
    if not packages:
        reason = f"no RAPL counter of a package in {root}" if root.is_dir() else f"no RAPL counters: no folder {root}"
        return [Gauge(part, "processors", reason=reason)]
    return [_gauge(part, "processors", packages), *([_gauge("memory", "memory", memories)] if memories else [])]


def _domains(root: Path) -> dict[str, Path]:
    """Folder of each domain by its name, made unique by the folder's. Domains inside others have links here too."""
    found = {}
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            found[f"{(folder / 'name').read_text().strip()} ({folder.name})"] = folder
        except OSError:  # a domain without a name is none of those that are looked for
            continue
    return found


def _gauge(part: Part, name: str, folders: dict[str, Path]) -> Gauge:
    """The sum of some domains, all of which must be readable: a part of the sum would pass for the whole."""
    try:
        sensors: tuple[Sensor, ...] = tuple(RaplDomain.open(folder) for folder in folders.values())
    except BackendError as error:
        return Gauge(part, name, reason=str(error))
    return Gauge(part, name, f"RAPL energy_uj of {', '.join(folders)}", sensors)


def _microjoules(path: Path) -> float:
    try:
        return float(int(path.read_text()))
    except PermissionError as error:
        raise BackendError(
            f"{path} may not be read: Linux lets only root do so; run as root, or have root do: chmod a+r {path}"
        ) from error
    except (OSError, ValueError) as error:
        raise BackendError(f"{path} cannot be read: {error}") from error
