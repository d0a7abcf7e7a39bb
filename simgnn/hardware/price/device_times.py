"""Times of five operations by which the devices of ranks are compared, and the memory that each rank has."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simgnn.errors import HardwareError
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.primitives import COPY, MATMUL, SPMM

SIDE = 11_585
"""Side of the square matrices that are multiplied and copied. Source: CaPGNN, section 4 (Table 1 has their times)."""
STORED = round(0.004 * SIDE**2)
"""Stored values of the sparse matrix: 99.6 % are zeros."""
ITEM_BYTES = 4
MATRIX_BYTES = ITEM_BYTES * SIDE**2


class DeviceTimes(BaseModel):
    """The device of a rank. Seconds of five operations on float32 matrices [n, n], n = ``SIDE``: ``matmul_s``, a dense
    product; ``spmm_s``, a sparse matrix with ``STORED`` values times a dense one; ``h2d_s`` and ``d2h_s``, a copy from
    the host to the device and back; ``copy_s``, a copy inside the device. On a CPU all copies are the same.

    ``device``: its type in the hardware profile. ``memory_bytes``: memory that the rank has, which is its share where
    ranks share a device."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    device: str = Field(default="device", min_length=1)
    kind: Literal["cpu", "gpu"]
    matmul_s: float = Field(gt=0)
    spmm_s: float = Field(gt=0)
    h2d_s: float = Field(gt=0)
    d2h_s: float = Field(gt=0)
    copy_s: float = Field(gt=0)
    memory_bytes: int = Field(gt=0)

    @property
    def matmul_flops(self) -> float:
        """Flops per second of the dense product."""
        return 2.0 * SIDE**3 / self.matmul_s

    @property
    def spmm_flops(self) -> float:
        """Flops per second of the sparse product."""
        return 2.0 * STORED * SIDE / self.spmm_s

    @property
    def copied_bytes_per_s(self) -> tuple[float, float, float]:
        """Bytes per second from the host, to the host, and read and written inside the device."""
        return MATRIX_BYTES / self.h2d_s, MATRIX_BYTES / self.d2h_s, 2.0 * MATRIX_BYTES / self.copy_s


def device_times(machine: Machine) -> tuple[DeviceTimes, ...]:
    """Return times and memory of the device of each rank. Ranks that share a device work at the same time.

    Raises :class:`HardwareError`, which names the key, for a device without its own curve of an operation, and for a
    GPU without links to the memory of its host: no other machine's times stand in, since devices are compared."""
    for kind in dict.fromkeys(machine.types):
        device = machine.profile.devices[kind]
        missing = [row.name for row in (MATMUL, SPMM, COPY) if not device.curves_of(row.name)]
        if missing:
            raise HardwareError(
                f"devices.{kind}.curves: the device has no curve of {' and '.join(map(repr, missing))}, expected "
                f"matmul, spmm and copy: devices are compared by these. Measure them with `simgnn calibrate`, or add "
                f"[[devices.{kind}.curves]]"
            )
    matmul = _seconds(machine, MATMUL.name, {"rows": SIDE, "inner": SIDE, "outer": SIDE})
    spmm = _seconds(machine, SPMM.name, {"edges": STORED, "rows": SIDE, "width": SIDE, "sources": SIDE})
    inside = _seconds(machine, COPY.name, {"bytes": MATRIX_BYTES})
    found = []
    for rank in range(machine.ranks):
        to_device, to_host = (_host_copy_s(machine, rank, way, float(inside[rank])) for way in (True, False))
        found.append(
            DeviceTimes(
                device=machine.types[rank],
                kind=machine.device(rank).kind,
                matmul_s=float(matmul[rank]),
                spmm_s=float(spmm[rank]),
                h2d_s=to_device,
                d2h_s=to_host,
                copy_s=float(inside[rank]),
                memory_bytes=int(machine.memory_bytes(rank) / machine.concurrency(rank)),
            )
        )
    return tuple(found)


def _seconds(machine: Machine, primitive: str, sizes: dict[str, int]) -> NDArray[np.float64]:
    return machine.work_seconds_all(primitive, {**sizes, "item_bytes": ITEM_BYTES})[0]


def _host_copy_s(machine: Machine, rank: int, to_device: bool, inside_s: float) -> float:
    """Return the seconds of a copy between a rank's device and its host, with nothing else on the links."""
    route = host_route(machine, rank, to_device)
    return inside_s if route is None else route.latency_s + MATRIX_BYTES / route.message_rate(MATRIX_BYTES)
