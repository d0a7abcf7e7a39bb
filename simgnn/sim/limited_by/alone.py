"""How long single ops take on a machine while no other op runs, and which link they wait for: the same prices as in the
simulation, without sharing among ops. Used to see how the time of an op changes with a number of the profile."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import simpy

from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import price_messages
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.calendar import Turn
from simgnn.program.kinds import CALLED_KINDS, COLLECTIVE_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.engine.compiled import CompiledOp
from simgnn.sim.engine.handlers import copied_bytes, copy_ps, host_work, in_host, staged_collective, works_in_host
from simgnn.sim.engine.op_prices import HostWork, Pricer
from simgnn.sim.engine.sent_bytes import handed_bytes, pairwise_rounds
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.flow_table import Floats, Ints
from simgnn.sim.network.message_bundles import BUNDLED_ABOVE, crossed_links
from simgnn.sim.network.network import Network

COMMUNICATION = PAIRWISE_KINDS | COLLECTIVE_KINDS


class Seconds(NamedTuple):
    """Time of an op on a rank. ``fixed``: the part that does not depend on bytes (calls, floors, latencies)."""

    total: float
    fixed: float = 0.0


class Round(NamedTuple):
    """The messages of one rank in a round. ``message``, ``link``: pairs of a message and a link that it crosses;
    ``load`` [links]: bytes of all ranks' messages on each link."""

    source: Ints
    target: Ints
    nbytes: Floats
    message: Ints
    link: Ints
    load: Floats


def _in_host(machine: Machine, work: HostWork | None) -> Seconds:
    if work is None:
        return Seconds(0.0)
    least = 0.0 if work.link is None else work.nbytes / machine.links[work.link].capacity_bytes_per_s
    return Seconds(max(work.seconds, least))


