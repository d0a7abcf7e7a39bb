"""Everything stays in the device's memory, apart from halo rows that the memory of a host holds for all its ranks."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from simgnn.emit.batches.placement import Placement
from simgnn.policy import Choices, FreshnessTraits, Idle, chosen
from simgnn.program.sizes import IntArray

Rows = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


class Device(Placement):
    """A rank's features, activations, parameters and optimizer state are in the memory of its device.

    Where freshness keeps halo rows (``refresh-interval``), it has two caches of them: ``device_rows``, on each rank's
    device, and ``host_rows``, in memory that the ranks of a host share. Each is a number of rows, or a share, such as
    0.2, of the rank's halo rows or of the distinct ones of all ranks of the host (1 is one row, 1.0 all rows). A cached
    row takes memory in every layer whose rows are cached."""

    kind: Literal["device"] = "device"
    device_rows: Rows | Share = Field(
        default=0, description="halo rows that a rank's device caches: a number, or a share of its halo (0.0 to 1.0)"
    )
    host_rows: Rows | Share = Field(
        default=0, description="halo rows in memory that the ranks of a host share: a number, or a share of their halos"
    )

    def idle(self, choices: Choices) -> Iterator[Idle]:
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
        return _capacities(self.device_rows, halo_rows)

    def host_capacities(self, halo_vertices: IntArray) -> IntArray:
        return _capacities(self.host_rows, halo_vertices)

    @property
    def halo_caches(self) -> Mapping[str, int | float]:
        return {"device_rows": self.device_rows, "host_rows": self.host_rows}

    @property
    def shares_halo(self) -> bool:
        return self.host_rows > 0


def _capacities(rows: int | float, of: IntArray) -> IntArray:
    """Return a number of rows as it is, and a share of ``of`` rounded down, int64."""
    return np.floor(rows * of).astype(np.int64) if isinstance(rows, float) else np.full_like(of, rows)
