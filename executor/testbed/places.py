"""Where the ranks of a testbed sit: namespace, cores, quota, address. The same declaration gives the same places."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from executor.testbed.declaration import Declaration

PREFIX = "simgnn"
"""All that a testbed makes bears this name and its own."""
INTERFACE = "eth0"
LOOPBACK = "lo"


@dataclass(frozen=True)
class HostPlace:
    """One host. ``cores``: core numbers that it runs on, its own unless there are more hosts than cores;
    ``core_count``: how many it has the use of, a fraction where hosts share a core."""

    number: int
    namespace: str
    interface: str
    address: str | None
    cores: tuple[int, ...]
    core_count: float


@dataclass(frozen=True)
class RankPlace:
    """One rank. ``full_cores``: what it computes with at full speed; ``quota_cores``: what it may, None without a
    quota; ``cgroup``: name of the group that has one."""

    rank: int
    local_rank: int
    host: HostPlace
    full_cores: float
    quota_cores: float | None
    cgroup: str


def namespace_of(name: str, host: int) -> str:
    """The network namespace of a host."""
    return f"{PREFIX}-{name}-host{host}"


def switch_of(name: str) -> str:
    """The namespace of the switch between more than two hosts."""
    return f"{PREFIX}-{name}-switch"


def group_of(name: str) -> str:
    """The cgroup that holds those of the slow ranks."""
    return f"{PREFIX}-{name}"


def usable_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def host_places(declared: Declaration, cores: Sequence[int]) -> tuple[HostPlace, ...]:
    """Hosts with an equal number of ``cores`` each, in blocks; with fewer cores than hosts they take turns."""
    each = len(cores) // declared.hosts
    places = []
    for number in range(declared.hosts):
        own = cores[number * each : (number + 1) * each] if each else (cores[number % len(cores)],)
        places.append(
            HostPlace(
                number,
                namespace_of(declared.name, number),
                LOOPBACK if declared.hosts == 1 else INTERFACE,
                None if declared.hosts == 1 else f"10.77.0.{number + 1}",
                tuple(own),
                float(each) if each else len(cores) / declared.hosts,
            )
        )
    return tuple(places)


def rank_places(declared: Declaration, cores: Sequence[int]) -> tuple[RankPlace, ...]:
    """Where each rank sits. A slow rank's quota is its share of the cores that are a rank's own at full load."""
    hosts = host_places(declared, cores)
    places = []
    for rank, number in enumerate(declared.rank_hosts()):
        host = hosts[number]
        full = host.core_count / declared.ranks_per_host
        if full > 1:
            full = float(host.core_count // declared.ranks_per_host)  # as many threads as whole cores
        share = declared.share(rank)
        slow = share < 1
        group = f"{group_of(declared.name)}/rank{rank}"
        local = rank - number * declared.ranks_per_host
        places.append(RankPlace(rank, local, host, full, share * full if slow else None, group))
    return tuple(places)
