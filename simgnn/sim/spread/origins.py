"""The parts of an op's time by origin (curve or kind of communication), and the uncertainty of each in the profile."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p

import numpy as np

from simgnn.errors import HardwareError
from simgnn.hardware.price.collectives import CollectivePrice, bus_seconds, find_collective
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.uncertainty import assumed_spread, call_spread, curve_spread, saturation, stand_in_spread
from simgnn.hardware.price.work import choose_level, features, stand_in_of
from simgnn.hardware.profile.communication import Collective, LinkType
from simgnn.hardware.profile.error_model import QUANTILE, combined
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.calendar import Turn
from simgnn.program.kinds import CALLED_KINDS, COLLECTIVE_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.program.ops import Op, Work
from simgnn.sim.engine.compiled import Compiled, CompiledOp
from simgnn.sim.engine.sent_bytes import handed_bytes
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.flow_table import Bools, Floats
from simgnn.sim.shared_processors import ranks_at_work

LONGER = 1.01
"""A collective is limited by its links where they take longer than its library by more than rounding."""
COPIES = (OpKind.H2D, OpKind.D2H)
CALLED = PAIRWISE_KINDS & CALLED_KINDS
"""Pairwise kinds that are calls of a whole group."""


@dataclass(frozen=True)
class Origin:
    """The cause of a part of an op's time: a curve or a kind of communication. Relative uncertainties (None: unknown):

    ``spread``: error of the model; ``jitter``: of one rank between repeats; ``drift``: of all ranks together.
    """

    name: str
    spread: float | None
    jitter: float | None
    drift: float | None = None


@dataclass(frozen=True)
class Parts:
    """How an op's time splits by :class:`Origin` number, float64 [P] each: up to ``call_s`` seconds belong to the call,
    whatever its bytes, and the rest splits by ``shares``, which sum to one (zero where nothing is priced)."""

    shares: dict[int, Floats]
    call_s: dict[int, Floats]

    def seconds(self, busy_s: Floats, origins: int) -> Floats:
        """Return how many of the ``busy_s`` seconds of an op [P] are due to each :class:`Origin`, [P, origins]."""
        found = np.zeros((len(busy_s), origins))
        left = busy_s.copy()
        for number, most in self.call_s.items():
            found[:, number] = np.minimum(most, left)
            left -= found[:, number]
        for number, share in self.shares.items():
            found[:, number] += left * share
        return found


class Origins:
    """Parts of the times of a program's ops on a machine. ``known``: all origins so far, in order of appearance."""

    def __init__(self, compiled: Compiled, machine: Machine, sizes: Sizes, stats: PartitionStats | None) -> None:
        self.known: dict[Origin, int] = {}
        self._compiled, self._machine, self._sizes, self._stats = compiled, machine, sizes, stats
        at_once = ranks_at_work(machine)
        classes: dict[tuple[str, int, int], list[int]] = {}
        for rank in range(machine.ranks):
            key = machine.types[rank], machine.threads_per_rank[rank], at_once[rank]
            classes.setdefault(key, []).append(rank)
        self._classes = {key: np.array(ranks) for key, ranks in classes.items()}

    def parts(self, compiled: CompiledOp, turn: Turn) -> Parts:
        """Return the parts of an op's time."""
        if compiled.op.kind in PAIRWISE_KINDS | COLLECTIVE_KINDS:
            return self._communication(compiled, turn)
        return Parts(self._shares(compiled, turn), {})

    def awaited(self, compiled: CompiledOp, turn: Turn) -> Bools | None:
        """Which ranks each rank of a collective waits for, [P, P], [i, j]: i waits for j; None: for its whole group.

        In a :class:`Relay`, a rank waits for those who pass the buffer to it and those to whom it sends the buffer.
        """
        if compiled.op.kind not in COLLECTIVE_KINDS:
            return None
        teams = [members for members in compiled.members.values() if len(members) > 1]
        prices = [self._price(compiled, members, turn) for members in teams]
        if all(price.relay is None for price in prices):
            return None
        found = np.eye(self._machine.ranks, dtype=np.bool_)
        for members, price in zip(teams, prices, strict=True):
            if price.relay is None:
                found[np.ix_(members, members)] = True
                continue
            for flow in price.flows:
                found[flow.target] |= found[flow.source]
            for flow in price.flows:
                found[flow.source, flow.target] = True
        return found

    def _shares(self, compiled: CompiledOp, turn: Turn) -> dict[int, Floats]:
        """Return the share of each :class:`Origin` in the time of an op's work, float64 [P], by the origin's number."""
        op, ranks = compiled.op, self._machine.ranks
        copied = not op.work and op.kind in (OpKind.COPY, *COPIES)
        work: Sequence[Work] = (Work("copy", {"bytes": 1, "item_bytes": 1}),) if copied else op.work
        of_pieces = [self._origins(piece, op, turn) for piece in work]
        if len({origin for origins in of_pieces for origin in origins}) == 1:
            return {self._number(of_pieces[0][0]): np.ones(ranks)}
        found: dict[int, Floats] = {}
        for piece, origins in zip(work, of_pieces, strict=True):
            self._add_work(found, piece, origins, turn, op)
        total = sum(found.values(), np.zeros(ranks))
        return {number: seconds / np.where(total > 0, total, 1.0) for number, seconds in found.items()}

    def _number(self, origin: Origin) -> int:
        return self.known.setdefault(origin, len(self.known))

    def _origins(self, piece: Work, op: Op, turn: Turn) -> list[Origin]:
        """Return the origin of a piece of work on each class of ranks (equal device type, threads, ranks at work)."""
        found = []
        for (_, threads, at_once), ranks in self._classes.items():
            rank = int(ranks[0])
            if op.kind in COPIES and self._machine.device(rank).kind == "gpu":
                found.append(Origin("copies between host and device", self._copy_spread(rank, op), None))
                continue
            kind, device, _ = self._machine.worker(rank, piece.primitive, at_once)
            if stand_in_of(device, piece.primitive) is not None:
                spread = stand_in_spread(device.kind, piece.primitive)
                found.append(Origin(f"{piece.primitive} on {kind}, assumed", spread, None))
                continue
            curve = choose_level(device, kind, piece.primitive, at_once, threads).curve
            sizes = {
                name: self._sizes.per_rank(size, turn.epoch, turn.step, op.name)[ranks]
                for name, size in piece.sizes.items()
            }
            spread_there = curve_spread(device.kind, curve, features(piece.primitive, sizes), sizes)
            found.append(Origin(f"{piece.primitive} on {kind}", spread_there, curve.jitter, curve.drift))
        return found

    def _copy_spread(self, rank: int, op: Op) -> float | None:
        """Return the largest spread of the rates between a GPU and its host, stated or assumed."""
        route = host_route(self._machine, rank, op.kind is OpKind.H2D)
        return None if route is None else _largest([_rate_spread(link, None) for link in route.types])

    def _add_work(self, found: dict[int, Floats], piece: Work, origins: list[Origin], turn: Turn, op: Op) -> None:
        """Add the seconds of a piece of work to its origins in ``found``; a copy between host and GPU counts as 1 s."""
        machine = self._machine
        sizes = {name: self._sizes.per_rank(size, turn.epoch, turn.step, op.name) for name, size in piece.sizes.items()}
        table = None if self._stats is None or piece.locality is None else self._stats.tables.get(piece.locality)
        for ((kind, _, at_once), ranks), origin in zip(self._classes.items(), origins, strict=True):
            seconds = np.ones(machine.ranks)
            if op.kind not in COPIES or machine.profile.devices[kind].kind != "gpu":
                seconds, _, _ = machine.work_seconds_all(piece.primitive, sizes, table, at_once)
            found.setdefault(self._number(origin), np.zeros(machine.ranks))[ranks] += seconds[ranks]

    def _communication(self, compiled: CompiledOp, turn: Turn) -> Parts:
        """Split a communication's time into the call, which has the jitter of its floor and hops, and its bytes, which
        have none, as links limit them, not the scheduler. The bytes' model error is that of the rates that limit them.

        A spread by size covers whole calls with their bytes, as in ``hardware time``: 90 % of measured calls are
        inside. It is taken as a model error that all calls of a size share, not as jitter: medians of three repeats do
        not show how much of it is random, and consecutive calls are slow together.
        """
        machine, kind = self._machine, compiled.op.kind
        name, backend = machine.backend(compiled.backend)
        parts = Parts({}, {})
        for members in compiled.members.values():
            if not members:
                continue
            spreads: list[float | None] = []
            assumed: list[float | None] = []
            further: float | None = None
            floor = backend.message.floor
            if kind in PAIRWISE_KINDS:
                spreads, assumed = self._limits(members, compiled.backend)
            found = None if len(members) < 2 else self._entry(compiled, members, turn)
            if found is not None:
                entry, exact = found
                least, nbytes = machine.least_ranks_per_host(members), self._handed(compiled, members, turn)
                whole, beyond = call_spread(entry, name, len(members), least, nbytes)
                if entry.spread_by_size(exact) is not None:
                    spreads.append(whole)
                else:
                    delays = [number for number in (entry.floor, entry.hop) if number]
                    jitter = _largest([number.spread for number in delays])
                    missed = _largest([jitter, *(assumed_spread(number, "", name) for number in delays)])
                    spread = combined(missed, beyond or None)
                    call = self._number(Origin(f"call of {kind.value} over {name}", spread, jitter))
                    most = parts.call_s.setdefault(call, np.zeros(machine.ranks))
                    most[list(members)] = self._call_s(compiled, members, turn)
                    if entry.bus_bandwidth is None:
                        assumed = assumed or self._limits(members, compiled.backend)[1]
                    elif self._links_decide(entry, compiled, members, turn):
                        spreads, assumed = self._limits(members, compiled.backend)
                    else:
                        spreads.append(entry.bus_bandwidth.spread)
                        assumed.append(assumed_spread(entry.bus_bandwidth, "", name))
                if beyond and entry.bus_bandwidth is not None:
                    # cards that may scale or be saturated: the wider side counts on both
                    shared = saturation(entry, len(members), least, nbytes)
                    alone = self._price(compiled, members, turn).seconds_alone
                    further = beyond + (log1p(shared / alone) / QUANTILE if shared else 0.0)
            if kind in PAIRWISE_KINDS and len(members) > 1:
                missed = floor.spread or assumed_spread(floor, "", name)
                delay = self._number(Origin(f"floor of messages over {name}", missed, None))
                parts.call_s.setdefault(delay, np.zeros(machine.ranks))[list(members)] = floor.value
            spread = combined(_largest(spreads), _largest(assumed), further)
            here = self._number(Origin(f"{kind.value} over {name}", spread, None))
            parts.shares.setdefault(here, np.zeros(machine.ranks))[list(members)] = 1.0
        return parts

    def _call_s(self, compiled: CompiledOp, members: tuple[int, ...], turn: Turn) -> float:
        if compiled.op.kind in COLLECTIVE_KINDS:
            return self._price(compiled, members, turn).latency_s
        if compiled.op.kind not in CALLED:
            return 0.0
        price = self._machine.call("exchange", compiled.backend, members)
        return price.floor_s + price.hop_s * (len(members) - 1)

    def _links_decide(self, entry: Collective, compiled: CompiledOp, members: tuple[int, ...], turn: Turn) -> bool:
        """Return whether the links take longer for the bytes of a collective than the bandwidth of its entry."""
        least, nbytes = self._machine.least_ranks_per_host(members), self._handed(compiled, members, turn)
        price = self._price(compiled, members, turn)
        return price.seconds_alone - price.latency_s > LONGER * bus_seconds(entry, len(members), least, nbytes)

    def _limits(self, members: tuple[int, ...], backend: str) -> tuple[list[float | None], list[float | None]]:
        """Return the spreads, stated and assumed, of the rate that limits messages among these ranks: the slowest of
        all links that they cross and of the library. A rate that states no spread is declared, and has 0."""
        machine, (name, library) = self._machine, self._machine.backend(backend)
        ring = zip(members, [*members[1:], members[0]], strict=True)
        routes = [machine.route(i, j, backend) for i, j in dict.fromkeys(ring) if i != j]
        rates = [("links.", rate) for route in routes for link in route.types for rate in link.rates]
        rates += [("", library.message.bandwidth)] if library.message.bandwidth else []
        rates += [("", library.ports.send), ("", library.ports.receive)] if library.ports else []
        if not rates:
            return [], []
        key, slowest = min(rates, key=lambda entry: entry[1].value)
        return [slowest.spread or 0.0], [assumed_spread(slowest, key, name)]

    def _price(self, compiled: CompiledOp, members: tuple[int, ...], turn: Turn) -> CollectivePrice:
        op, nbytes = compiled.op, self._handed(compiled, members, turn)
        root = op.root if op.root in members else None
        return self._machine.collective(op.kind.value, compiled.backend, nbytes, members, root)

    def _handed(self, compiled: CompiledOp, members: tuple[int, ...], turn: Turn) -> int:
        return int(handed_bytes(self._sizes, compiled, turn)[list(members)].max())

    def _entry(self, compiled: CompiledOp, members: tuple[int, ...], turn: Turn) -> tuple[Collective, bool] | None:
        """The profile entry that prices a call, and whether it was measured at this rank count; None: it is missing."""
        kind, nbytes = OpKind.EXCHANGE, 0
        if compiled.op.kind in COLLECTIVE_KINDS:
            kind, nbytes = compiled.op.kind, self._handed(compiled, members, turn)
        try:
            return find_collective(self._machine, kind.value, compiled.backend, members, nbytes)
        except HardwareError:
            return None


def _rate_spread(link: LinkType, library: str | None) -> float | None:
    return _largest([rate.spread or assumed_spread(rate, "links.", library) for rate in link.rates])


def _largest(spreads: Sequence[float | None]) -> float | None:
    return max((value for value in spreads if value is not None), default=None)
