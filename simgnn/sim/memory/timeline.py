"""Memory over time, from buffer lifetimes.

Persistent buffers, rings (``depth`` copies) and buffers that carry rows from one turn to a later one are permanent. Any
other buffer lives from the issue of the first op that touches it in a turn to the end of the last one, once for each
turn in flight. Memory released at an instant is free before memory is allocated at that instant. Memory of a GPU is
full when PyTorch's allocator can take no more of it (:mod:`simgnn.sim.memory.caching_allocator`); any other memory
when the buffers that lie there exceed it. A buffer that all
ranks of a host share counts once, for the host's first rank. On a CPU, a buffer handed from host to device has one
copy. Row counts that no activity holds count as their upper bound. Scratch memory of running ops (``scratch``) and
memory that ranks fill once and hold to the end (:attr:`Program.kept`) are added.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.hardware.price.machine import Machine
from simgnn.program.program import Program, always_held, handed_over, same_as_constants
from simgnn.program.sizes import IntArray
from simgnn.record.memory import MemoryPeak
from simgnn.record.rundir import MEMORY_SCHEMA
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.memory.caching_allocator import reserve
from simgnn.sim.memory.spans import (
    Spans,
    buffer_spans,
    most_bytes,
    scratch_bytes,
    scratch_spans,
)
from simgnn.sim.memory.usage import Usage
from simgnn.sim.network.flow_table import Bools, Ints
from simgnn.units import readable_bytes

HOST_SPACES = "host", "host-mapped", "host-shared"
"""Spaces of buffers in the memory of hosts."""


@dataclass(frozen=True)
class OutOfMemory:
    """Where memory runs out first: the op that allocates, its epoch, and the bytes needed in all and available.

    ``place``: the memory that runs out, in words; ``tick``: the instant at which it does. ``held_bytes``: the part of
    the needed bytes that buffers hold; PyTorch's allocator keeps the rest, in blocks that are too small.
    """

    rank: int
    op: str
    epoch: int
    needed_bytes: int
    available_bytes: int
    place: str
    tick: int
    held_bytes: int

    def __str__(self) -> str:
        rest = ""
        if self.held_bytes < self.needed_bytes:
            rest = f", of which buffers hold {readable_bytes(self.held_bytes)} and PyTorch's allocator keeps the rest"
        return (
            f"rank {self.rank} runs out of memory at op '{self.op}' of epoch {self.epoch + 1}: {self.place} would hold "
            f"{readable_bytes(self.needed_bytes)}{rest}, and has {readable_bytes(self.available_bytes)}"
        )


@dataclass(frozen=True, eq=False)
class Memory:
    """Peaks in bytes, int64 [P]: of each rank's buffers on its ``device``, in ``host`` memory, and of ``both`` at once.
    ``own``: of what its device holds, which on a CPU is all but memory that ranks share and mappings; ``shared``: of
    these two, the former on the first rank of its host.

    ``devices``: peak of all ranks on a device at once, by its name; a CPU's memory includes host buffers of its ranks.
    ``gpu``: ranks whose device has its own memory beside the host's, bool [P]. ``reserved`` int64 [P]: memory that
    PyTorch's allocator takes from the device (0 for ranks without a GPU), None where no rank has a GPU. ``peaks``: all
    of this for each memory, with its capacity. ``kept``: bytes of permanent buffers, by space and name, int64 [P] each;
    ``spans``: all other buffers; ``on_device`` bool [n]: which spans are on a device.
    """

    device: IntArray
    host: IntArray
    both: IntArray
    own: IntArray
    shared: IntArray
    devices: Mapping[str, int]
    gpu: Bools
    reserved: IntArray | None
    peaks: tuple[MemoryPeak, ...]
    out_of_memory: OutOfMemory | None
    kept: Mapping[str, Mapping[str, IntArray]]
    spans: Spans
    on_device: Bools

    @cached_property
    def timeline(self) -> pa.Table:
        """Bytes that each rank holds after each change in the simulated epochs, a table of ``MEMORY_SCHEMA``."""
        ranks = np.arange(len(self.device))
        here, span, tick, change = self.spans.changes(ranks)
        rank = np.concatenate((ranks, here)).astype(np.int32)
        seconds = np.concatenate((np.zeros(len(ranks)), tick / PICOSECONDS))
        levels = []
        for on_device, spaces in ((True, ("device",)), (False, HOST_SPACES)):
            always = always_bytes(self.kept, *spaces)
            part = np.where(self.on_device[span] == on_device, change, 0)
            levels.append(np.concatenate((always, np.cumsum(part) + always[here])))
        order = np.lexsort((np.arange(len(rank)), seconds, rank))
        rank, seconds = rank[order], seconds[order]
        last = np.ones(len(rank), dtype=np.bool_)
        last[:-1] = (rank[1:] != rank[:-1]) | (seconds[1:] != seconds[:-1])
        columns = (rank[last], seconds[last], *(level[order][last] for level in levels))
        return pa.table([pa.array(column) for column in columns], schema=MEMORY_SCHEMA)


def always_bytes(kept: Mapping[str, Mapping[str, IntArray]], *spaces: str) -> IntArray:
    """Bytes of permanent buffers in some spaces, int64 [P]; ``kept`` as in :class:`Memory`."""
    return np.asarray(np.sum([nbytes for space in spaces for nbytes in kept[space].values()], axis=0), dtype=np.int64)


def track_memory(program: Program, sizes: Sizes, machine: Machine, ticks: Mapping[str, Ints]) -> Memory:
    """Compute the memory of a run from when its ops were issued and ended, ``ticks`` (columns of the recorder)."""
    ranks = np.arange(program.ranks)
    # a buffer that a host's ranks share counts with the first of them
    first = np.array([program.hosts.index(host) for host in program.hosts]) == ranks
    on_cpu = np.array([machine.device(rank).kind == "cpu" for rank in range(program.ranks)])
    handed = handed_over(program)
    spans = buffer_spans(program, sizes, ticks)
    spans = spans.joined(scratch_spans(program, sizes, ticks, len(spans.names)))
    spans = spans.where(first[spans.rank] | ~spans.in_space(program, "host-shared"))
    spans = spans.where(~(on_cpu[spans.rank] & spans.named(handed)))
    kept: dict[str, dict[str, IntArray]]
    kept = {space: {"": np.zeros(program.ranks, dtype=np.int64)} for space in ("device", *HOST_SPACES)}
    for name in sorted(always_held(program) - same_as_constants(program)):
        space = program.buffers[name].space
        there = first if space == "host-shared" else ~on_cpu if name in handed else 1
        kept[space][name] = most_bytes(sizes, name) * there
    kept["device"] |= {name: scratch_bytes(sizes, one, 0, 0, name) for name, one in program.kept.items()}
    on_device, in_host = always_bytes(kept, "device"), always_bytes(kept, *HOST_SPACES)
    lies_there, is_shared = spans.in_space(program, "device"), spans.in_space(program, "host-shared")
    beside_device = always_bytes(kept, "host") * on_cpu
    devices = list(dict.fromkeys(machine.devices))
    place = np.array([devices.index(name) for name in machine.devices])
    limits = np.array([machine.memory_bytes(machine.devices.index(name)) for name in devices])
    held = spans.where(lies_there | on_cpu[spans.rank])
    on_devices = Usage(held, on_device + in_host * on_cpu, place, limits, "device", tuple(devices))
    # what lies in host memory beside GPUs; a CPU's device memory is its host's
    beside = spans.where(~lies_there & ~on_cpu[spans.rank])
    hosts = np.array(machine.hosts)
    host_limits = np.array([machine.host_memory_bytes(host) for host in range(int(hosts.max()) + 1)])
    names = tuple(name for name, _ in machine.profile.topology.host_names())
    in_hosts = Usage(beside, in_host * ~on_cpu, hosts, host_limits, "host", names)
    reserved, full = _reserve(spans.where(lies_there), program, kept["device"], ~on_cpu, limits[place])
    overflows = (_overflow(on_devices, program, ~on_cpu), _overflow(in_hosts, program, np.zeros_like(on_cpu)), full)
    peaks = (*on_devices.peaks(reserved), *(peak for peak in in_hosts.peaks(None) if peak.peak_bytes))
    return Memory(
        device=spans.where(lies_there).peaks(on_device, ranks),
        host=spans.where(~lies_there).peaks(in_host, ranks),
        both=spans.peaks(on_device + in_host, ranks),
        own=held.where(~is_shared[lies_there | on_cpu[spans.rank]]).peaks(on_device + beside_device, ranks),
        shared=spans.where(is_shared).peaks(always_bytes(kept, "host-mapped", "host-shared"), ranks),
        devices=dict(zip(devices, on_devices.totals().tolist(), strict=True)),
        gpu=~on_cpu,
        reserved=reserved,
        peaks=peaks,
        out_of_memory=min((one for one in overflows if one is not None), key=lambda one: one.tick, default=None),
        kept=kept,
        spans=spans,
        on_device=lies_there,
    )


def _reserve(
    spans: Spans, program: Program, kept: Mapping[str, IntArray], gpu: Bools, limits: NDArray[np.float64]
) -> tuple[IntArray | None, OutOfMemory | None]:
    """Replay PyTorch's allocator on each GPU: memory that it takes, int64 [P] (None: there are no GPUs), and where it
    first runs out. ``limits`` [P]: memory of each rank's device. Where that is not enough, the memory that it would
    take from a larger device counts."""
    if not gpu.any():
        return None, None
    here, span, _, change = spans.changes(np.arange(len(gpu)))
    bounds = np.searchsorted(here, np.arange(len(gpu) + 1))
    reserved, failures = np.zeros(len(gpu), dtype=np.int64), []
    for rank in np.flatnonzero(gpu).tolist():
        mine = slice(bounds[rank], bounds[rank + 1])
        always = [int(nbytes[rank]) for nbytes in kept.values()]
        requests = always, span[mine].tolist(), change[mine].tolist()
        found = reserve(*requests, capacity=limits[rank])
        reserved[rank] = found.peak_bytes
        if found.failed is None:
            continue
        reserved[rank] = reserve(*requests).peak_bytes
        name, epoch, tick = _first_op(program), 0, 0
        if found.failed >= 0:
            at = span[mine][found.failed]
            name = program.ops[int(spans.op_id[at])][1].name
            epoch, tick = int(spans.epoch[at]), int(spans.begin[at])
        needed, capacity = found.needed_bytes, int(limits[rank])
        failures.append(OutOfMemory(rank, name, epoch, needed, capacity, "its GPU", tick, found.held_bytes))
    return reserved, min(failures, key=lambda one: one.tick, default=None)


def _overflow(usage: Usage, program: Program, apart: Bools) -> OutOfMemory | None:
    """Find the first instant at which buffers exceed the memory where they lie; memory of ranks ``apart`` [P] is not
    looked at."""
    what = {"device": "its host", "host": "its host's memory"}[usage.kind]
    limits = usage.limits.copy()
    limits[usage.place[apart]] = np.inf
    always, spans = usage.always_in(), usage.spans
    full = np.flatnonzero(always > limits)
    if len(full):
        rank, needed = int(np.flatnonzero(usage.place == full[0])[0]), int(always[full[0]])
        return OutOfMemory(rank, _first_op(program), 0, needed, int(limits[full[0]]), what, 0, needed)
    here, span, tick, level = spans.levels(usage.place)
    over = np.flatnonzero(always[here] + level > limits[here])
    if not len(over):
        return None
    worst = over[np.lexsort((here[over], tick[over]))[0]]
    found, at = span[worst], here[worst]
    needed, limit = int(always[at] + level[worst]), int(limits[at])
    op = program.ops[int(spans.op_id[found])][1].name
    return OutOfMemory(
        int(spans.rank[found]), op, int(spans.epoch[found]), needed, limit, what, int(tick[worst]), needed
    )


def _first_op(program: Program) -> str:
    opening = program.templates[program.calendar.template(0)].ops
    return opening[0].name if opening else ""
