"""Prices of ops on a machine in clock ticks, computed once for all turns in which the sizes are the same."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simgnn.hardware.price.collectives import CollectivePrice, Flow, Relay
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import price_messages
from simgnn.hardware.price.work import flops_and_bytes, price_work
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.calendar import Turn
from simgnn.program.kinds import CALLED_KINDS, OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import IntArray
from simgnn.sim.clock import FOREVER_PS, PICOSECONDS, to_ps
from simgnn.sim.engine.compiled import CompiledOp
from simgnn.sim.engine.sent_bytes import WORD_BYTES, Round, pairwise_rounds
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.flow_table import Floats, Ints
from simgnn.sim.network.message_bundles import bundle_paths
from simgnn.sim.network.network import Network
from simgnn.sim.shared_processors import ranks_at_work

T = TypeVar("T")
KEPT_PAIRS = 16
"""Number of sets of rank pairs that are cached; decisions may make a new set in every turn."""
PARTS = 2
"""Gloo sends each rank's share in two parts (``gloo/allreduce.cc``), so that one is summed while the other arrives."""


class Pairs(NamedTuple):
    """Senders and receivers of the messages of a round. For each rank: positions of the messages that it sends or
    receives (``of_rank``), the rank at the other end (``peers``), and the path of each if this rank enters the round
    after that one (``paths``). ``bundled``: the paths are of :mod:`simgnn.sim.network.message_bundles`."""

    source: list[int]
    target: list[int]
    of_rank: tuple[Ints, ...]
    peers: tuple[Ints, ...]
    paths: tuple[Ints, ...]
    bundled: bool


@dataclass(frozen=True)
class Messages:
    """A priced round of messages: bytes, rate cap (bytes/s) and latency (ticks) of each. ``call_ps`` [P]: cost of the
    call on each rank before its messages start. ``parts``: number of parts in which each message is sent; ``asked``:
    receivers announce themselves to senders only as they enter the round, so on loaded links messages wait for that."""

    pairs: Pairs
    sizes: Floats
    caps: Floats
    latencies: Ints
    call_ps: Ints
    parts: int = 1
    asked: bool = True


class Stream(NamedTuple):
    """The price of one flow over several links at once: a collective, or a copy between host and device."""

    latency_ps: int
    path: int
    nbytes: float
    cap: float
    alone_ps: int


class HostWork(NamedTuple):
    """Work in the memory of a GPU's host: ``seconds`` that a rank's threads take, bytes that they touch, and the link
    (position) that leads into this memory; None: the profile has none."""

    seconds: float
    nbytes: float
    link: int | None


