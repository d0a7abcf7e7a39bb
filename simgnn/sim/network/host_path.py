"""The way between a device and its host's memory, which h2d and d2h take."""

from typing import NamedTuple

from simgnn.hardware.price.machine import Machine


class HostPath(NamedTuple):
    """Positions in ``Machine.links`` from a device to host memory or back, and the most that one copy reaches."""

    links: tuple[int, ...]
    latency_s: float
    rate_bytes_per_s: float


def host_path(machine: Machine, rank: int, to_device: bool, nbytes: float) -> HostPath | None:
    """What ``nbytes`` cross between a rank's device and its host's memory; None: the device is the host's processor.

    Raises :class:`HardwareError` for a GPU that reaches neither memory, socket nor PCIe switch.
    """
    if machine.device(rank).kind == "cpu":
        return None
    device = machine.devices[rank]
    memory = machine.network.host_memory(device)
    route = machine.network.way(memory, device) if to_device else machine.network.way(device, memory)
    return HostPath(route.links, route.latency_s, route.message_rate(nbytes))
