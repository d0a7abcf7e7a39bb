"""Reads the TOML file of a testbed (hosts, ranks, links, slow ranks), and assigns cores to hosts and ranks."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, StrictStr, ValidationError, ValidationInfo, field_validator

from simgnn.errors import ConfigError
from simgnn.hardware.profile.quantities import Bytes, BytesPerSecond, Strict
from simgnn.schema_faults import sentences
from simgnn.tomlfile import load_toml, without_none
from simgnn.units import format_quantity

MTU_BYTES = 1500
"""Largest packet of every interface; it is set, so that the payload of a frame is known."""
FRAME_BYTES = MTU_BYTES + 14
"""Bytes that the shaper counts for a full packet, including the Ethernet header."""
PAYLOAD_BYTES = MTU_BYTES - 20 - 32
"""Payload of a full packet, without the headers of IPv4 and of TCP with time stamps."""
ACKNOWLEDGED_FRAMES, ACKNOWLEDGEMENT_BYTES = 2, FRAME_BYTES - PAYLOAD_BYTES
"""A receiver acknowledges every second full packet (RFC 5681, 4.2) with one packet in the other direction of the link:
32 % of 318,161 packets that a shaper counted while two ranks exchanged rows were acknowledgements."""
LEAST_RATE = 12500.0
"""Bytes per second; on slower links, ranks time out before they connect."""
BURST_RANGE = (2048.0, 67108864.0)
"""Bytes: with a smaller burst no packet passes, and with a larger one the rate limits nothing."""
BURST_FLOOR = 4096.0
BURST_S = 0.2e-3
"""Default burst in seconds of the rate; at least ``BURST_FLOOR`` bytes. The kernel wakes a shaper about 0.05 ms late,
and a smaller burst wastes that time; a larger one lets small messages through unshaped."""
MOST_RATE = BURST_RANGE[1] / BURST_S
"""Bytes per second whose default burst is the largest one: no virtual interface is faster."""
LEAST_SHARE = 0.01
PREFIX = "simgnn"
"""First word of the names of everything that a testbed makes; the second word is the testbed's name."""
INTERFACE, LOOPBACK = "eth0", "lo"