class Pricer:
    """Computes the prices of a program's ops on a machine. ``flagged``: ops priced outside the measured range;
    ``bundled``: ops that have rounds of more than ``bundle_above`` messages; ``carried``: primitives of work in the
    memory of a GPU's host that another machine's curves price."""

    def __init__(
        self, sizes: Sizes, machine: Machine, stats: PartitionStats | None, network: Network, bundle_above: int
    ) -> None:
        self.sizes, self.machine = sizes, machine
        self.flagged: dict[str, None] = {}
        self.bundled: dict[str, None] = {}
        self.carried: dict[str, None] = {}
        self._bundle_above, self._stats, self._network = bundle_above, stats, network
        self._loaded = any(link.load is not None for link in machine.links)
        self._static: dict[int, bool] = {}
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._path_numbers: dict[tuple[int, int, str], int] = {}
        self._known_pairs: dict[tuple[str, bytes, bytes], Pairs] = {}
        levels: dict[int, list[int]] = {}
        for rank, at_once in enumerate(ranks_at_work(machine)):
            levels.setdefault(at_once, []).append(rank)
        self._levels = {at_once: np.array(ranks, dtype=np.int64) for at_once, ranks in levels.items()}

    def once(self, what: str, compiled: CompiledOp, turn: Turn, make: Callable[[], T]) -> T:
        """Call ``make()`` once for all turns in which the op's sizes are the same, and cache the result."""
        static = self._static.get(compiled.op_id)
        if static is None:
            static = self._static[compiled.op_id] = self.sizes.is_static(compiled.op)
        key = (what, compiled.op_id) if static else (what, compiled.op_id, turn.epoch, turn.step)
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    def forget(self, turn: Turn) -> None:
        """Drop the cached prices that are valid for one turn only."""
        for key in [key for key in self._kept if len(key) == 4 and key[2:] == (turn.epoch, turn.step)]:
            del self._kept[key]

    def work_ps(self, compiled: CompiledOp, turn: Turn, work: tuple[Work, ...] | None = None) -> Ints:
        """Duration of an op's device work on every rank, int64 [P], in ticks."""
        op = compiled.op
        total = np.zeros(self.machine.ranks)
        for piece in op.work if work is None else work:
            sizes = {
                name: self.sizes.per_rank(size, turn.epoch, turn.step, op.name) for name, size in piece.sizes.items()
            }
            table = None if self._stats is None or piece.locality is None else self._stats.tables.get(piece.locality)
            for concurrency, ranks in self._levels.items():
                seconds, outside, _ = self.machine.work_seconds_all(piece.primitive, sizes, table, concurrency)
                total[ranks] += seconds[ranks]
                if np.any(outside[ranks] & compiled.runs[ranks]):
                    self.flagged[op.name] = None
        return self._ticks(total, f"op '{op.name}'")

    def messages(self, compiled: CompiledOp, turn: Turn) -> tuple[Messages, ...]:
        """Price the rounds of a pairwise op; empty where no rank sends anything."""
        rounds = pairwise_rounds(compiled, self.sizes, turn)
        return tuple(self._price_round(compiled, found) for found in rounds)

    def collective(
        self, compiled: CompiledOp, nbytes: float, members: tuple[int, ...]
    ) -> Stream | tuple[Messages, ...]:
        """Price a collective as one flow over all its links, which takes exactly the measured seconds if it runs alone.
        If members progress individually (:class:`Relay`, :func:`queued_ring`), return the rounds of their messages."""
        op, what = compiled.op, f"op '{compiled.op.name}'"
        root = op.root if op.root in members else None
        price = self.machine.collective(op.kind.value, compiled.backend, nbytes, members, root)
        if price.extrapolated:
            self.flagged[op.name] = None
        if price.relay is not None:
            return self._relayed(compiled, price.relay, members)
        ring = queued_ring(self.machine, op.kind, compiled.backend, members, price)
        if ring is not None:
            first, *rest = self._relayed(compiled, ring.relay, members)
            return tuple(replace(part, parts=PARTS, asked=part is first or not ring.partial) for part in (first, *rest))
        latency, alone = to_ps(price.latency_s, what), to_ps(price.seconds_alone, what)
        if not price.flows:
            return Stream(latency, 0, 0.0, 0.0, alone)
        flow = price.flows[0]
        paths = (self.machine.path(flow.source, flow.target, compiled.backend).links for flow in price.flows)
        path = self._path(link for links in paths for link in links)
        return Stream(latency, path, flow.nbytes, flow.rate_bytes_per_s, alone)

    def host_copy(self, compiled: CompiledOp, rank: int, nbytes: int, to_device: bool) -> Stream | None:
        """Price a copy between host and device. None: the device is a CPU, so that the copy is work of this CPU."""
        route = host_route(self.machine, rank, to_device)
        if route is None:
            return None
        latency = to_ps(route.latency_s, f"op '{compiled.op.name}'")
        return Stream(latency, self._path(route.links), float(nbytes), route.message_rate(nbytes), 0)

    def host_work(self, compiled: CompiledOp, turn: Turn, rank: int, work: Sequence[Work]) -> HostWork | None:
        """Price the ``work`` of an op on rows in the memory of a GPU's host, done by the rank's threads. None: the
        profile names no CPU there."""
        seconds, nbytes = 0.0, 0.0
        for piece in work:
            worker = self.machine.host_worker(rank, piece.primitive)
            if worker is None:
                return None
            sizes = {
                name: self.sizes.per_rank(size, turn.epoch, turn.step, compiled.op.name)[rank : rank + 1]
                for name, size in piece.sizes.items()
            }
            price = price_work(worker.device, worker.name, piece.primitive, sizes, None, 1, 1)
            seconds += float(price.seconds[0]) / self.machine.host_threads(rank)
            nbytes += float(flops_and_bytes(piece.primitive, sizes)[1][0])
            if worker.origin:
                self.carried[piece.primitive] = None
        return HostWork(seconds, nbytes, self.machine.network.memory_link(self.machine.devices[rank]))

    def host_stream(self, compiled: CompiledOp, work: HostWork) -> Stream:
        """Return :meth:`host_work` as a flow of the bytes that it touches over the link of the memory, which copies
        use, too, no faster than the threads are alone."""
        if work.link is None or not work.nbytes or not work.seconds:
            return Stream(0, 0, 0.0, 0.0, to_ps(work.seconds, f"op '{compiled.op.name}'"))
        return Stream(0, self._path((work.link,)), work.nbytes, work.nbytes / work.seconds, 0)

    def _relayed(self, compiled: CompiledOp, relay: Relay, members: tuple[int, ...]) -> tuple[Messages, ...]:
        what = f"op '{compiled.op.name}'"
        rounds: list[Messages] = []
        call = np.zeros(self.machine.ranks)
        call[list(members)] = relay.call_s
        for flows in relay.rounds:
            source = np.array([flow.source for flow in flows], dtype=np.int64)
            target = np.array([flow.target for flow in flows], dtype=np.int64)
            sizes = np.array([flow.nbytes for flow in flows], dtype=np.float64)
            caps = np.array([flow.rate_bytes_per_s for flow in flows], dtype=np.float64)
            latencies = self._ticks(np.full(len(flows), relay.hop_s), what)
            pairs = self._pairs(source, target, compiled)
            rounds.append(Messages(pairs, sizes, caps, latencies, self._ticks(call, what)))
            call = np.zeros(self.machine.ranks)
        return tuple(rounds)

    def _price_round(self, compiled: CompiledOp, found: Round) -> Messages:
        machine, backend, what = self.machine, compiled.backend, f"op '{compiled.op.name}'"
        sizes = found.nbytes.astype(np.float64)
        prices = price_messages(machine, found.source, found.target, sizes, backend)
        if prices.extrapolated.any():
            self.flagged[compiled.op.name] = None
        call = np.zeros(machine.ranks)
        for members in compiled.members.values() if compiled.op.kind in CALLED_KINDS else ():
            if len(members) > 1:
                price = machine.call("exchange", backend, members)
                call[list(members)] = price.floor_s + price.hop_s * (len(members) - 1)
                if price.extrapolated:
                    self.flagged[compiled.op.name] = None
        pairs = self._pairs(found.source, found.target, compiled)
        latencies = self._ticks(prices.latency_s, what)
        return Messages(pairs, sizes, prices.rate_bytes_per_s, latencies, self._ticks(call, what))

    def _pairs(self, source: Ints, target: Ints, compiled: CompiledOp) -> Pairs:
        """Return the pairs of a round from a small cache, as ops often exchange between the same pairs."""
        backend = compiled.backend
        key = backend, source.tobytes(), target.tobytes()
        if key not in self._known_pairs:
            while len(self._known_pairs) >= KEPT_PAIRS:
                del self._known_pairs[next(iter(self._known_pairs))]
            rank, place = np.concatenate((source, target)), np.tile(np.arange(len(source)), 2)
            order = np.lexsort((place, rank))
            cuts = np.cumsum(np.bincount(rank, minlength=self.machine.ranks))[:-1]
            bundled = len(source) > self._bundle_above
            columns = place, np.concatenate((target, source)), self._paths(source, target, backend, bundled)
            of_rank, peers, paths = (_by_rank(column[order], cuts) for column in columns)
            self._known_pairs[key] = Pairs(source.tolist(), target.tolist(), of_rank, peers, paths, bundled)
        found = self._known_pairs[key]
        if found.bundled:
            self.bundled[compiled.op.name] = None
        return found

    def _paths(self, source: Ints, target: Ints, backend: str, bundled: bool) -> Ints:
        """Return path numbers [2 n]: of each message if its sender enters the round last, then if its receiver does."""
        if bundled:
            bundles = bundle_paths(self.machine, source, target, backend)
            return self._network.add_paths(bundles.paths) + np.concatenate((bundles.sent, bundles.received))
        pairs = zip(source.tolist(), target.tolist(), strict=True)
        return np.tile(np.array([self._path_number(i, j, backend) for i, j in pairs], dtype=np.int64), 2)

    def _path_number(self, i: int, j: int, backend: str) -> int:
        key = i, j, backend
        if key not in self._path_numbers:
            number = self._path_numbers[key] = self._path(self.machine.path(i, j, backend).links)
            if self._loaded:
                self._network.answer(number, self._path(self.machine.path(j, i, backend).links))
        return self._path_numbers[key]

    def _path(self, links: Iterable[int]) -> int:
        return self._network.path({link: float(count) for link, count in Counter(links).items()})

    def _ticks(self, seconds: Floats, what: str) -> IntArray:
        worst = float(seconds.max(initial=0.0))
        least = float(seconds.min(initial=0.0))
        if not (least >= 0.0 and worst * PICOSECONDS < FOREVER_PS):
            to_ps(least if not least >= 0.0 else worst, what)
        return np.rint(seconds * PICOSECONDS).astype(np.int64)


