"""Rates at which rows move between hosts and devices, between devices, and inside a device."""

from itertools import permutations

from pydantic import BaseModel, ConfigDict, Field

from simgnn.errors import HardwareError
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.primitives import COPY

MESSAGE_BYTES = 1 << 26
"""Size of the copies whose rates are read, large enough that latencies do not count."""
ITEM_BYTES = 4


class TransferRates(BaseModel):
    """Bytes per second at which rows move: from the host to a device, from device to device (None: there is one rank),
    and in place of a copy inside a device, where a row is used again."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host_to_device_bytes_per_s: float = Field(gt=0)
    device_to_device_bytes_per_s: float | None = Field(default=None, gt=0)
    reuse_bytes_per_s: float = Field(gt=0)


def transfer_rates(machine: Machine) -> TransferRates:
    """Return the rates of the slowest rank, or pair of ranks, of large copies with nothing else on their way.

    Rows that are used again take the time of a copy inside the device, which reads and writes each byte. On a CPU, rows
    come from the host by such copies. Raises :class:`HardwareError`, which names the key, for a device without its own
    curve of copies, and for one without links to its host's memory or to another rank's device."""
    missing = [kind for kind in machine.types if not machine.profile.devices[kind].curves_of(COPY.name)]
    if missing:
        raise HardwareError(
            f"devices.{missing[0]}.curves: the device has no curve of '{COPY.name}', expected one: rows are copied "
            f"inside it. Measure it with `simgnn calibrate`, or add [[devices.{missing[0]}.curves]]"
        )
    seconds, _, _ = machine.work_seconds_all(COPY.name, {"bytes": MESSAGE_BYTES, "item_bytes": ITEM_BYTES})
    inside = (MESSAGE_BYTES / seconds).tolist()
    from_host = []
    for rank in range(machine.ranks):
        route = host_route(machine, rank, to_device=True)
        from_host.append(inside[rank] if route is None else route.message_rate(MESSAGE_BYTES))
    pairs = set(permutations(machine.devices, 2))
    between = [machine.network.route(source, target).message_rate(MESSAGE_BYTES) for source, target in sorted(pairs)]
    return TransferRates(
        host_to_device_bytes_per_s=min(from_host),
        device_to_device_bytes_per_s=min(between, default=None),
        reuse_bytes_per_s=min(inside),
    )
