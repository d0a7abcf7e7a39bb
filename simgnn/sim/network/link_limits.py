"""Effects of links besides fair sharing: token buckets let bursts through, and loaded links make messages queue.

A token bucket (as in Linux's ``tc tbf``) fills with the link's rate while nothing flows, up to its burst. A message
that begins takes the tokens that are there and crosses the link as if it were smaller by that much. Alone it takes
exactly max(bytes / other limits, (bytes - tokens) / rate), the closed form for a bucket that is emptied at full speed.
Messages that begin together share the tokens by size. Not modelled: a bucket that fills slowly while flows use less
than the link's rate.

A loaded link is a queue: a message that arrives waits behind bytes that senders of n other messages have queued: the
measured Q(n) bytes (:class:`simgnn.hardware.profile.communication.Load`), but at most all that remain of these
messages. Under fair sharing a message of S bytes waits for S bytes of each of n others. So a message of at least
Q(n) / n bytes waits no longer than under sharing. A smaller one waits longer by (Q(n) - n S) / rate.
In all it takes (n S + Q - n S + S) / rate: the time of the queue and of itself.

Bytes that cross a loaded link take time of a core at both ends of the link, so work gets that much less of the cores of
these hosts while the bytes flow (:meth:`simgnn.sim.shared_processors.HostCores.take`).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from simgnn.hardware.price.machine import Machine
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.network.flow_table import Floats, FlowTable, Ints
from simgnn.sim.shared_processors import HostCores

Crossed = tuple[tuple[int, float], ...]
"""Links of a path, each with its share: how much of the link one unit of a flow's rate takes."""


class Buckets:
    """Token buckets of all links that have a burst. ``burst`` float64 [links] in bytes (0: none), ``capacity`` in
    bytes/s; ``crossed``: returns the links of a path, by its number. Instants are ticks."""

    def __init__(self, burst: Floats, capacity: Floats, crossed: Callable[[int], Crossed]) -> None:
        self._burst = burst
        self._rate = np.where(burst > 0.0, capacity, 0.0)
        self._crossed = crossed
        self._known: dict[int, Crossed] = {}
        self._tokens = burst.copy()
        self._open = np.zeros(len(burst), dtype=np.int64)
        self._idle_since = np.zeros(len(burst), dtype=np.int64)

    def admit(self, now: int, path: Ints, weight: Floats, cap: Floats, size: Floats) -> Floats:
        """Take tokens for classes of flows that begin now; return the sizes without the bytes that pass at once."""
        # bytes of each flow that may pass at once: even so it is no faster than its cap
        useful = [
            [(i, share, float(size[k] * max(1.0 - self._rate[i] / (share * cap[k]), 0.0))) for i, share in limited]
            for k, limited in enumerate(map(self._limited, path.tolist()))
        ]
        wanted: dict[int, float] = {}
        for k, links in enumerate(useful):
            for link, share, most in links:
                self._fill(link, now)
                self._open[link] += 1
                wanted[link] = wanted.get(link, 0.0) + weight[k] * share * most
        part = {link: min(1.0, self._tokens[link] / need) for link, need in wanted.items() if need > 0.0}
        lessened = size.copy()
        for k, links in enumerate(useful):
            # a link that is faster than the flow anyhow holds nothing back
            passes = min((part[link] * most for link, _, most in links if most > 0.0), default=0.0)
            lessened[k] -= passes
            for link, share, most in links:
                if most > 0.0:
                    self._tokens[link] = max(self._tokens[link] - weight[k] * share * passes, 0.0)
        return lessened

    def leave(self, path: Ints, end: Ints) -> None:
        """Remove classes of flows that ended at instants ``end``. Buckets of links that no flow crosses now refill."""
        for number, at in zip(path.tolist(), end.tolist(), strict=True):
            for link, _ in self._limited(number):
                self._open[link] -= 1
                self._idle_since[link] = max(self._idle_since[link], at)

    def state(self, now: int) -> tuple[Any, ...]:
        """Everything that determines the future: the current tokens, and the number of classes that cross each link."""
        idle = np.where(self._open == 0, np.maximum(now - self._idle_since, 0), 0)
        return np.minimum(self._tokens + self._rate * (idle / PICOSECONDS), self._burst).tobytes(), self._open.tobytes()

    def _limited(self, number: int) -> Crossed:
        if number not in self._known:
            self._known[number] = tuple(entry for entry in self._crossed(number) if self._burst[entry[0]] > 0.0)
        return self._known[number]

    def _fill(self, link: int, now: int) -> None:
        if self._open[link] == 0:
            idle_s = max(now - int(self._idle_since[link]), 0) / PICOSECONDS
            self._tokens[link] = min(self._tokens[link] + self._rate[link] * idle_s, self._burst[link])
            self._idle_since[link] = now