def _by_rank(column: Ints, cuts: Ints) -> tuple[Ints, ...]:
    """Split a column that is sorted by rank into one array per rank; all ranks without a row share one empty array."""
    none = column[:0]
    return tuple(part if len(part) else none for part in np.split(column, cuts))


class Ring(NamedTuple):
    """A ring collective as rounds of messages. ``partial``: the buffer is too small for a share of every rank. Then
    receivers announce themselves (:attr:`Messages.asked`) in the first round only, otherwise in every round."""

    relay: Relay
    partial: bool


def queued_ring(
    machine: Machine, kind: OpKind, backend: str, members: tuple[int, ...], price: CollectivePrice
) -> Ring | None:
    """Return the rounds of a ring collective over links with loads, where messages queue and ranks finish individually.
    None: it is no such ring; its members then are one flow that takes exactly the measured time.

    In each round every rank forwards to its neighbour what it received in the previous one: the share of one rank. A
    buffer with fewer than ``PARTS`` words for each rank has only the shares of the first ranks.
    """
    flows, count = price.flows, len(members)
    closed = len(flows) == count and {flow.source for flow in flows} == {flow.target for flow in flows}
    crossing = (link for flow in flows for link in machine.path(flow.source, flow.target, backend).links)
    if price.steps < 2 or not closed or not any(machine.links[link].load is not None for link in crossing):
        return None
    each, filled = flows[0].nbytes / price.steps, count
    if kind is OpKind.ALLREDUCE:
        filled = min(count, ceil(count * each / (PARTS * WORD_BYTES)))
    rounds = tuple(
        tuple(
            Flow(flow.source, flow.target, each * count / filled, flow.rate_bytes_per_s)
            for place, flow in enumerate(flows)
            if (place - number) % count < filled
        )
        for number in range(price.steps)
    )
    hop = (price.latency_s - price.floor_s) / price.steps
    return Ring(Relay(price.floor_s, hop, rounds), filled < count)
