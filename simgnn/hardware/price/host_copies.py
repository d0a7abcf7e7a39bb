"""Copies between a device and the memory of its host."""

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.topology.routes import Route


def host_route(machine: Machine, rank: int, to_device: bool) -> Route | None:
    """Return the route between a rank's device and its host's memory; None: the device is a CPU.

    Raises :class:`HardwareError` for a GPU that is connected to neither memory, socket nor PCIe switch.
    """
    if machine.device(rank).kind == "cpu":
        return None
    device = machine.devices[rank]
    memory = machine.network.host_memory(device)
    return machine.network.way(memory, device) if to_device else machine.network.way(device, memory)
