"""A machine: the ranks of a run placed on the devices of a profile, with the prices of work and communication there."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.price.collectives import price_call, price_collective
from simgnn.hardware.price.messages import Path, price_message
from simgnn.hardware.price.unmeasured import Worker, worker_of
from simgnn.hardware.price.work import price_work, stand_in_of
from simgnn.hardware.profile.communication import Backend
from simgnn.hardware.profile.devices import Device
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import CoreCount
from simgnn.hardware.topology.routes import Link, Network, Route, lay_out
from simgnn.hardware.topology.topology import Host
from simgnn.spelling import nearest


class Spot(NamedTuple):
    name: str
    type: str


def _place_ranks(profile: Profile, hosts: Sequence[int]) -> list[Spot]:
    if not hosts:
        raise HardwareError("cluster.ranks_per_host: got no ranks to place, expected at least one")
    machines = profile.topology.host_names()
    wrong = sorted({int(host) for host in hosts if not 0 <= host < len(machines)})
    if wrong:
        raise HardwareError(
            f"cluster.hosts: got ranks on host {wrong[-1]}, but the profile '{profile.meta.name}' has "
            f"{len(machines)} host(s), numbered from 0. Use fewer hosts or another --hardware."
        )
    load = Counter(int(host) for host in hosts)
    spots = {host: iter(_spots(profile, *machines[host], ranks)) for host, ranks in load.items()}
    return [next(spots[int(host)]) for host in hosts]


def _spots(profile: Profile, name: str, host: Host, ranks: int) -> list[Spot]:
    placed = [Spot(f"{name}/{local}", entry.type) for entry in host.devices for local in entry.names()]
    gpus = [spot for spot in placed if profile.devices[spot.type].kind == "gpu"]
    if not gpus:
        return [placed[rank * len(placed) // ranks] for rank in range(ranks)]
    if ranks > len(gpus):
        raise HardwareError(
            f"cluster.ranks_per_host: got {ranks} ranks on host '{name}', which has {len(gpus)} GPUs in the profile "
            f"'{profile.meta.name}'; expected at most one rank per GPU. Use fewer ranks, or more hosts "
            "(--set cluster.hosts=H)."
        )
    return gpus[:ranks]


@dataclass(frozen=True, eq=False)
class Machine:
    """Ranks placed on devices. ``hosts`` [P]: host number of each rank; ``devices`` [P]: full device name of each rank.

    ``threads_per_rank`` [P]: CPU threads of each rank, by default its device's cores over the ranks there, not below 1.
    ``stated_threads``: of every rank; None: as many as its host has cores, over the ranks there.
    """

    profile: Profile
    hosts: tuple[int, ...]
    devices: tuple[str, ...]
    types: tuple[str, ...]
    threads_per_rank: tuple[int, ...]
    network: Network
    ports: Mapping[str, int] = field(repr=False)
    links: tuple[Link, ...] = field(repr=False)
    stated_threads: int | None = None
    _paths: dict[tuple[int, int, str], Path] = field(default_factory=dict, init=False, repr=False)
    _ends: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)
    _workers: dict[tuple[str, str | None, str, int, int], Worker] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def place(cls, profile: Profile, hosts: Sequence[int], threads_per_rank: int | None = None) -> Self:
        """Place rank i on host ``hosts[i]``: on GPUs in order, one rank each, or, without GPUs, on CPUs in even blocks.

        ``threads_per_rank``: default the cores divided evenly. Raises :class:`HardwareError` for a host that is not in
        the profile, and for more ranks on a host than GPUs.
        """
        spots = _place_ranks(profile, hosts)
        load = Counter(spots)
        cores = [profile.devices[spot.type].cores for spot in spots]
        even = [1 if n is None else max(1, int(n.value // load[spot])) for spot, n in zip(spots, cores, strict=True)]
        threads = tuple(threads_per_rank or each for each in even)
        network = lay_out(profile)
        links = list(network.links)
        ports: dict[str, int] = {}
        for backend, described in profile.backends.items():
            if described.ports is not None:
                ports[backend] = len(links)
                for rank in range(len(spots)):
                    links.append(Link(f"rank {rank} {backend} send", described.ports.send.value, "port"))
                    links.append(Link(f"rank {rank} {backend} receive", described.ports.receive.value, "port"))
        names, types = tuple(spot.name for spot in spots), tuple(spot.type for spot in spots)
        there = tuple(int(host) for host in hosts)
        return cls(profile, there, names, types, threads, network, ports, tuple(links), threads_per_rank)

    @property
    def ranks(self) -> int:
        """P, the number of ranks."""
        return len(self.hosts)

    @cached_property
    def _sharing(self) -> Counter[str]:
        return Counter(self.devices)

    def backend(self, name: str = "default") -> tuple[str, Backend]:
        """Return (name, communication library). "default" is the default library of the profile. Raises
        :class:`HardwareError` for a library that the profile does not describe."""
        chosen = self.profile.default_backend() if name == "default" else name
        described: Mapping[str, Backend] = {str(key): value for key, value in self.profile.backends.items()}
        if chosen not in described:
            known = ", ".join(described) or "none"
            raise HardwareError(
                f"backends.{chosen}: the profile '{self.profile.meta.name}' does not describe this library"
                f"{nearest(chosen, described)}; it has: {known}. Measure one with `simgnn calibrate`."
            )
        return chosen, described[chosen]

    def through_host(self, rank: int, backend: str) -> bool:
        """Return whether messages of a rank are copied to and from host memory by this library."""
        return self.device(rank).kind == "gpu" and self.backend(backend)[1].memory == "host"

    def ends(self, backend: str = "default") -> tuple[str, ...]:
        """Return the node where messages of each rank begin and end [P]: its device or its host memory. Cached."""
        if backend not in self._ends:
            self._ends[backend] = tuple(
                self.network.host_memory(device) if self.through_host(rank, backend) else device
                for rank, device in enumerate(self.devices)
            )
        return self._ends[backend]

    def route(self, i: int, j: int, backend: str = "default") -> Route:
        """Return the route of the messages of a library between two ranks, without the ports of the library."""
        ends, (_, library) = self.ends(backend), self.backend(backend)
        route = self.network.route(ends[i], ends[j])
        return route.in_chunks() if library.staging == "chunks" else route

    def path(self, i: int, j: int, backend: str = "default") -> Path:
        """What a message from rank i to rank j crosses: send port of i, links, receive port of j. Cached."""
        key = i, j, backend
        found = self._paths.get(key)
        if found is None:
            name, _ = self.backend(backend)
            route = self.route(i, j, backend)
            links = route.links
            if name in self.ports:
                links = (self.ports[name] + 2 * i, *links, self.ports[name] + 2 * j + 1)
            found = self._paths[key] = Path(links, route.latency_s)
        return found

    message = price_message
    call = price_call
    collective = price_collective

    def device(self, rank: int) -> Device:
        return self.profile.devices[self.types[rank]]

    @cached_property
    def working_types(self) -> frozenset[str]:
        """Types of the devices that ranks compute on, and of the CPUs beside them, which do what no GPU here does."""
        beside = (self._host(rank).cpu for rank in range(self.ranks))
        return frozenset((*self.types, *(cpu for cpu in beside if cpu is not None)))

    def concurrency(self, rank: int) -> int:
        """Return the number of ranks on the device of ``rank``, ``rank`` included."""
        return self._sharing[self.devices[rank]]

    def work_seconds_all(
        self,
        primitive: str,
        sizes: Mapping[str, ArrayLike],
        locality: ArrayLike | None = None,
        concurrency: int | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
        """Return seconds, extrapolated and spread (NaN: not measured) of a piece of work on each rank, each [P].

        ``sizes``: a number or an array [P] each; ``locality``: [P, bins] or None. ``concurrency``: number of ranks that
        work on each device at once; default: all.
        """
        seconds, flags, spread = np.zeros(self.ranks), np.zeros(self.ranks, dtype=bool), np.full(self.ranks, np.nan)
        table = {name: np.full(self.ranks, size, dtype=np.float64) for name, size in sizes.items()}
        profile = None if locality is None else np.broadcast_to(locality, (self.ranks, np.shape(locality)[-1]))
        for (_, threads, at_once), ranks in self._classes.items():
            part = {name: size[ranks] for name, size in table.items()}
            local = None if profile is None else profile[ranks]
            count = at_once if concurrency is None else concurrency
            name, device, _ = self.worker(int(ranks[0]), primitive, count)
            prices = price_work(device, name, primitive, part, local, count, threads)
            seconds[ranks], flags[ranks] = prices.seconds, prices.extrapolated
            spread[ranks] = np.nan if prices.spread is None else prices.spread
        return seconds, flags, spread

    def worker(self, rank: int, primitive: str, concurrency: int) -> Worker:
        """Return the device whose curves price a primitive on ``rank`` while ``concurrency`` ranks work at once: its
        own, else its host's CPU or another machine's (:mod:`simgnn.hardware.price.unmeasured`). Cached."""
        kind, cpu, threads = self.types[rank], self._host(rank).cpu, self.threads_per_rank[rank]
        key = kind, cpu, primitive, concurrency, threads
        if key not in self._workers:
            beside = None if cpu is None else (cpu, self.profile.devices[cpu])
            self._workers[key] = worker_of(self.profile.devices[kind], kind, beside, primitive, concurrency, threads)
        return self._workers[key]

    def host_worker(self, rank: int, primitive: str) -> Worker | None:
        """Return the CPU beside the GPU of ``rank`` with one thread's curve of a primitive, its own or another
        machine's; None: the profile names no such CPU, or no machine has that curve."""
        cpu = self._host(rank).cpu
        if cpu is None:
            return None
        found = worker_of(self.profile.devices[cpu], cpu, None, primitive, 1, 1)
        return found if found.device.curves_of(primitive) else None

    def host_threads(self, rank: int) -> int:
        """Return the threads of a rank on the CPU of its host, beside its device: with as many the executor starts it,
        if none are stated."""
        cpu = self._host(rank).cpu
        cores = None if cpu is None else self.profile.devices[cpu].cores
        if self.stated_threads is not None or cores is None:
            return self.threads_per_rank[rank]
        return max(1, int(cores.value // self.hosts.count(self.hosts[rank])))

    def stands_in(self, primitive: str) -> bool:
        """Return whether other work, or another machine's curve, prices a primitive on any rank."""
        workers = [self.worker(int(ranks[0]), primitive, 1) for ranks in self._classes.values()]
        return any(worker.origin or stand_in_of(worker.device, primitive) is not None for worker in workers)

    def _host(self, rank: int) -> Host:
        return self.profile.topology.host_names()[self.hosts[rank]][1]

    @cached_property
    def _classes(self) -> Mapping[tuple[tuple[str, str | None], int, int], NDArray[np.int64]]:
        """Ranks grouped by what determines their curve: types of device and host CPU, threads, ranks on the device."""
        groups: dict[tuple[tuple[str, str | None], int, int], list[int]] = {}
        hosts = [host for _, host in self.profile.topology.host_names()]
        for rank in range(self.ranks):
            kinds = self.types[rank], hosts[self.hosts[rank]].cpu
            key = kinds, self.threads_per_rank[rank], self.concurrency(rank)
            groups.setdefault(key, []).append(rank)
        return {key: np.array(ranks, dtype=np.int64) for key, ranks in groups.items()}

    def cores(self, host: int) -> float | None:
        """Return the number of cores that the ranks of a host share; None: they run on GPUs."""
        return self._cores.get(host)

    @cached_property
    def _cores(self) -> Mapping[int, float | None]:
        found: dict[int, dict[str, CoreCount | None]] = {}
        for rank, host in enumerate(self.hosts):
            found.setdefault(host, {})[self.devices[rank]] = self.device(rank).cores
        return {
            host: None if None in cores.values() else sum(each.value for each in cores.values() if each is not None)
            for host, cores in found.items()
        }

    def least_ranks_per_host(self, members: Sequence[int]) -> int:
        """Return the number of these ranks on the host that has the fewest of them."""
        return min(Counter(self.hosts[rank] for rank in members).values(), default=1)

    def memory_bytes(self, rank: int) -> float:
        """Return the memory of the device of ``rank``, which all ranks on the device share."""
        return self.device(rank).memory.value

    def host_memory_bytes(self, host: int) -> float:
        """Return the memory of a host apart from its GPUs; infinite if the profile does not state it."""
        memory = self.profile.topology.host_names()[host][1].memory
        return inf if memory is None else memory.value

    def power(self, rank: int) -> tuple[float | None, float | None]:
        """Return (idle, active) power in watts of the device of ``rank``; None: not stated."""
        idle, active = self.device(rank).idle_power, self.device(rank).active_power
        return None if idle is None else idle.value, None if active is None else active.value
