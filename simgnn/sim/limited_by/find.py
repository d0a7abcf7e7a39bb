"""Finds what limits a prediction: the numbers of the profile that its epoch depends on most, and those without effect.

How much a number matters is first estimated: each op of the critical path is priced alone with this number twice as
good. As another path may then be the longest, this is the most that the number can give. The numbers with the largest
estimates are therefore simulated, until three are known to shorten the epoch more than any other can, or until
``EVENTS`` events were simulated. Rates that the path uses but does not depend on are simulated likewise.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.other_numbers import with_numbers
from simgnn.hardware.price.work import stand_in_of
from simgnn.hardware.profile.numbers import ProfileNumber, profile_numbers
from simgnn.hardware.profile.profile import Profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.kinds import COLLECTIVE_KINDS, OpKind
from simgnn.record.epoch_kinds import kinds_of
from simgnn.record.limited_by import Activity as Activities
from simgnn.record.limited_by import LimitedBy, ProfileLimit, RankOnPath, TimeSpent
from simgnn.sim.engine.turn_sizes import Activity, Sizes
from simgnn.sim.limited_by.alone import OpAlone, Seconds, idle_pricer
from simgnn.sim.limited_by.critical_path import Piece, critical_path
from simgnn.sim.network.flow_table import Ints
from simgnn.sim.simulate import Simulation

NAMED, LEAST = 3, 0.005
"""How many numbers are named, and the least share of the epoch by which each must shorten it."""
EVENTS = 12_000
"""Events that are simulated to check numbers, in all: about a second on one core, whatever the simulated machine."""
FEWEST_CHECKS = NAMED + 2
"""Where fewer simulations are affordable, none is made, and estimates are reported."""
MOST_CHECKS = 40
SHORT_RUN = 3
"""Epochs of a simulation that checks a number. The second one counts: nothing follows the last."""
WAITED = 0.01
"""Least share of the epoch that a rank must wait for others, for ranks that they wait for to be named."""
NO_EFFECT = 0.001
"""A number that changes the epoch by less than this share has no effect."""
MOST_WITHOUT_EFFECT = 3


@dataclass(frozen=True)
class Resimulation:
    """How to simulate the program again. ``place``: places its ranks on a machine with other numbers; ``simulate``:
    simulates a number of epochs there, with everything else unchanged."""

    place: Callable[[Profile], Machine]
    simulate: Callable[[Machine, int], Simulation]


@dataclass(frozen=True)
class Step:
    """All pieces of the path in which one op runs: their seconds, and the op in the longest of them, alone."""

    seconds: float
    alone: OpAlone
    base: Seconds


def find_limits(
    simulation: Simulation,
    machine: Machine,
    again: Resimulation,
    *,
    stats: PartitionStats | None = None,
    activity: Activity | None = None,
    jitter_s: float = 0.0,
    events: float = EVENTS,
) -> LimitedBy:
    """Find what limits the epochs of a simulation. ``jitter_s``: seconds that jitter adds to a median epoch;
    ``events``: how many events to simulate for checks at most."""
    sizes = Sizes(simulation.program, activity or {})
    alike = kinds_of(simulation.program.calendar, len(simulation.epoch_s))[-1].epochs
    epoch = typical_epoch(simulation.epoch_s, alike)
    path = critical_path(simulation.compiled, simulation.columns, sizes, epoch)
    steps = list(steps_of(path, machine, sizes, stats))
    whole = sum(piece.seconds for piece in path)
    search = _Search(simulation, machine, again, steps, whole, sizes, stats, events, int(alike[0]))
    numbers, without = search.numbers(), search.without_effect()
    return LimitedBy(
        epoch=epoch,
        time=_shares(time_spent(path, steps, jitter_s), whole + jitter_s),
        ranks=_ranks(path, whole) if _waited_s(simulation, epoch) >= WAITED * simulation.epoch_s[epoch] else [],
        numbers=numbers,
        without_effect=without,
        simulations=search.simulations,
    )


def typical_epoch(epoch_s: Sequence[float], alike: Ints) -> int:
    """Return the epoch whose time is nearest the median of ``alike``, the epochs of the most frequent kind."""
    times = np.array(epoch_s)[alike]
    return int(alike[np.argmin(np.abs(times - np.median(times)))])


def steps_of(path: Sequence[Piece], machine: Machine, sizes: Sizes, stats: PartitionStats | None) -> Iterator[Step]:
    """Yield the ops of a path, each with its price alone."""
    groups: dict[int, list[Piece]] = {}
    for piece in path:
        if piece.compiled is not None:
            groups.setdefault(piece.compiled.op_id, []).append(piece)
    pricer = idle_pricer(machine, sizes, stats)
    for pieces in groups.values():
        longest = max(pieces, key=lambda piece: piece.seconds)
        assert longest.compiled is not None
        assert longest.turn is not None
        alone = OpAlone(longest.compiled, longest.turn, longest.rank, machine, sizes)
        yield Step(sum(piece.seconds for piece in pieces), alone, alone.seconds(machine, pricer))


class Spent(NamedTuple):
    """Seconds of an epoch, by what they were spent on: see :class:`simgnn.record.limited_by.TimeSpent`."""

    activity: Activities
    what: str
    link: str | None
    seconds: float


def time_spent(path: Sequence[Piece], steps: Sequence[Step], jitter_s: float = 0.0) -> list[Spent]:
    """Return what a path's time goes into, most first; the seconds sum to those of the path and ``jitter_s``."""
    seconds: dict[tuple[Activities, str, str | None], float] = {}

    def add(activity: Activities, what: str, link: str | None, spent: float) -> None:
        seconds[activity, what, link] = seconds.get((activity, what, link), 0.0) + spent

    for step in steps:
        kind = step.alone.compiled.op.kind.value
        if not step.alone.communicates:
            add("compute", kind, None, step.seconds)
            continue
        fixed = min(step.base.fixed / step.base.total, 1.0) if step.base.total else 1.0
        add("calls", "calls and latencies", None, step.seconds * fixed)
        add("transfer", kind, step.alone.link, step.seconds * (1.0 - fixed))
    idle = sum(piece.seconds for piece in path if piece.compiled is None)
    add("wait", "nothing runs", None, idle)
    add("wait", "waiting that jitter makes", None, jitter_s)
    order = sorted(seconds.items(), key=lambda entry: (-entry[1], entry[0][:2]))
    return [Spent(*what, spent) for what, spent in order if spent > 0.0]


