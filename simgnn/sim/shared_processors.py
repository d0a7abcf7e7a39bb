"""Processor sharing: the ranks and streams of a host share its cores, the streams of a rank share its GPU.

Each piece of work wants ``threads`` cores. While all pieces want more cores than there are, each runs at ``cores /
wanted`` of its speed. A GPU counts as one core that every piece wants: a kernel alone is assumed to saturate it (its
memory or its compute units), so two at once take as long as one after the other. Small kernels overlap better. Only
hosts that can want more threads than cores, and GPUs with work on several streams, are simulated so.
"""

from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any

import simpy

from simgnn.hardware.price.machine import Machine
from simgnn.program.kinds import COMPUTE_KINDS, OpKind
from simgnn.program.program import Program

LEAST_SHARE = 0.05
"""Smallest share of the cores that work gets, however many cores messages use: the scheduler starves nothing."""


class HostCores:
    """The cores of one host. ``cores``: number of cores; ``threads``: number of cores that each piece of work wants."""

    def __init__(self, env: simpy.Environment, cores: float, threads: float) -> None:
        self._env = env
        self._cores, self._threads = cores, threads
        self._order = count()
        self._working: list[tuple[float, int, simpy.Event]] = []
        self._taken = self._progress = 0.0
        self._since = self._armed = 0

    def run(self, duration_ps: int) -> simpy.Event:
        """Start work that takes ``duration_ps`` when it runs alone; return an event that fires when it is done."""
        done = self._env.event()
        self._advance(int(self._env.now))
        heappush(self._working, (self._progress + duration_ps, next(self._order), done))
        self._arm(int(self._env.now))
        return done

    def take(self, cores: float, now: int) -> None:
        """Reserve ``cores`` cores for messages from ``now`` on; work gets the rest, at least ``LEAST_SHARE`` of all."""
        if cores != self._taken:
            self._advance(now)
            self._taken = cores
            self._arm(now)

    def state(self) -> tuple[Any, ...]:
        """All that determines the future: cores used by messages, and remaining work in the order in which it ends."""
        moved = self._progress + (int(self._env.now) - self._since) * self._rate()
        return self._taken, *(end - moved for end, _, _ in sorted(self._working, key=lambda entry: entry[:2]))

    def _rate(self) -> float:
        wanted = len(self._working) * self._threads
        free = max(self._cores - self._taken, LEAST_SHARE * self._cores)
        return 1.0 if wanted <= free else free / wanted

    def _advance(self, now: int) -> None:
        """Advance all work to ``now``. Progress restarts from zero after every idle period, so that it stays exact."""
        if not self._working:
            self._progress = 0.0
        else:
            self._progress += (now - self._since) * self._rate()
        self._since = now

    def _arm(self, now: int) -> None:
        self._armed += 1
        if not self._working:
            return
        left = max(self._working[0][0] - self._progress, 0.0)
        alarm = simpy.Event(self._env)
        alarm._ok, alarm._value = True, self._armed
        alarm.callbacks.append(self._finish)
        self._env.schedule(alarm, delay=now - int(self._env.now) + round(left / self._rate()))

    def _finish(self, alarm: simpy.Event) -> None:
        """End the first piece of work, and every other that ends less than a tick later."""
        if alarm.value != self._armed:
            return
        self._advance(int(self._env.now))
        first = self._working[0][0]
        while self._working and self._working[0][0] <= first + 1.0:
            heappop(self._working)[2].succeed()
        self._arm(int(self._env.now))


def _ranks_of_hosts(machine: Machine) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(machine.hosts):
        found.setdefault(host, []).append(rank)
    return found


def ranks_at_work(machine: Machine) -> tuple[int, ...]:
    """Number of concurrent ranks for which the work of each rank is priced: all ranks on its device, or, if the ranks
    of a host want more cores than there are, as many ranks as fit on the cores before they share."""
    free: dict[int, int] = {}
    for host, ranks in _ranks_of_hosts(machine).items():
        cores, threads = machine.cores(host), max(1, *(machine.threads_per_rank[rank] for rank in ranks))
        if cores is not None and len(ranks) * threads > cores:
            free[host] = max(1, int(cores // threads))
    return tuple(free.get(host, machine.concurrency(rank)) for rank, host in enumerate(machine.hosts))


def share_devices(
    env: simpy.Environment, program: Program, machine: Machine, burdened: Collection[int] = ()
) -> Mapping[int, HostCores]:
    """Map each rank to the shared cores that run its device work; ranks that share none are left out. ``burdened``:
    hosts whose cores also process messages."""
    found: dict[int, HostCores] = {}
    for host, ranks in _ranks_of_hosts(machine).items():
        cores = machine.cores(host)
        if cores is None:
            if _pieces(program, gpu=True) > 1:
                found |= {rank: HostCores(env, 1.0, 1.0) for rank in ranks}
            continue
        # work of more threads than there are cores is priced on all of them: it wants no more
        threads = min(max(machine.threads_per_rank[rank] for rank in ranks), max(1.0, cores))
        if host in burdened or len(ranks) * _pieces(program, gpu=False) * threads > cores:
            found |= dict.fromkeys(ranks, HostCores(env, cores, threads))
    return found


def _pieces(program: Program, gpu: bool) -> int:
    """Count the pieces of work that a rank can have on its device at once: servers of the streams that hold such work.

    Copies between host and device are work on a CPU, but use links on a GPU; sampling is not work of a GPU.
    """
    kinds = COMPUTE_KINDS | {OpKind.COPY}
    kinds = kinds - {OpKind.SAMPLE} if gpu else kinds | {OpKind.H2D, OpKind.D2H}
    streams = {op.stream for _, op in program.ops if op.kind in kinds}
    return sum(stream.servers for name, stream in program.streams.items() if name in streams)
