"""Which device each rank of a run gets."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from simgnn.errors import HardwareError
from simgnn.hardware.profile.devices import Device
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.topology.topology import Host


class Spot(NamedTuple):
    """A device: its full name and its type."""

    name: str
    type: str


def place_ranks(profile: Profile, hosts: Sequence[int]) -> tuple[Spot, ...]:
    """The device of each rank: rank i is on host ``hosts[i]``, on its GPUs in order, one rank each; without GPUs, on
    its CPUs in even blocks. :class:`HardwareError` for a host that the profile lacks and for more ranks than GPUs."""
    if not hosts:
        raise HardwareError("got no ranks to place; expected at least one: cluster.ranks_per_host")
    machines = profile.topology.host_names()
    wrong = sorted({int(host) for host in hosts if not 0 <= host < len(machines)})
    if wrong:
        raise HardwareError(
            f"cluster.hosts: got ranks on host {wrong[-1]}, but the profile '{profile.meta.name}' has "
            f"{len(machines)} host(s), numbered from 0; use fewer hosts or another --hardware"
        )
    load = Counter(int(host) for host in hosts)
    spots = {host: _spots(profile, *machines[host], ranks) for host, ranks in load.items()}
    seen: Counter[int] = Counter()
    chosen = []
    for host in map(int, hosts):
        chosen.append(spots[host][seen[host]])
        seen[host] += 1
    return tuple(chosen)


def _spots(profile: Profile, name: str, host: Host, ranks: int) -> list[Spot]:
    """The device of each rank of a host."""
    placed = [Spot(f"{name}/{local}", entry.type) for entry in host.devices for local in entry.names()]
    gpus = [spot for spot in placed if profile.devices[spot.type].kind == "gpu"]
    if not gpus:
        return [placed[rank * len(placed) // ranks] for rank in range(ranks)]
    if ranks > len(gpus):
        raise HardwareError(
            f"cluster.ranks_per_host: got {ranks} ranks on host '{name}', which has {len(gpus)} GPUs in the profile "
            f"'{profile.meta.name}'; expected at most one rank a GPU: use fewer ranks or more hosts"
        )
    return gpus[:ranks]


def even_threads(device: Device, ranks: int) -> int:
    """CPU threads of each of the ranks on one device: its cores divided evenly, at least 1."""
    return 1 if device.cores is None else max(1, int(device.cores.value // ranks))
