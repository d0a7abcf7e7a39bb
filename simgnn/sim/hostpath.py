"""The way between a device and its host's memory, which h2d and d2h take."""

from collections import deque
from typing import NamedTuple

from simgnn.errors import HardwareError
from simgnn.hardware.machine import Machine
from simgnn.hardware.topology import node_kinds

ENDS = ("memory", "socket", "pcie-switch")
"""Kinds of nodes that stand for host memory, the first that is there."""


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
    host = device.rpartition("/")[0] + "/"
    kinds = node_kinds(machine.profile.topology)
    graph = machine.network.graph
    before: dict[str, str | None] = {device: None}
    queue = deque([device])
    reached: dict[str, str] = {}
    while queue:
        here = queue.popleft()
        reached.setdefault(kinds[here], here)
        for after in sorted(graph.successors(here)):
            inner = after.startswith(host) and not kinds[after].startswith("device:")
            if after not in before and inner:
                before[after] = here
                queue.append(after)
    end = next((reached[kind] for kind in ENDS if kind in reached), None)
    if end is None:
        raise HardwareError(
            f"topology: device '{device}' has no link to its host's memory, so nothing can be copied to or from it; "
            f"expected a chain of links to a node of kind {', '.join(ENDS)} in the same host"
        )
    edges = []
    while before[end] is not None:
        earlier = str(before[end])
        edges.append(graph[earlier][end] if not to_device else graph[end][earlier])
        end = earlier
    return HostPath(
        tuple(edge["link"] for edge in edges),
        sum(edge["type"].latency.value for edge in edges),
        min(edge["type"].message_rate(nbytes) for edge in edges),
    )