class Declaration(Strict):
    """A testbed as declared in its TOML file.

    ``link``: rate of each host's link, in each direction (a single host has none); ``burst``: bytes that pass at full
    speed after a pause; ``queue``: whether connections take turns in front of a link ("fair") or wait in one line
    ("fifo"). ``slow``: rank -> share of full speed, such as {3 = 0.5}. ``name``: tells testbeds of a machine apart.
    """

    name: StrictStr = "testbed"
    hosts: Annotated[StrictInt, Field(ge=1, le=64)]
    ranks_per_host: Annotated[StrictInt, Field(ge=1, le=64)]
    link: BytesPerSecond | None = Field(default=None, validate_default=True)
    burst: Bytes | None = None
    queue: Literal["fair", "fifo"] = "fair"
    slow: dict[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if not (name.isascii() and name.replace("-", "").isalnum() and name[0].isalpha() and len(name) <= 24):
            raise ValueError(f"got '{name}', expected at most 24 letters, digits and '-', a letter first")
        return name

    @field_validator("link", "burst", "queue")
    @classmethod
    def _between_hosts(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get("hosts") == 1:
            raise ValueError("got a value, but a single host has no link; leave it out, or use hosts = 2")
        return value

    @field_validator("link")
    @classmethod
    def _in_range(cls, link: float | None, info: ValidationInfo) -> float | None:
        if link is None and info.data.get("hosts", 1) > 1:
            raise ValueError("missing; expected the rate of the link between hosts, such as '200 Mbit/s'")
        if link is not None and link < LEAST_RATE:
            raise ValueError(f"got {link * 8:.0f} bit/s, expected at least {LEAST_RATE * 8 / 1000:.0f} kbit/s")
        if link is not None and link > MOST_RATE:
            raise ValueError(f"got {link * 8 / 1e12:.4g} Tbit/s, expected at most {MOST_RATE * 8 / 1e12:.3g} Tbit/s")
        return link

    @field_validator("burst")
    @classmethod
    def _a_packet_passes(cls, burst: float | None) -> float | None:
        low, high = BURST_RANGE
        if burst is not None and not low <= burst <= high:
            shown = [format_quantity(size, "bytes") for size in (burst, low, high)]
            raise ValueError(f"got '{shown[0]}', expected between '{shown[1]}' and '{shown[2]}'")
        return burst

    @field_validator("slow")
    @classmethod
    def _known_ranks(cls, slow: dict[str, Any], info: ValidationInfo) -> dict[str, float]:
        hosts, each = info.data.get("hosts"), info.data.get("ranks_per_host")
        faults, shares = [], {}
        for key, share in slow.items():
            number = int(key) if key.isascii() and key.isdigit() else -1
            if number < 0:
                faults.append(f"got '{key}', expected a rank, such as slow = {{ 3 = 0.5 }}")
            elif hosts is not None and each is not None and number >= hosts * each:
                faults.append(f"got rank {number}, expected one of 0 to {hosts * each - 1}")
            elif str(number) in shares:
                faults.append(f"got rank {number} twice, expected it once")
            if isinstance(share, bool) or not isinstance(share, int | float) or not LEAST_SHARE <= share <= 1:
                faults.append(f"{key}: got {share!r}, expected a share of full speed from {LEAST_SHARE} to 1")
            else:
                shares[str(number)] = float(share)
        if faults:
            raise ValueError("\n".join(faults))
        return shares

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> Self:
        """Read a file, under another ``name`` if given. Raises :class:`ConfigError` with one line for every fault."""
        return cls.parse(load_toml(path) | ({} if name is None else {"name": name}), str(path))

    @classmethod
    def parse(cls, table: Mapping[str, Any], label: str) -> Self:
        """Read a table that error messages call ``label``. Raises :class:`ConfigError` as :meth:`load` does."""
        try:
            return cls.model_validate(dict(table))
        except ValidationError as error:
            raise ConfigError([f"{label}: {problem}" for problem in sentences(cls, error)]) from None

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    def rank_hosts(self) -> tuple[int, ...]:
        """Return the host of each rank, in blocks, as experiments place ranks."""
        return tuple(rank // self.ranks_per_host for rank in range(self.ranks))

    def share(self, rank: int) -> float:
        """Return the share of full speed that a rank has."""
        return float(self.slow.get(str(rank), 1.0))

    def burst_bytes(self) -> float:
        """Return the bytes that pass the link at full speed after a pause."""
        return max(BURST_FLOOR, BURST_S * (self.link or 0.0)) if self.burst is None else self.burst

    def to_table(self) -> dict[str, Any]:
        """Return the table of an equivalent TOML file, with defaults spelled out."""
        table: dict[str, Any] = without_none(self.model_dump())
        if self.link is not None:
            table["burst"] = format_quantity(self.burst_bytes(), "bytes")
        else:
            del table["queue"]
        return table


@dataclass(frozen=True)
class HostPlace:
    """Where a host runs. ``cores``: core numbers, not shared unless there are more hosts than cores; ``core_count``:
    how many cores it can use, a fraction where hosts share a core."""

    number: int
    namespace: str
    interface: str
    address: str | None
    cores: tuple[int, ...]
    core_count: float


@dataclass(frozen=True)
class RankPlace:
    """Where a rank runs. ``full_cores``: cores that it computes with at full speed; ``quota_cores``: cores that it may
    use, None without a quota; ``cgroup``: name of the control group for its quota."""

    rank: int
    local_rank: int
    host: HostPlace
    full_cores: float
    quota_cores: float | None
    cgroup: str


def namespace_of(name: str, host: int) -> str:
    return f"{PREFIX}-{name}-host{host}"


def switch_of(name: str) -> str:
    """Return the namespace of the switch between more than two hosts."""
    return f"{PREFIX}-{name}-switch"


def group_of(name: str) -> str:
    """Return the control group that contains the groups of slow ranks."""
    return f"{PREFIX}-{name}"


def namespaces_of(declared: Declaration) -> list[str]:
    """Return all namespaces of a testbed: one per host, and one for the switch of more than two hosts."""
    hosts = [namespace_of(declared.name, number) for number in range(declared.hosts)]
    return hosts + ([switch_of(declared.name)] if declared.hosts > 2 else [])


def usable_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def host_places(declared: Declaration, cores: Sequence[int]) -> tuple[HostPlace, ...]:
    """Divide ``cores`` equally among hosts, in blocks; with fewer cores than hosts, hosts share cores."""
    each = len(cores) // declared.hosts
    alone = declared.hosts == 1
    return tuple(
        HostPlace(
            number,
            namespace_of(declared.name, number),
            LOOPBACK if alone else INTERFACE,
            None if alone else f"10.77.0.{number + 1}",
            tuple(cores[number * each : (number + 1) * each] if each else (cores[number % len(cores)],)),
            float(each) if each else len(cores) / declared.hosts,
        )
        for number in range(declared.hosts)
    )


def rank_places(declared: Declaration, cores: Sequence[int]) -> tuple[RankPlace, ...]:
    """Return where each rank runs. A slow rank's quota is its share of the cores that it would have at full load."""
    hosts = host_places(declared, cores)
    places = []
    for rank, number in enumerate(declared.rank_hosts()):
        host, share = hosts[number], declared.share(rank)
        full = host.core_count / declared.ranks_per_host
        if full > 1:
            full = float(host.core_count // declared.ranks_per_host)  # as many threads as whole cores
        quota = share * full if share < 1 else None
        local_rank = rank - number * declared.ranks_per_host
        places.append(RankPlace(rank, local_rank, host, full, quota, f"{group_of(declared.name)}/rank{rank}"))
    return tuple(places)
