"""Capacities of caches of halo rows that follow from the memory which the program leaves free on a machine."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from simgnn.emit.halo_cache.routes import CACHED, IN_MEMORY, arriving
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.planner.memory.program_memory import program_bytes, shared_bytes, staged_bytes
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray

Level = Literal["device_rows", "host_rows"]
EQUAL = "adaptive-equal"


def with_capacities(
    experiment: Experiment, stats: PartitionStats, profile: Profile | None
) -> tuple[Experiment, dict[str, Any]]:
    """Return the experiment with a number of rows for each "adaptive" cache, one for each rank or host, and these by
    key path. As many rows as fit: rows that are cached take what the program without them leaves of a memory, less a
    reserved share (``reserved_device_share``, ``reserved_host_share``). "adaptive-equal": the least of all ranks and
    hosts. Where devices are CPUs, both caches lie in one memory: devices take their rows first.

    Source: CaPGNN, algorithm 1, in bytes. Deviation: memory is that of the program, buffers and
    scratch, not a closed form. Raises :class:`ConfigError` without a profile, or one that does not say what is asked
    for."""
    adaptive = {level: str(rows) for level, rows in experiment.placement.halo_caches.items() if isinstance(rows, str)}
    if not adaptive:
        return experiment, {}
    if profile is None:
        level, rows = next(iter(adaptive.items()))
        raise ConfigError(
            f"placement.{level}: got '{rows}' without a hardware profile, expected one: how many rows fit follows from "
            "the memory of its devices and hosts; name it with --hardware (hardware.profile), measure this machine "
            "with `simgnn calibrate`, or state a number of rows or a share"
        )
    machine = Machine.place(profile, experiment.rank_hosts(), experiment.hardware.threads)
    found: dict[str, IntArray] = {}
    levels: tuple[Level, ...] = ("device_rows", "host_rows")
    # rows in the memory of a host also take room on the GPUs that read them, and of any budget of a device: they are
    # counted first there
    budget = experiment.placement.device_bytes
    for level in levels if _on_cpu(machine).all() and not budget else levels[::-1]:
        if level in adaptive:
            others: dict[str, int | float | IntArray] = {**dict.fromkeys(adaptive, 0), **found}
            found[level] = _Fitting(experiment, stats, machine, level, others).rows()
    equal = [rows for level, rows in found.items() if adaptive[level] == EQUAL]
    alike = min((int(rows.min()) for rows in equal), default=0)
    found = {level: np.full_like(rows, alike) if adaptive[level] == EQUAL else rows for level, rows in found.items()}
    return _with(experiment, found), {f"placement.{level}": rows.tolist() for level, rows in found.items()}


def _with(experiment: Experiment, caches: Mapping[str, int | float | IntArray]) -> Experiment:
    rows = {level: tuple(each.tolist()) if isinstance(each, np.ndarray) else each for level, each in caches.items()}
    return experiment.model_copy(update={"placement": experiment.placement.model_copy(update=rows)})


def _on_cpu(machine: Machine) -> NDArray[np.bool_]:
    return np.array([machine.device(rank).kind == "cpu" for rank in range(machine.ranks)])


def _per_host(machine: Machine, of_ranks: NDArray[Any]) -> NDArray[np.float64]:
    """Sum numbers of ranks [P] over those of each host, [hosts]."""
    return cast(NDArray[np.float64], np.bincount(np.asarray(machine.hosts), of_ranks))


def _needed(program: Program, machine: Machine, level: Level) -> NDArray[np.float64]:
    """Bytes that a program needs of the device of each rank [P], or of the memory of each host [hosts]. What the ranks
    of a host share counts once: on CPUs, in equal parts."""
    cpu, shared = _on_cpu(machine), shared_bytes(program).astype(np.float64)
    together = _per_host(machine, np.ones(machine.ranks))[np.asarray(machine.hosts)]
    on_device: NDArray[np.float64] = program_bytes(program, cpu) + cpu * shared / together
    if level == "device_rows":
        return on_device
    return _per_host(machine, np.where(cpu, on_device, staged_bytes(program) + shared / together))


@dataclass(frozen=True)
class _Fitting:
    """How many rows fit into the caches of a ``level``, beside ``others``, caches of known sizes by level."""

    experiment: Experiment
    stats: PartitionStats
    machine: Machine
    level: Level
    others: Mapping[str, int | float | IntArray]

    def rows(self) -> IntArray:
        """Return the number of rows of each rank or host.

        Bytes needed with one row, ``least``, and with all, ``full``: in between they are taken to grow in proportion.
        The first row changes more, as the others then travel apart from those of caches. A rank may read many of the
        first rows in the memory of its host and few of the last, so that less may fit: that is tried, and repaired."""
        full = self._program(1.0)
        found = most = _most_rows(full, self.level)
        if not self._lacking(full, most).any():  # planning with one row takes as long again, and would tell nothing
            return most
        least = self._program(1)
        for place in self._places():
            room = _room(self.experiment, self.machine, place)
            needed, whole = (_needed(program, self.machine, place) for program in (least, full))
            free, grows = room - needed, whole - needed
            share = np.divide(free, grows, out=np.ones_like(free), where=grows > 0)
            share = self._of_level(place, np.where(free < 0, -1.0, np.clip(share, 0.0, 1.0)))
            fitting = 1 + np.floor(share * (most - 1)).astype(np.int64)
            found = np.where((share >= 0) & (most > 0), np.minimum(found, fitting), 0)
        while (short := self._short(found) & (found > 0)).any():
            found = np.where(short, found * 3 // 4, found)
        return found

    def _short(self, rows: IntArray) -> NDArray[np.bool_]:
        """Find the ranks or hosts whose caches of so many rows do not fit."""
        return self._lacking(self._program(rows), rows)

    def _lacking(self, program: Program, rows: IntArray) -> NDArray[np.bool_]:
        """Find the ranks or hosts in whose memory a program with caches of so many rows does not fit."""
        short = np.zeros(len(rows), np.bool_)
        for place in self._places():
            free = _room(self.experiment, self.machine, place) - _needed(program, self.machine, place)
            short |= self._of_level(place, free) < 0
        return short

    def _program(self, rows: int | float | IntArray) -> Program:
        return plan(_with(self.experiment, {**self.others, self.level: rows}), self.stats).program

    def _places(self) -> tuple[Level, ...]:
        """The memories in which rows of the level take room. GPUs read those of their host's memory into theirs; on a
        CPU both are one memory, unless a budget limits what each rank takes of it."""
        apart = bool(self.experiment.placement.device_bytes) or not _on_cpu(self.machine).all()
        return ("host_rows", "device_rows") if self.level == "host_rows" and apart else (self.level,)

    def _of_level(self, place: Level, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the numbers of ranks or hosts; of ranks whose host is asked about, the least of each host."""
        if place == self.level:
            return numbers
        found = np.full(max(self.machine.hosts) + 1, np.inf)
        np.minimum.at(found, np.asarray(self.machine.hosts), numbers)
        return found


