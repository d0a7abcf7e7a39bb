"""Energy: power over the busy and idle time of each device. Nothing is made up where a profile is silent."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simgnn.hardware.machine import Machine
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.maxmin import Bools, Ints
from simgnn.sim.measures import union_ticks


@dataclass(frozen=True)
class Energy:
    """Joules of a run's devices, by name and by host number; None: some device has no idle or no active power."""

    devices_J: Mapping[str, float]  # noqa: N815
    hosts_J: Mapping[int, float]  # noqa: N815
    total_J: float  # noqa: N815


def track_energy(machine: Machine, ticks: Mapping[str, Ints], computes: Bools, duration: int) -> Energy | None:
    """Energy over ``duration`` ticks: a device is active while any of its ranks computes (``computes`` [rows]), else
    idle. None where the profile does not tell both powers of every device that has a rank."""
    names = list(dict.fromkeys(machine.devices))
    place = np.array([names.index(name) for name in machine.devices])
    busy = union_ticks(place[ticks["rank"][computes]], ticks["issued"][computes], ticks["ended"][computes], len(names))
    devices: dict[str, float] = {}
    hosts: dict[int, float] = {}
    for number, name in enumerate(names):
        rank = machine.devices.index(name)
        idle, active = machine.power(rank)
        if idle is None or active is None:
            return None
        joules = (active * int(busy[number]) + idle * (duration - int(busy[number]))) / PICOSECONDS
        devices[name] = joules
        hosts[machine.hosts[rank]] = hosts.get(machine.hosts[rank], 0.0) + joules
    return Energy(devices, hosts, float(sum(devices.values())))
