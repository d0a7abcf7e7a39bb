"""Energy: power over the busy and idle time of each device. There is no estimate where the profile lacks a power."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from simgnn.hardware.price.machine import Machine
from simgnn.record.energy import EnergyFigure, Floats, energy_over
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.network.flow_table import Bools, Ints


def track_energy(
    machine: Machine, ticks: Mapping[str, Ints], computes: Bools, epochs: Ints
) -> tuple[EnergyFigure, ...]:
    """Estimate the energy of each device with ranks from the recorder's columns ``ticks``. A device is active while any
    of its ranks computes (``computes`` bool [rows]), else idle. ``epochs`` int64 [E, 2]: begin and end, in ticks.

    If the profile lacks the idle or active power of any of them, return one entry with this reason and no numbers.
    """
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(machine.devices):
        ranks.setdefault(name, []).append(rank)
    silent = dict.fromkeys(machine.types[where[0]] for where in ranks.values() if None in machine.power(where[0]))
    if silent:
        name = next(iter(ranks)) if len(ranks) == 1 else f"{len(ranks)} devices"
        keys = [f"devices.{kind}.idle_power and devices.{kind}.active_power" for kind in silent]
        why = f"the hardware profile does not state both powers of {', '.join(silent)}: set {', '.join(keys)}"
        everyone = list(range(machine.ranks))
        return (EnergyFigure(part="device", name=name, host=None, ranks=everyone, status="unavailable", source=why),)
    numbers = {name: number for number, name in enumerate(ranks)}
    place = np.array([numbers[name] for name in machine.devices])[ticks["rank"][computes]]
    order = np.argsort(place, kind="stable")
    issued, ended = ticks["issued"][computes][order], ticks["ended"][computes][order]
    bounds = np.searchsorted(place[order], np.arange(len(ranks) + 1))
    span = (0.0, int(ticks["ended"].max(initial=0)) / PICOSECONDS)
    hosts = machine.profile.topology.host_names()
    figures = []
    for (name, where), low, high in zip(ranks.items(), bounds[:-1], bounds[1:], strict=True):
        idle, active = machine.power(where[0])
        assert idle is not None
        assert active is not None
        busy_s = active_time(issued[low:high], ended[low:high])
        figures.append(
            EnergyFigure(
                part="device",
                name=name,
                host=hosts[machine.hosts[where[0]]][0],
                ranks=where,
                status="estimated",
                source=f"{idle:g} W idle, {active:g} W active, over simulated time",
                **energy_over(partial(_joules, busy_s, idle, active), span, epochs / PICOSECONDS, 0.0),
            )
        )
    return tuple(figures)


def _joules(busy_s: Callable[[Floats], Floats], idle_w: float, active_w: float, moments: Floats) -> Floats:
    return idle_w * moments + (active_w - idle_w) * busy_s(moments)


def active_time(begin: Ints, end: Ints) -> Callable[[Floats], Floats]:
    """Return a function of instants: the seconds before each that at least one span (ticks, may overlap) covers."""
    if not len(begin):
        return np.zeros_like
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    first = np.append(True, begin[1:] > reached[:-1])
    starts, stops = begin[first], reached[np.append(first[1:], True)]
    corners = np.stack([starts, stops], axis=1).reshape(-1)
    used = np.repeat(np.cumsum(stops - starts), 2)
    used[::2] -= stops - starts
    return lambda moments: np.interp(moments, corners / PICOSECONDS, used / PICOSECONDS)
