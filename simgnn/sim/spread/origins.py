"""The parts of an op's time by origin (curve or kind of communication), and the uncertainty of each in the profile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simgnn.errors import HardwareError
from simgnn.hardware.price.collectives import CollectivePrice, find_collective
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import choose_level, stand_in_of
from simgnn.hardware.profile.communication import Collective
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.kinds import COLLECTIVE_KINDS, GROUP_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.program.ops import Op, Work
from simgnn.program.program import Turn
from simgnn.sim.engine.compiled import Compiled, CompiledOp
from simgnn.sim.engine.sent_bytes import handed_bytes
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.flow_table import Bools, Floats
from simgnn.sim.shared_processors import ranks_at_work

COPIES = (OpKind.H2D, OpKind.D2H)
CALLED = PAIRWISE_KINDS & GROUP_KINDS
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
        of_pieces = [self._origins(piece, op) for piece in work]
        if len({origin for origins in of_pieces for origin in origins}) == 1:
            return {self._number(of_pieces[0][0]): np.ones(ranks)}
        found: dict[int, Floats] = {}
        for piece, origins in zip(work, of_pieces, strict=True):
            self._add_work(found, piece, origins, turn, op)
        total = sum(found.values(), np.zeros(ranks))
        return {number: seconds / np.where(total > 0, total, 1.0) for number, seconds in found.items()}

    def _number(self, origin: Origin) -> int:
        return self.known.setdefault(origin, len(self.known))

    def _origins(self, piece: Work, op: Op) -> list[Origin]:
        """Return the origin of a piece of work on each class of ranks (equal device type, threads, ranks at work)."""
        found = []
        for kind, threads, at_once in self._classes:
            device = self._machine.profile.devices[kind]
            if op.kind in COPIES and device.kind == "gpu":
                found.append(Origin("copies between host and device", None, None))
            elif stand_in_of(device, piece.primitive) is not None:
                found.append(Origin(f"{piece.primitive} on {kind}, assumed", None, None))
            else:
                curve = choose_level(device, kind, piece.primitive, at_once, threads).curve
                found.append(Origin(f"{piece.primitive} on {kind}", curve.spread, curve.jitter, curve.drift))
        return found

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
        have none, as links limit them, not the scheduler. The bytes' model error is the largest spread in the profile.

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
            if kind in PAIRWISE_KINDS:
                rates = (rate for link in machine.profile.links.values() for rate in link.rates)
                spreads = [backend.message.floor.spread, *(rate.spread for rate in rates)]
            found = None if len(members) < 2 else self._entry(compiled, members, turn)
            if found is not None:
                entry, exact = found
                if entry.spread_by_size(exact) is not None:
                    spreads.append(entry.spread_at(self._handed(compiled, members, turn), exact))
                else:
                    jitter = _largest([entry.floor.spread, entry.hop.spread if entry.hop else None])
                    call = self._number(Origin(f"call of {kind.value} over {name}", jitter, jitter))
                    most = parts.call_s.setdefault(call, np.zeros(machine.ranks))
                    most[list(members)] = self._call_s(compiled, members, turn)
                    spreads.append(entry.bus_bandwidth.spread if entry.bus_bandwidth else None)
            here = self._number(Origin(f"{kind.value} over {name}", _largest(spreads), None))
            parts.shares.setdefault(here, np.zeros(machine.ranks))[list(members)] = 1.0
        return parts

    def _call_s(self, compiled: CompiledOp, members: tuple[int, ...], turn: Turn) -> float:
        if compiled.op.kind in COLLECTIVE_KINDS:
            return self._price(compiled, members, turn).latency_s
        if compiled.op.kind not in CALLED:
            return 0.0
        price = self._machine.call("exchange", compiled.backend, members)
        return price.floor_s + price.hop_s * (len(members) - 1)

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


def _largest(spreads: Sequence[float | None]) -> float | None:
    return max((value for value in spreads if value is not None), default=None)
