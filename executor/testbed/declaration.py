"""The TOML file of a testbed: hosts, ranks, the link between hosts, slow ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, StrictStr, ValidationError, ValidationInfo, field_validator

from simgnn.errors import ConfigError
from simgnn.hardware.profile.quantities import Bytes, BytesPerSecond, Strict
from simgnn.schema_faults import sentences
from simgnn.tomlfile import load_toml, without_none
from simgnn.units import format_quantity

MTU_BYTES = 1500
"""Of every interface; set, so that what a frame carries is known."""
FRAME_BYTES = MTU_BYTES + 14
"""What the shaper counts for a full packet: with its Ethernet header."""
PAYLOAD_BYTES = MTU_BYTES - 20 - 32
"""What of it is payload: without the headers of IPv4 and of TCP with time stamps."""
ACKNOWLEDGED_FRAMES, ACKNOWLEDGEMENT_BYTES = 2, FRAME_BYTES - PAYLOAD_BYTES
"""A receiver acknowledges every second full packet (RFC 5681, 4.2) in one of its own, over the other direction of the
link: of 318,161 packets that a shaper counted while two ranks exchanged rows, 32 % were acknowledgements."""
LEAST_RATE = 12500.0
"""Bytes per second; slower, ranks do not even find each other in time."""
BURST_RANGE = (2048.0, 67108864.0)
"""Bytes: less than a packet never passes, and more is no limit of a rate."""
BURST_FLOOR = 4096.0
BURST_S = 0.2e-3
"""Default burst: bytes of this time, at least ``BURST_FLOOR``: the kernel wakes a shaper some 0.05 ms late, and a
smaller burst loses what could have passed meanwhile; a larger one lets small messages through unshaped."""
MOST_RATE = BURST_RANGE[1] / BURST_S
"""Bytes per second, of which the default burst is the largest: no interface of a machine's own memory passes that."""
LEAST_SHARE = 0.01


class Declaration(Strict):
    """What a testbed is to be.

    ``link``: rate of each host's link, in each direction (a single host has none); ``burst``: bytes that pass at full
    speed after a pause; ``queue``: whether connections take turns in front of a link ("fair") or wait in one line
    ("fifo"). ``slow``: rank -> its share of the speed that it would otherwise have, such as {3 = 0.5}.
    ``name`` tells the testbeds of one machine apart.
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

    @field_validator("link")
    @classmethod
    def _one_link(cls, link: float | None, info: ValidationInfo) -> float | None:
        hosts = info.data.get("hosts")
        if hosts is not None and hosts > 1 and link is None:
            raise ValueError("missing; expected the rate of the link between hosts, such as '200 Mbit/s'")
        if hosts == 1 and link is not None:
            raise ValueError("got a rate, but a single host has no link; leave it out, or use hosts = 2")
        if link is not None and link < LEAST_RATE:
            raise ValueError(f"got {link * 8:.0f} bit/s, expected at least {LEAST_RATE * 8 / 1000:.0f} kbit/s")
        if link is not None and link > MOST_RATE:
            raise ValueError(f"got {link * 8 / 1e12:.4g} Tbit/s, expected at most {MOST_RATE * 8 / 1e12:.3g} Tbit/s")
        return link

    @field_validator("burst")
    @classmethod
    def _a_packet_passes(cls, burst: float | None, info: ValidationInfo) -> float | None:
        low, high = BURST_RANGE
        if burst is not None and not low <= burst <= high:
            shown = [format_quantity(size, "bytes") for size in (burst, low, high)]
            raise ValueError(f"got '{shown[0]}', expected between '{shown[1]}' and '{shown[2]}'")
        if burst is not None and info.data.get("hosts") == 1:
            raise ValueError("got a size, but a single host has no link; leave it out, or use hosts = 2")
        return burst

    @field_validator("queue")
    @classmethod
    def _of_a_link(cls, queue: str, info: ValidationInfo) -> str:
        if info.data.get("hosts") == 1:
            raise ValueError(f"got '{queue}', but a single host has no link; leave it out, or use hosts = 2")
        return queue

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
        """Read a file, under another ``name`` if given; :class:`ConfigError` with every fault of it, one line each."""
        return cls.parse(load_toml(path) | ({} if name is None else {"name": name}), str(path))

    @classmethod
    def parse(cls, table: Mapping[str, Any], label: str) -> Self:
        """The same of a table that is called ``label`` in messages."""
        try:
            return cls.model_validate(dict(table))
        except ValidationError as error:
            raise ConfigError([f"{label}: {problem}" for problem in sentences(cls, error)]) from None

    @property
    def ranks(self) -> int:
        """P."""
        return self.hosts * self.ranks_per_host

    def rank_hosts(self) -> tuple[int, ...]:
        """Host of each rank: blocks, as experiments place them."""
        return tuple(rank // self.ranks_per_host for rank in range(self.ranks))

    def share(self, rank: int) -> float:
        """Share of its full speed that a rank has."""
        return float(self.slow.get(str(rank), 1.0))

    def burst_bytes(self) -> float:
        """Bytes that pass the link at full speed after a pause."""
        if self.burst is not None:
            return self.burst
        return max(BURST_FLOOR, BURST_S * (self.link or 0.0))

    def to_table(self) -> dict[str, Any]:
        """As TOML writes it, defaults spelled out."""
        table: dict[str, Any] = without_none(self.model_dump())
        if self.link is not None:
            table["burst"] = format_quantity(self.burst_bytes(), "bytes")
        else:
            del table["queue"]
        return table