def _room(experiment: Experiment, machine: Machine, level: Level) -> NDArray[np.float64]:
    """Return the bytes that may be taken of each rank's device [P], or of the memory of each host [hosts]."""
    room = _memory(machine, level) * (1 - experiment.placement.reserved_shares[level])
    if level == "device_rows" and experiment.placement.device_bytes:
        room = np.minimum(room, experiment.placement.device_bytes)
    return room


def _memory(machine: Machine, level: Level) -> NDArray[np.float64]:
    """Bytes of each rank's device [P], ranks that share one apart, or of the memory of each host [hosts]."""
    sharing, cpu = Counter(machine.devices), _on_cpu(machine)
    of_ranks = np.array([machine.memory_bytes(rank) / sharing[device] for rank, device in enumerate(machine.devices)])
    if level == "device_rows":
        return of_ranks
    found = np.array([machine.host_memory_bytes(host) for host in range(max(machine.hosts) + 1)])
    found = np.where(_per_host(machine, cpu * 1.0) > 0, _per_host(machine, of_ranks * cpu), found)
    if not np.isfinite(found).all():
        raise ConfigError(
            "placement.host_rows: got 'adaptive', but the hardware profile does not say how much memory its hosts have "
            "beside their GPUs (topology.hosts.memory); state it there, or state a number of rows or a share"
        )
    return found


def _most_rows(full: Program, level: Level) -> IntArray:
    """Rows of a cache that holds all that may be cached, of each rank or host; ``full``: the program with it."""
    none = np.zeros(full.ranks, np.int64)
    if level == "device_rows":
        return np.asarray(full.sizes.columns.get(arriving(CACHED).name, none), dtype=np.int64)
    column = full.sizes.columns.get(IN_MEMORY.name, none)
    first = [full.hosts.index(host) for host in range(max(full.hosts) + 1)]
    return np.asarray(column[first], dtype=np.int64)
