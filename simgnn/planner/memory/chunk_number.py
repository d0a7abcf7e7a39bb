"""How many chunks of each rank the memory of devices asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from simgnn.emit.chunks.names import TOPOLOGY
from simgnn.errors import ConfigError, ShortMemoryError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile
from simgnn.partition.chunks.partitioner import ChunkedPartitioner
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned, plan
from simgnn.planner.memory.program_memory import fixed_bytes, program_bytes
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.sizes import IntArray
from simgnn.progress import SILENT, Progress

if TYPE_CHECKING:
    from simgnn.graph.graph import Graph
    from simgnn.partition.store import PartitionArtifact

BUDGET = "placement.device_bytes"
SHRINKS = 0.99
"""Twice as many chunks that need more than this share of the memory are taken to need no less."""


@dataclass(frozen=True)
class Held:
    """What a program holds: the most bytes of each rank's device, int64 [P]. ``full``: which memory of the machine it
    does not fit into, in words; "": it fits."""

    device: IntArray
    full: str = ""


Needs = Callable[[Experiment, PartitionStats, Planned], Held]
"""Says what a planned program holds."""


def in_program_order(experiment: Experiment, stats: PartitionStats, planned: Planned) -> Held:
    """Return the memory of a program without a simulation, with host buffers in the memory of devices, as on CPUs."""
    return Held(program_bytes(planned.program, np.ones(experiment.ranks, dtype=np.bool_)))


def device_room(experiment: Experiment, profile: Profile | None) -> NDArray[np.float64]:
    """Return the bytes that each rank's device may hold, [P]: ``placement.device_bytes``, or the memory of its device
    by the hardware ``profile``, in equal parts where ranks share one. Raises :class:`ConfigError` where neither is
    known."""
    if experiment.placement.device_bytes:
        return np.full(experiment.ranks, experiment.placement.device_bytes, dtype=np.float64)
    if profile is None:
        raise ConfigError(
            f"partition.chunks: got 'auto' without {BUDGET} and without a hardware profile, expected one: the number "
            "follows from the memory of devices; state a budget or a number, name a profile with --hardware, or "
            "measure this machine with `simgnn calibrate`"
        )
    machine = Machine.place(profile, experiment.rank_hosts(), experiment.hardware.threads)
    sharing = [machine.devices.count(device) for device in machine.devices]
    return np.array([machine.memory_bytes(rank) / sharing[rank] for rank in range(machine.ranks)])


@dataclass(frozen=True)
class ChunkTrials:
    """Programs of an experiment with several numbers of chunks, each planned once. ``tables``: statistics of the
    partition in a number of chunks; ``room`` [P]: see :func:`device_room`. ``hub``: the vertex of largest in-degree,
    and that (None: not known). ``known``: the only numbers that there are
    statistics of, ascending (None: any number up to ``most``, the vertices of the smallest part)."""

    experiment: Experiment
    tables: Callable[[int], PartitionStats]
    needs: Needs
    room: NDArray[np.float64]
    most: int
    hub: tuple[int, int] | None = None
    known: tuple[int, ...] | None = None
    progress: Progress = SILENT
    _held: dict[int, Held] = field(default_factory=dict, init=False)
    _planned: dict[int, Planned] = field(default_factory=dict, init=False)

    def held(self, chunks: int) -> Held:
        """Return what the program with so many chunks holds."""
        if chunks not in self._held:
            self.progress.stage(f"memory: what {chunks} chunks of each rank need")
            stats, experiment = self.tables(chunks), in_chunks(self.experiment, chunks)
            self._planned[chunks] = plan(experiment, stats)
            self._held[chunks] = self.needs(experiment, stats, self._planned[chunks])
        return self._held[chunks]

    def fits(self, chunks: int) -> bool:
        """Whether the program with so many chunks fits."""
        held = self.held(chunks)
        return not held.full and bool(np.all(held.device <= self.room))

    def least_power(self) -> int | None:
        """Return the smallest power of two of chunks that fits (of known numbers: the smallest); None: none does."""
        return self._first(self._doubled())[1]

    def least(self) -> int | None:
        """Return the smallest number of chunks that fits: by doubling up to the most, then by bisection; None: none
        does. Memory is taken to fall as chunks become more, as it does but for the order of chunks."""
        if self.known is not None:
            return self.least_power()
        low, high = self._first((*self._doubled(), self.most))
        while high is not None and high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(middle) else (middle, high)
        return high

    def _first(self, numbers: Sequence[int]) -> tuple[int, int | None]:
        """Return the first of ascending numbers that fits (None: none does) and the last one before it that does not
        (0: there is none). Ends early where no number can fit and more chunks need no less."""
        below, before = 0, inf
        for chunks in numbers:
            if self.fits(chunks):
                return below, chunks
            peak = float(self.held(chunks).device.max())
            if peak > SHRINKS * before and self._least_possible() > self.room.min():
                break
            below, before = chunks, peak
        return below, None

    def _least_possible(self) -> int:
        """Bytes that the fullest device needs at least, whatever the chunks: what no number changes, and the rows that
        the vertex of largest in-degree needs."""
        return sum(self.fixed().values()) + (0 if self.hub is None else self.hub_bytes())

    def hub_bytes(self) -> int:
        """Bytes of the rows that the vertex of largest in-degree needs at once, whatever chunk it is in."""
        assert self.hub is not None
        layers = next(iter(self._planned.values())).layers
        widest = max(layer.width_in for layer in layers)
        return (self.hub[1] + 1) * widest * ITEM_BYTES[self.experiment.train.dtype]

    def best(self) -> tuple[int, int]:
        """Return the tried number of chunks whose fullest device holds least, and its bytes."""
        chunks = min(self._held, key=lambda tried: (self._held[tried].device.max(), tried))
        return chunks, int(self._held[chunks].device.max())

    def fixed(self) -> Mapping[str, int]:
        """Return bytes that no number of chunks changes, of the fullest rank: parameters with what goes with them, and
        edges that lie on devices."""
        self.held(1 if self.known is None else self.known[0])
        program = next(iter(self._planned.values())).program
        found = {"parameters and optimizer state": fixed_bytes(program)}
        edges = program.buffers.get(TOPOLOGY)
        if edges is not None and edges.space == "device":
            found["edges"] = int((program.sizes.most(edges.rows) * edges.row_bytes).max())
        return found

    def _doubled(self) -> tuple[int, ...]:
        if self.known is not None:
            return self.known
        return tuple(2**power for power in range(self.most.bit_length()))


def in_chunks(experiment: Experiment, chunks: int) -> Experiment:
    """Return the experiment with a stated number of chunks."""
    policy = cast(ChunkedPartitioner, experiment.partition)
    return experiment.model_copy(update={"partition": policy.in_chunks(chunks)})


def asks_for_number(experiment: Experiment) -> bool:
    """Whether the number of chunks is to follow from memory."""
    if not experiment.partition.chunked:
        return False
    return cast(ChunkedPartitioner, experiment.partition).stated_chunks is None


def graph_trials(
    experiment: Experiment, graph: "Graph", parts: "PartitionArtifact", stats: PartitionStats, needs: Needs,
    room: NDArray[np.float64], progress: Progress = SILENT,
) -> ChunkTrials:  # fmt: skip
    """Return the trials with chunks of ``parts``, whose rates are filled in already; nothing of them is kept."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.chunks.store import counted_tables

    policy = cast(ChunkedPartitioner, experiment.partition)

    def tables(chunks: int) -> PartitionStats:
        counted = counted_tables(graph, parts, policy.settings(chunks))
        return replace(stats, tables={**stats.tables, **counted})

    degrees = graph.csr.degrees()
    hub = int(np.argmax(degrees))
    return ChunkTrials(
        experiment, tables, needs, room, int(stats.rows.min()), (hub, int(degrees[hub])), progress=progress
    )