def _shares(found: Sequence[Spent], whole: float) -> list[TimeSpent]:
    total = max(whole, np.finfo(np.float64).tiny)
    return [TimeSpent(activity=one.activity, what=one.what, link=one.link, share=one.seconds / total) for one in found]


def _waited_s(simulation: Simulation, epoch: int) -> float:
    """Return how long the rank that waits most waits for others."""
    return float(simulation.wait_s[epoch].max())


def _ranks(path: Sequence[Piece], whole: float) -> list[RankOnPath]:
    order = sorted(seconds_by_rank(path).items(), key=lambda entry: (-entry[1], entry[0]))
    return [RankOnPath(rank=rank, share=spent / whole) for rank, spent in order]


def seconds_by_rank(path: Sequence[Piece]) -> dict[int, float]:
    """Return how long a path runs through each rank's own ops; collectives belong to all their ranks, so to none."""
    seconds: dict[int, float] = {}
    for piece in path:
        if piece.compiled is None or piece.compiled.op.kind not in COLLECTIVE_KINDS:
            seconds[piece.rank] = seconds.get(piece.rank, 0.0) + piece.seconds
    return seconds


class _Search:
    """Estimates and checks of what numbers of the profile give. ``simulations``: how many were made; ``counted``: the
    epoch of a short run whose time counts."""

    def __init__(
        self,
        simulation: Simulation,
        machine: Machine,
        again: Resimulation,
        steps: Sequence[Step],
        whole: float,
        sizes: Sizes,
        stats: PartitionStats | None,
        events: float,
        counted: int,
    ) -> None:
        self._sizes = sizes
        self._machine, self._again, self._steps, self._stats = machine, again, steps, stats
        self._whole = max(whole, np.finfo(np.float64).tiny)
        self._epochs = min(len(simulation.epoch_s), max(SHORT_RUN, counted + 2))
        self._counted = counted
        self._before = simulation.epoch_s[self._counted]
        copied = {one for first, count in simulation.copied for one in range(first, first + count)}
        short = len([epoch for epoch in range(self._epochs) if epoch not in copied])
        each = simulation.events * short / (len(simulation.epoch_s) - len(copied))
        affordable = int(min(events / max(each, 1.0), MOST_CHECKS))
        self._checks = affordable >= FEWEST_CHECKS
        self._left = affordable if self._checks else 0
        self._known: dict[str, float] = {}
        self._estimates = self._estimated()

    @property
    def simulations(self) -> int:
        return len(self._known)

    def numbers(self) -> list[ProfileLimit]:
        """Return the numbers that shorten the epoch most."""
        candidates = [number for number, estimate in self._estimates if estimate >= LEAST]
        places = {number.key: estimate for number, estimate in self._estimates}
        for place, number in enumerate(candidates):
            known = sorted((self._known[one.key] for one in candidates[:place] if one.key in self._known), reverse=True)
            if not self._left or (len(known) >= NAMED and known[NAMED - 1] >= places[number.key]):
                break
            self._check(number)
        # no price of a single op shows what links do to other messages and to work
        for number in [number for number, _ in self._estimates if number.part == "load" and self._is_used(number)]:
            if self._left:
                candidates.append(number)
                self._check(number)
        found = [self._limit(number, places[number.key]) for number in candidates]
        if self._checks:
            found = [limit for limit in found if limit.checked] or found
        found = [limit for limit in found if limit.shorter >= LEAST]
        return sorted(found, key=lambda limit: (-limit.shorter, limit.key))[:NAMED]

    def without_effect(self) -> list[ProfileLimit]:
        """Return rates on the way of the path's communication that do not change the epoch."""
        found: list[ProfileLimit] = []
        if not self._checks:
            return found  # more of one rate may lengthen the epoch, which no price of an op alone shows
        free = [(one, estimate) for one, estimate in self._estimates if estimate < NO_EFFECT / 2 and self._is_way(one)]
        for number, estimate in sorted(free, key=lambda entry: (not self._crosses_hosts(entry[0]), entry[0].key)):
            if len(found) == MOST_WITHOUT_EFFECT or not self._left:
                break
            self._check(number)
            limit = self._limit(number, estimate)
            if abs(limit.shorter) < NO_EFFECT:
                found.append(limit)
        return found

    def _limit(self, number: ProfileNumber, estimate: float) -> ProfileLimit:
        known = self._known.get(number.key)
        shorter = estimate if known is None else known
        return ProfileLimit(
            key=number.key, value=number.value, source=number.source, shorter=shorter, checked=known is not None
        )

    def _check(self, number: ProfileNumber) -> None:
        machine = self._again.place(number.doubled(self._machine.profile))
        after = self._again.simulate(machine, self._epochs).epoch_s[self._counted]
        self._known[number.key] = 1.0 - after / self._before
        self._left -= 1

    def _estimated(self) -> list[tuple[ProfileNumber, float]]:
        """Return all numbers with the share of the epoch that each can give at most, largest first."""
        found = [(number, self._estimate(number)) for number in profile_numbers(self._machine.profile)]
        return sorted(found, key=lambda entry: (-entry[1], entry[0].key))

    def _estimate(self, number: ProfileNumber) -> float:
        profile = self._machine.profile
        steps = [step for step in self._steps if self._depends(step, number)]
        if not steps:
            return 0.0
        changed = number.doubled(profile)
        cores = number.key.endswith(".cores")
        machine = self._again.place(changed) if cores else with_numbers(self._machine, changed)
        pricer = idle_pricer(machine, self._sizes, self._stats)
        saved = 0.0
        for step in steps:
            if step.base.total:
                saved += step.seconds * (1.0 - step.alone.seconds(machine, pricer).total / step.base.total)
        return saved / self._whole

    def _depends(self, step: Step, number: ProfileNumber) -> bool:
        """Whether the time of an op may depend on a number."""
        alone, path = step.alone, number.paths[0]
        if number.part == "device":
            return not alone.communicates and path[1] in self._machine.working_types and self._works(step, path)
        if number.part == "link":
            return alone.communicates and path[1] in alone.links
        return number.part == "library" and alone.communicates and self._calls(step, path)

    def _calls(self, step: Step, path: Sequence[str | int]) -> bool:
        """Whether an op calls the library of a number; if it is one of a collective, this collective."""
        op = step.alone.compiled.op
        library, backend = self._machine.backend(step.alone.compiled.backend)
        kind = op.kind if op.kind in COLLECTIVE_KINDS else OpKind.EXCHANGE
        if path[1] != library:
            return False
        return path[2] != "collectives" or backend.collectives[int(path[3])].kind == kind.value

    def _works(self, step: Step, path: Sequence[str | int]) -> bool:
        if path[2] != "curves":
            return True
        device = self._machine.profile.devices[str(path[1])]
        primitive = device.curves[int(path[3])].primitive
        pieces = [piece.primitive for piece in step.alone.compiled.op.work] or ["copy"]
        return any(one == primitive or stand_in_of(device, one) is not None for one in pieces)

    def _is_way(self, number: ProfileNumber) -> bool:
        """Whether a number is a rate of the links or the library that the path's messages use."""
        collective = number.paths[0][2] == "collectives"
        return number.rate and not collective and self._is_used(number)

    def _crosses_hosts(self, number: ProfileNumber) -> bool:
        part, name = number.paths[0][:2]
        return part == "links" and self._machine.profile.links[str(name)].kind in ("ethernet", "infiniband")

    def _is_used(self, number: ProfileNumber) -> bool:
        part, name = number.paths[0][:2]
        used: set[str] = set()
        for step in self._steps:
            if step.alone.communicates:
                used |= step.alone.links if part == "links" else {self._machine.backend(step.alone.compiled.backend)[0]}
        return part in ("links", "backends") and name in used
