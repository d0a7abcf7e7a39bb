"""Hardware profiles: read, check and write the file that describes a machine, with the source of each number."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, StrictStr, ValidationError, model_validator

from simgnn.errors import ConfigError, HardwareError
from simgnn.hardware.profile.communication import Backend, LinkType
from simgnn.hardware.profile.devices import Device
from simgnn.hardware.profile.library import find_profile
from simgnn.hardware.profile.quantities import SOURCES, Strict, sourced
from simgnn.hardware.topology.topology import Name, Topology, expand_edges, topology_problems
from simgnn.schema_faults import sentences
from simgnn.tomlfile import load_toml, without_none, write_toml
from simgnn.units import format_quantity

FORMAT: Literal[1] = 1
BackendName = Literal["gloo", "nccl"]


class Meta(Strict):
    """What the profile describes, and how it was made. ``calibrated_ranks``: rank counts of the calibration; empty:
    never calibrated. ``ranks_per_host``: declared by a testbed. ``sources``: documents behind its numbers."""

    name: Name
    description: StrictStr
    date: datetime.date
    versions: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    calibrated_ranks: tuple[Annotated[StrictInt, Field(ge=1)], ...] = ()
    ranks_per_host: Annotated[StrictInt, Field(ge=1)] | None = None
    sources: tuple[StrictStr, ...] = ()


class Profile(Strict):
    """A hardware profile: devices, kinds of links, the topology, and the measured communication libraries.

    ``usual_backend``: the library of groups that name none (None: NCCL among GPUs where it is described, else Gloo).
    """

    format: Literal[1] = FORMAT
    usual_backend: BackendName | None = None
    meta: Meta
    devices: Annotated[dict[Name, Device], Field(min_length=1)]
    links: dict[Name, LinkType] = Field(default_factory=dict)
    topology: Topology
    backends: dict[BackendName, Backend] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _references(self) -> Self:
        problems = topology_problems(self.topology, self.devices, self.links) or _burst_problems(self)
        if self.usual_backend is not None and self.usual_backend not in self.backends:
            problems = [
                *problems,
                f"usual_backend: got '{self.usual_backend}', expected a library that the profile describes: "
                f"{', '.join(self.backends) or 'none'}; describe it as [backends.{self.usual_backend}], or remove this",
            ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def usual_ranks(self, devices: int) -> int:
        """Return the default number of ranks on a host with this number of CPUs: the declared number, else one per CPU,
        or as many as were calibrated if that is more."""
        measured = max(self.meta.calibrated_ranks, default=0) // len(self.topology.host_names())
        return self.meta.ranks_per_host or max(devices, measured, 1)

    @property
    def calibrated(self) -> bool:
        """Whether times were measured on this machine by a calibration."""
        return bool(self.meta.calibrated_ranks)

    def default_backend(self) -> str:
        """Return the usual backend, or else "nccl" if the profile has GPUs and describes NCCL, else "gloo"."""
        if self.usual_backend is not None:
            return self.usual_backend
        placed = [entry.type for host in self.topology.hosts.values() for entry in host.devices]
        gpus = any(self.devices[name].kind == "gpu" for name in placed)
        return "nccl" if gpus and "nccl" in self.backends else "gloo"

    def using(self, backend: BackendName) -> Self:
        """Return the profile with this library as the usual one. Raises :class:`HardwareError` if it has none such."""
        if backend not in self.backends:
            raise HardwareError(
                f"backends.{backend}: the profile '{self.meta.name}' does not describe this library; it has: "
                f"{', '.join(self.backends) or 'none'}. Describe it, or name another."
            )
        return self.model_copy(update={"usual_backend": backend})

    def source_counts(self) -> dict[str, int]:
        """Count the numbers of the profile by source. A curve counts as one."""
        counts: dict[str, int] = dict.fromkeys(SOURCES, 0)
        for _, part in sourced(self):
            counts[part.source] += 1
        return counts

    def assumptions(self) -> str | None:
        """Describe the assumed numbers of the profile in a sentence; None: no number is assumed."""
        counts = self.source_counts()
        if not counts["assumed"]:
            return None
        kinds = [
            name for name, device in self.devices.items() if any(curve.source == "assumed" for curve in device.curves)
        ]
        times = f", among them kernel times of {', '.join(kinds)}" if kinds else ""
        return f"assumed: {counts['assumed']} of {sum(counts.values())} numbers of '{self.meta.name}'{times}"

    def limits(self) -> list[str]:
        """List simplifications of the machine, as sentences that every result of this profile must state."""
        return [
            f"'{name}' of '{self.meta.name}' stands for {device.sockets} sockets as one: ranks roam over them, and "
            "memory of another socket costs what a rank's own does"
            for name, device in self.devices.items()
            if (device.sockets or 1) > 1
        ]

    def to_table(self) -> dict[str, Any]:
        """Return the table that is written as TOML, without default values."""
        table = without_none(self.model_dump(exclude_defaults=True))
        return {"format": FORMAT, **table}


def _burst_problems(profile: Profile) -> list[str]:
    """Report bursts on links in a profile where messages of a device are copied through host memory, copy by copy.

    One flow stands for all copies and is slower than each link, so it is unknown how many bytes a link accumulates.
    """
    used = {placed.type for host in profile.topology.hosts.values() for placed in host.devices}
    apart = [name for name in profile.devices if name in used and profile.devices[name].staged]
    sending = [str(name) for name, backend in profile.backends.items() if backend.memory == "device"]
    if not apart or not sending:
        return []
    crossed = {link for one, other, link, _ in expand_edges(profile.topology) if one != other}
    return [
        f"links.{name}.burst: got {format_quantity(link.burst.value, 'bytes')}, but messages of '{apart[0]}' go as "
        "copies through host memory, where bursts cannot be priced. Remove it, set peer_to_peer = true for "
        f"{', '.join(apart)}, or set backends.{sending[0]}.memory = 'host'."
        for name, link in profile.links.items()
        if name in crossed and link.burst is not None
    ]


def find_problems(table: Mapping[str, Any]) -> tuple[Profile | None, list[str]]:
    """Parse a table into a profile, or return every problem. References are checked even if other parts are invalid."""
    try:
        return Profile.model_validate(dict(table)), []
    except ValidationError as error:
        problems = sentences(Profile, error)
    try:
        topology = Topology.model_validate(table.get("topology"))
    except ValidationError:
        return None, problems
    devices, links = (
        list(entry) if isinstance(entry, Mapping) else [] for entry in (table.get("devices"), table.get("links"))
    )
    return None, list(dict.fromkeys(problems + topology_problems(topology, devices, links)))


def parse_profile(table: Mapping[str, Any], label: str = "hardware profile") -> Profile:
    """Parse a table into a profile. Raises :class:`HardwareError` with every problem, one line each."""
    profile, problems = find_problems(table)
    if profile is None:
        raise HardwareError("\n".join(f"{label}: {problem}" for problem in problems))
    return profile


def load_profile(name_or_path: str | Path) -> Profile:
    """Load a profile by path or name. Raises :class:`HardwareError` with every problem of the file."""
    path = find_profile(str(name_or_path))
    return parse_profile(load_table(path), str(path))


def load_table(path: Path) -> dict[str, Any]:
    """Read the table of a profile file without checks. Raises :class:`HardwareError` if it is not valid TOML."""
    try:
        return load_toml(path)
    except ConfigError as error:
        raise HardwareError(str(error)) from None


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile as TOML, atomically. Loading the file gives an equal profile."""
    write_toml(path, profile.to_table())