def chosen_number(trials: ChunkTrials) -> int:
    """Return the smallest power of two of chunks that fits. Raises :class:`ShortMemoryError` if none does."""
    found = trials.least_power()
    if found is None:
        raise ShortMemoryError(f"partition.chunks: got 'auto'; {no_number(trials)}")
    trials.progress.stage(
        f"partition.chunks: {found}, the smallest {'power of two' if trials.known is None else 'number in the file'} "
        "with which every device holds no more than it may"
    )
    return found


def workable(trials: ChunkTrials) -> str:
    """Describe the smallest number of chunks that fits, or why none does."""
    found = trials.least()
    if found is None:
        return no_number(trials)
    return f"smallest workable: partition.chunks = {found} (peak {int(trials.held(found).device.max()):,} B)"


def no_number(trials: ChunkTrials) -> str:
    """Describe why no number of chunks fits: what no number changes, or the largest set of in-neighbours."""
    rank = int(np.argmax(trials.room <= trials.room.min()))
    room, found = int(trials.room[rank]), trials.least()
    if found is not None:
        return f"no power of two of chunks fits; {workable(trials)}"
    over = {what: nbytes for what, nbytes in trials.fixed().items() if nbytes > room}
    if over:
        what, nbytes = next(iter(over.items()))
        remedy = "; keep them on the host (placement.topology = 'streamed')" if what == "edges" else ""
        return f"no number of chunks fits: {what} alone take {nbytes:,} B of a device, budget {room:,} B{remedy}"
    chunks, peak = trials.best()
    full = trials.held(chunks).full
    if full and peak <= room:
        return f"no number of chunks fits: {full}"
    hub = ""
    if trials.hub is not None:
        vertex, degree = trials.hub
        hub = f": vertex {vertex} with in-degree {degree:,} alone needs {trials.hub_bytes():,} B for rows"
    return (
        f"no number of chunks fits{hub}; smallest workable {BUDGET} = {peak:,} (with partition.chunks = {chunks}, the "
        "best that was tried)"
    )