class OpAlone:
    """One op of a turn on one rank. ``link``: name (``links.NAME``) of the slowest kind of link that it sends over, or
    None. ``links``: all kinds of links that it uses."""

    def __init__(self, compiled: CompiledOp, turn: Turn, rank: int, machine: Machine, sizes: Sizes) -> None:
        self.compiled, self.turn, self.rank = compiled, turn, rank
        self._sizes, self._members = sizes, compiled.members[int(compiled.team[rank])]
        self._rounds: list[Round] = []
        kind = compiled.op.kind
        self.communicates = kind in COMMUNICATION or (
            kind in (OpKind.H2D, OpKind.D2H) and host_route(machine, rank, kind is OpKind.H2D) is not None
        )
        self._out = self._back = self._handed = 0
        if kind in PAIRWISE_KINDS:
            self._rounds = [self._round(machine, *found[:3]) for found in self._sent()]
            self._out = int(sum(one.nbytes[one.source == rank].sum() for one in self._rounds))
            self._back = int(sum(one.nbytes[one.target == rank].sum() for one in self._rounds))
        elif kind in COLLECTIVE_KINDS:
            handed = handed_bytes(sizes, compiled, turn)
            self._handed = int(handed[list(self._members)].max(initial=0))
            staged = staged_collective(kind, handed, self._members)
            self._out, self._back = int(staged.out[rank]), int(staged.back[rank])
        elif self.communicates:
            nbytes = int(copied_bytes(sizes, compiled, turn)[rank])
            self._out, self._back = (0, nbytes) if kind is OpKind.H2D else (nbytes, 0)
        self.link, self.links = self._slowest(machine)

    def seconds(self, machine: Machine, pricer: Pricer) -> Seconds:
        """Return the time of the op on a machine with the same ranks and routes. ``pricer``: of work there."""
        kind, compiled = self.compiled.op.kind, self.compiled
        if not self.communicates:
            if works_in_host(pricer, compiled, self.rank):
                return _in_host(machine, host_work(pricer, compiled, self.turn, self.rank))
            copies = not compiled.op.work and kind in (OpKind.COPY, OpKind.H2D, OpKind.D2H)
            ticks = copy_ps(pricer, compiled, self.turn) if copies else pricer.work_ps(compiled, self.turn)
            return Seconds(float(ticks[self.rank]) / PICOSECONDS)
        parts: list[Seconds] = []
        if kind in PAIRWISE_KINDS:
            parts = self._exchange(machine)
        elif kind in COLLECTIVE_KINDS and len(self._members) > 1:
            root = compiled.op.root if compiled.op.root in self._members else None
            price = machine.collective(kind.value, compiled.backend, self._handed, self._members, root)
            parts = [Seconds(price.seconds_alone, price.latency_s)]
        if self._copied(machine):
            parts += [self._copy(machine, self._out, False), self._copy(machine, self._back, True)]
        return Seconds(sum(part.total for part in parts), sum(part.fixed for part in parts))

    def _sent(self) -> list[tuple[Ints, Ints, Ints]]:
        rounds = pairwise_rounds(self.compiled, self._sizes, self.turn)
        return [(found.source, found.target, found.nbytes) for found in rounds]

    def _round(self, machine: Machine, source: Ints, target: Ints, nbytes: Ints) -> Round:
        message, link = crossed_links(machine, source, target, self.compiled.backend)
        load = np.bincount(link, nbytes[message], len(machine.links) + 1)
        mine = (source == self.rank) | (target == self.rank)
        number = np.cumsum(mine) - 1
        chosen = mine[message]
        own = source[mine], target[mine], nbytes[mine].astype(np.float64)
        return Round(*own, number[message[chosen]], link[chosen], np.asarray(load, dtype=np.float64))

    def _exchange(self, machine: Machine) -> list[Seconds]:
        backend, call, found = self.compiled.backend, 0.0, list[Seconds]()
        if self.compiled.op.kind in CALLED_KINDS and len(self._members) > 1:
            price = machine.call("exchange", backend, self._members)
            call = price.floor_s + price.hop_s * (len(self._members) - 1)
        capacity = np.array([*(link.capacity_bytes_per_s for link in machine.links), np.inf])
        for one in self._rounds:
            if not len(one.nbytes):
                found.append(Seconds(call, call))
                continue
            prices = price_messages(machine, one.source, one.target, one.nbytes, backend)
            taken = one.nbytes / prices.rate_bytes_per_s
            np.maximum.at(taken, one.message, (one.load / capacity)[one.link])
            last = int(np.argmax(prices.latency_s + taken))
            latency = float(prices.latency_s[last])
            found.append(Seconds(call + latency + float(taken[last]), call + latency))
        return found

    def _copied(self, machine: Machine) -> bool:
        kind = self.compiled.op.kind
        if kind in (OpKind.H2D, OpKind.D2H):
            return True
        inside = kind in PAIRWISE_KINDS and in_host(self._sizes.program, self.compiled)
        return machine.through_host(self.rank, self.compiled.backend) and not inside

    def _copy(self, machine: Machine, nbytes: int, to_device: bool) -> Seconds:
        route = host_route(machine, self.rank, to_device) if nbytes else None
        if route is None:
            return Seconds(0.0)
        return Seconds(route.latency_s + nbytes / route.message_rate(nbytes), route.latency_s)

    def _slowest(self, machine: Machine) -> tuple[str | None, frozenset[str]]:
        used: set[int] = set()
        for one in self._rounds:
            used.update(np.unique(one.link[one.link < len(machine.network.links)]).tolist())
        if self.compiled.op.kind in COLLECTIVE_KINDS and len(self._members) > 1:
            ring = [*self._members, self._members[0]]
            for source, target in pairwise(ring):
                used.update(machine.route(source, target, self.compiled.backend).links)
        if self.communicates and self._copied(machine):
            for nbytes, to_device in ((self._out, False), (self._back, True)):
                route = host_route(machine, self.rank, to_device) if nbytes else None
                used.update(() if route is None else route.links)
        links = sorted((machine.links[place].capacity_bytes_per_s, machine.links[place].key) for place in used)
        return (links[0][1] if links else None), frozenset(key for _, key in links)


def idle_pricer(machine: Machine, sizes: Sizes, stats: PartitionStats | None) -> Pricer:
    """Return the prices of work on a machine, with a network on which nothing flows."""
    network = Network(simpy.Environment(), np.zeros(0), (), np.zeros(0))
    return Pricer(sizes, machine, stats, network, BUNDLED_ABOVE)