class Loads:
    """The loaded links of a network. ``cores``: shared cores, by rank; ``capacity`` float64 [links] in bytes/s."""

    def __init__(self, machine: Machine, cores: Mapping[int, HostCores], capacity: Floats, flows: FlowTable) -> None:
        self._loads = {link: one.load for link, one in enumerate(machine.links) if one.load is not None}
        self._capacity, self._flows = capacity, flows
        self.back: dict[int, int] = {}
        """Path -> path in the opposite direction."""
        self._shares: dict[int, dict[int, float]] = {}
        hosts = machine.hosts
        here = {hosts[rank]: shared for rank, shared in cores.items() if machine.cores(hosts[rank]) is not None}
        self._taking = [
            (link, self._loads[link].processor, [here[host] for host in ends if host in here])
            for link, ends in sorted(burdened_hosts(machine).items())
        ]
        self._cores = tuple(dict.fromkeys(shared for _, _, each in self._taking for shared in each))

    def crossed(self, path: int) -> dict[int, float]:
        """Loaded links of a path, each with how much of it one unit of a flow's rate takes."""
        if path not in self._shares:
            crossed = self._flows.paths.crossed(path)
            self._shares[path] = {link: share for link, share in crossed if link in self._loads}
        return self._shares[path]

    def waits_ps(self, now: int, path: Ints, unit: Floats, own: Collection[int] = (), asked: bool = False) -> Ints:
        """Extra wait compared with fair sharing for messages that begin now, int64 [classes] in ticks. ``unit`` float64
        [classes]: bytes that each sends at once. They do not queue behind the batches ``own`` (of the same call).
        ``asked``: the receivers first announce themselves with a few bytes the other way, which may queue too."""
        waits = self._behind(now, path, unit, own)
        if asked:
            # bundles have no recorded way back: assume that it is as full as the way there
            back = np.array([self.back.get(number, number) for number in path.tolist()], dtype=np.int64)
            waits += self._behind(now, back, np.zeros(len(back)), own)
        return waits

    def _behind(self, now: int, path: Ints, unit: Floats, own: Collection[int]) -> Ints:
        known: dict[int, tuple[float, float]] = {}
        waits = np.zeros(len(path), dtype=np.int64)
        for k, number in enumerate(path.tolist()):
            for link in self.crossed(number):
                if link not in known:
                    known[link] = self._before(link, now, own)
                count, left = known[link]
                queued = min(self._loads[link].queued_bytes(count), left) - count * unit[k]
                waits[k] = max(waits[k], round(queued / self._capacity[link] * PICOSECONDS))
        return waits

    def share(self, now: int) -> None:
        """Reserve, from ``now`` on, the core time that flowing bytes cost at the ends of their links."""
        taken = dict.fromkeys(self._cores, 0.0)
        for link, processor, ends in self._taking:
            flows, rows = self._flows.columns, self._on(link)
            rate = sum((flows.rate[rows] * flows.weight[rows] * self._share_of(link, rows)).tolist())
            for cores in ends:
                taken[cores] += processor * rate
        for cores, amount in taken.items():
            cores.take(amount, now)

    def _before(self, link: int, now: int, own: Collection[int]) -> tuple[float, float]:
        """Number and remaining bytes of the messages that flow over a link, without those of the batches ``own``."""
        flows, rows = self._flows.columns, self._on(link)
        rows = rows[[owner not in own for owner in flows.owner[rows].tolist()]] if own else rows
        passed = np.maximum(flows.rate[rows], 0.0) * np.maximum(now - flows.since[rows], 0) / PICOSECONDS
        left = np.maximum(flows.remaining[rows] - passed, 0.0)
        each = flows.weight[rows] * self._share_of(link, rows)
        return float(sum(each[left > 0.0].tolist())), float(sum((left * each).tolist()))

    def _on(self, link: int) -> Ints:
        """Rows of the classes that flow over a link."""
        crossings = self._flows.crossings
        begin = crossings.begin[link]
        rows: Ints = crossings.crossing[begin : begin + crossings.length[link]]
        return rows[~self._flows.columns.ended[rows]]

    def _share_of(self, link: int, rows: Ints) -> Floats:
        return np.array(
            [self.crossed(path)[link] for path in self._flows.columns.path[rows].tolist()], dtype=np.float64
        )


def burdened_hosts(machine: Machine) -> dict[int, tuple[int, ...]]:
    """Links whose bytes take processor time, each with the numbers of the hosts at its ends."""
    number = {name: host for host, (name, _) in enumerate(machine.profile.topology.host_names())}
    found: dict[int, set[int]] = {}
    for one, other, edge in machine.network.graph.edges(data=True):
        load = machine.links[edge["link"]].load
        if load is not None and load.processor:
            hosts = {number.get(node.rpartition("/")[0]) for node in (one, other)}
            found.setdefault(edge["link"], set()).update(host for host in hosts if host is not None)
    return {link: tuple(sorted(hosts)) for link, hosts in found.items()}
