"""What an op's seconds are made of, and how sure the profile is of each part."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simgnn.errors import HardwareError
from simgnn.hardware.collectives import choose_collective
from simgnn.hardware.links import Backend, Collective
from simgnn.hardware.machine import Machine
from simgnn.hardware.pricing import choose_level
from simgnn.partition.stats import PartitionStats
from simgnn.program.kinds import COLLECTIVE_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.program.ops import Op, Work
from simgnn.program.program import Turn
from simgnn.sim.compiled import Compiled, CompiledOp
from simgnn.sim.decided import Sizes
from simgnn.sim.device import ranks_at_once, shared_cores
from simgnn.sim.maxmin import Floats

COPIES = (OpKind.H2D, OpKind.D2H)


@dataclass(frozen=True)
class Origin:
    """A curve, or a kind of communication, as far as a profile tells its spread; shares of a time, None: not told.

    ``spread``: how far the model misses; ``jitter``: of one rank from repeat to repeat; ``drift``: of all together.
    """

    name: str
    spread: float | None
    jitter: float | None
    drift: float | None = None


class Origins:
    """Parts of the times of a program's ops on a machine. ``known``: all origins so far, in order of appearance."""

    def __init__(self, compiled: Compiled, machine: Machine, sizes: Sizes, stats: PartitionStats | None) -> None:
        self.known: dict[Origin, int] = {}
        self._compiled, self._machine, self._sizes, self._stats = compiled, machine, sizes, stats
        self._concurrency = _concurrency(machine)
        classes: dict[tuple[str, int, int], list[int]] = {}
        for rank in range(machine.ranks):
            key = machine.types[rank], machine.threads_per_rank[rank], self._concurrency[rank]
            classes.setdefault(key, []).append(rank)
        self._classes = {key: np.array(ranks) for key, ranks in classes.items()}

    def parts(self, compiled: CompiledOp, turn: Turn) -> dict[int, Floats]:
        """Share of an op's time that has each origin, float64 [P] each: one in all, zero where nothing is priced."""
        found: dict[int, Floats] = {}
        op = compiled.op
        if op.kind in PAIRWISE_KINDS | COLLECTIVE_KINDS:
            for members in compiled.members.values():
                if members:
                    here = self._number(self._communication(compiled, members))
                    found.setdefault(here, np.zeros(self._machine.ranks))[list(members)] = 1.0
            return found
        copied = not op.work and op.kind in (OpKind.COPY, *COPIES)
        work: Sequence[Work] = (Work("copy", {"bytes": 1, "item_bytes": 1}),) if copied else op.work
        for piece in work:
            self._add_work(found, piece, turn, op)
        total = np.sum(list(found.values()), axis=0) if found else np.zeros(self._machine.ranks)
        safe = np.where(total > 0, total, 1.0)
        return {number: seconds / safe for number, seconds in found.items()}

    def _number(self, origin: Origin) -> int:
        return self.known.setdefault(origin, len(self.known))

    def _add_work(self, found: dict[int, Floats], piece: Work, turn: Turn, op: Op) -> None:
        machine = self._machine
        sizes = {name: self._sizes.per_rank(size, turn.epoch, turn.step, op.name) for name, size in piece.sizes.items()}
        table = None if self._stats is None or piece.locality is None else self._stats.tables.get(piece.locality)
        for (kind, threads, at_once), ranks in self._classes.items():
            device = machine.profile.devices[kind]
            if op.kind in COPIES and device.kind == "gpu":
                here = self._number(Origin("copies between host and device", None, None))
                found.setdefault(here, np.zeros(machine.ranks))[ranks] += 1.0
                continue
            curve = choose_level(device, kind, piece.primitive, at_once, threads).curve
            name = f"{piece.primitive} on {kind}"
            here = self._number(Origin(name, curve.spread, curve.jitter, curve.drift))
            seconds, _, _ = machine.work_seconds_all(piece.primitive, sizes, table, at_once)
            found.setdefault(here, np.zeros(machine.ranks))[ranks] += seconds[ranks]

    def _communication(self, compiled: CompiledOp, members: tuple[int, ...]) -> Origin:
        """A group call. Its own jitter is that of its floor; how far its model misses the largest spread it is told."""
        machine, kind = self._machine, compiled.op.kind
        name, backend = machine.backend(compiled.backend)
        entry = None
        if len(members) > 1:
            across = len({machine.hosts[rank] for rank in members}) > 1
            called = kind.value if kind in COLLECTIVE_KINDS else OpKind.EXCHANGE.value
            try:
                entry, _ = choose_collective(backend, name, called, len(members), across)
            except HardwareError:  # only messages are described: their spread is what there is
                entry = None
        jitter = None if entry is None else _largest([entry.floor.spread, entry.hop.spread if entry.hop else None])
        told = [jitter, *_model_spreads(machine, backend, entry, kind in PAIRWISE_KINDS)]
        return Origin(f"{kind.value} over {name}", _largest(told), jitter)


def _model_spreads(
    machine: Machine, backend: Backend, entry: Collective | None, by_message: bool
) -> list[float | None]:
    if by_message:
        return [backend.message.floor.spread, *(link.bandwidth.spread for link in machine.profile.links.values())]
    return [] if entry is None or entry.bus_bandwidth is None else [entry.bus_bandwidth.spread]


def _largest(told: Sequence[float | None]) -> float | None:
    return max((value for value in told if value is not None), default=None)


def _concurrency(machine: Machine) -> list[int]:
    """Ranks at once for which each rank's work is priced, as the simulator does where cores are shared."""
    found = []
    shared: Mapping[int, int] = Counter(machine.hosts)
    for rank, host in enumerate(machine.hosts):
        cores, threads = machine.cores(host), machine.threads_per_rank[rank]
        few = cores is not None and shared_cores(cores, threads, shared[host])
        found.append(ranks_at_once(cores, threads) if few and cores is not None else machine.concurrency(rank))
    return found
