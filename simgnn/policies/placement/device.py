"""Everything stays in the device's memory, apart from halo rows that the memory of a host holds for all its ranks."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from simgnn.emit.batches.placement import Placement
from simgnn.errors import ConfigError
from simgnn.policy import Capacity, Choices, FreshnessTraits, Idle, chosen
from simgnn.program.sizes import IntArray

Rows = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Adaptive = Literal["adaptive", "adaptive-equal"]
Each = Annotated[tuple[Rows, ...], Field(min_length=1)]
Reserved = Annotated[float, Field(ge=0, lt=1)]


class Device(Placement):
    """A rank's features, activations, parameters and optimizer state are in the memory of its device.

    Where freshness keeps halo rows (``refresh-interval``), it has two caches of them: ``device_rows``, on each rank's
    device, and ``host_rows``, in memory that the ranks of a host share. Each is a number of rows; or a share, such as
    0.2, of the rank's halo rows or of the distinct ones of all ranks of the host (1 is one row, 1.0 all rows); or a
    list of numbers, one for each rank or host. A cached row takes memory in every layer whose rows are cached.

    "adaptive": as many rows as fit into the memory that the program leaves, by the hardware profile; of devices the
    share ``reserved_device_share`` stays free, of hosts ``reserved_host_share``. "adaptive-equal": the least of these
    numbers everywhere. The planner writes them into plan/resolved.toml. Source: CaPGNN, algorithm 1; its reserved
    sizes are not printed."""

    amounts: ClassVar[tuple[str, ...]] = ("device_rows", "host_rows")

    kind: Literal["device"] = "device"
    device_rows: Rows | Share | Adaptive | Each = Field(
        default=0,
        description="halo rows that a rank's device caches: a number, a share of its halo (0.0 to 1.0), or as many as "
        "fit: adaptive, or adaptive-equal, the same number everywhere",
    )
    host_rows: Rows | Share | Adaptive | Each = Field(
        default=0,
        description="halo rows in memory that the ranks of a host share: likewise, a share of the halos of its ranks",
    )
    reserved_device_share: Reserved = Field(
        default=0.05, description="share of a device's memory that an adaptive cache leaves free"
    )
    reserved_host_share: Reserved = Field(
        default=0.10, description="share of a host's memory that an adaptive cache leaves free"
    )

    def idle(self, choices: Choices) -> Iterator[Idle]:
        for level, option in (("device_rows", "reserved_device_share"), ("host_rows", "reserved_host_share")):
            rows = getattr(self, level)
            if chosen(self, [option]) and not isinstance(rows, str):
                yield Idle(option, f"placement.{level} = {rows}", "only adaptive caches leave a share free; remove it")
        if choices.freshness.caches_halo:
            return
        caching = choices.fitting(FreshnessTraits, lambda freshness: freshness.caches_halo)
        late = "rows that are one epoch late are not cached besides" if choices.freshness.late else "it keeps no rows"
        for option in chosen(self, ["device_rows", "host_rows"]):
            yield Idle(
                option, f"freshness.kind = '{choices.freshness.label}'",
                f"{late}; set freshness.kind = {caching}, or remove it",
            )  # fmt: skip

    def device_capacities(self, halo_rows: IntArray) -> IntArray:
        return _capacities("device_rows", self.device_rows, halo_rows)

    def host_capacities(self, halo_vertices: IntArray) -> IntArray:
        return _capacities("host_rows", self.host_rows, halo_vertices)

    @property
    def halo_caches(self) -> Mapping[str, Capacity]:
        return {"device_rows": self.device_rows, "host_rows": self.host_rows}

    @property
    def reserved_shares(self) -> Mapping[str, float]:
        return {"device_rows": self.reserved_device_share, "host_rows": self.reserved_host_share}

    @property
    def shares_halo(self) -> bool:
        return any(self.host_rows) if isinstance(self.host_rows, tuple) else self.host_rows != 0


def _capacities(option: str, rows: Capacity, of: IntArray) -> IntArray:
    """Return a number of rows as it is, and a share of ``of`` rounded down, int64. Raises :class:`ConfigError` for a
    list of another length."""
    assert not isinstance(rows, str), "the planner has chosen numbers"
    if isinstance(rows, tuple) and len(rows) != len(of):
        raise ConfigError(
            f"placement.{option}: got {len(rows)} numbers, expected {len(of)}, one for each "
            f"{'rank' if option == 'device_rows' else 'host'}; or one number for all"
        )
    if isinstance(rows, tuple):
        return np.array(rows, dtype=np.int64)
    return np.floor(rows * of).astype(np.int64) if isinstance(rows, float) else np.full_like(of, rows)
