"""Memory over time, from buffer lifetimes.

Persistent buffers, rings (``depth`` copies) and buffers that carry rows from one turn to a later one are permanent. Any
other buffer lives from the issue of the first op that touches it in a turn to the end of the last one, once for each
turn in flight. Memory released at an instant is free before memory is allocated at that instant. A buffer that all
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
from simgnn.program.program import Program, same_as_constants
from simgnn.program.sizes import IntArray
from simgnn.record.rundir import MEMORY_SCHEMA
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.memory.caching_allocator import reserved_bytes
from simgnn.sim.memory.spans import (
    Spans,
    always_held,
    buffer_spans,
    handed_over,
    most_bytes,
    scratch_bytes,
    scratch_spans,
)
from simgnn.sim.network.flow_table import Bools, Ints


@dataclass(frozen=True)
class OutOfMemory:
    """Where memory runs out first: the op that allocates, its epoch, and the bytes needed in all and available.

    ``place``: the memory that runs out, in words; ``tick``: the instant at which it does.
    """

    rank: int
    op: str
    epoch: int
    needed_bytes: int
    available_bytes: int
    place: str
    tick: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} runs out of memory at op '{self.op}' of epoch {self.epoch + 1}: {self.place} would hold "
            f"{self.needed_bytes:,} bytes of buffers and has {self.available_bytes:,}"
        )


@dataclass(frozen=True, eq=False)
class Memory:
    """Peaks in bytes, int64 [P]: of each rank's buffers on its ``device``, in ``host`` memory, and of ``both`` at once.

    ``devices``: peak of all ranks on a device at once, by its name; a CPU's memory includes host buffers of its ranks.
    ``gpu``: ranks whose device has its own memory beside the host's, bool [P]. ``kept``: bytes of permanent buffers, by
    space and name, int64 [P] each; ``spans``: all other buffers; ``on_device`` bool [n]: which spans are on a device.
    """

    device: IntArray
    host: IntArray
    both: IntArray
    devices: Mapping[str, int]
    gpu: Bools
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
        for on_device, spaces in ((True, ("device",)), (False, ("host", "host-shared"))):
            always = always_bytes(self.kept, *spaces)
            part = np.where(self.on_device[span] == on_device, change, 0)
            levels.append(np.concatenate((always, np.cumsum(part) + always[here])))
        order = np.lexsort((np.arange(len(rank)), seconds, rank))
        rank, seconds = rank[order], seconds[order]
        last = np.ones(len(rank), dtype=np.bool_)
        last[:-1] = (rank[1:] != rank[:-1]) | (seconds[1:] != seconds[:-1])
        columns = (rank[last], seconds[last], *(level[order][last] for level in levels))
        return pa.table([pa.array(column) for column in columns], schema=MEMORY_SCHEMA)

    @cached_property
    def reserved(self) -> IntArray | None:
        """Device memory that PyTorch's caching allocator reserves by the end of the simulated epochs, int64 [P], see
        :mod:`simgnn.sim.memory.caching_allocator`; 0 for ranks without a GPU, None where no rank has one."""
        if not self.gpu.any():
            return None
        here, span, _, change = self.spans.where(self.on_device).changes(np.arange(len(self.gpu)))
        bounds = np.searchsorted(here, np.arange(len(self.gpu) + 1))
        found = np.zeros(len(self.gpu), dtype=np.int64)
        for rank in np.flatnonzero(self.gpu).tolist():
            mine = slice(bounds[rank], bounds[rank + 1])
            always = [int(nbytes[rank]) for nbytes in self.kept["device"].values()]
            found[rank] = reserved_bytes(always, span[mine].tolist(), change[mine].tolist())
        return found


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
    kept = {space: {"": np.zeros(program.ranks, dtype=np.int64)} for space in ("device", "host", "host-shared")}
    for name in sorted(always_held(program) - same_as_constants(program)):
        space = program.buffers[name].space
        there = first if space == "host-shared" else ~on_cpu if name in handed else 1
        kept[space][name] = most_bytes(sizes, name) * there
    kept["device"] |= {name: scratch_bytes(sizes, one, 0, 0, name) for name, one in program.kept.items()}
    on_device, in_host = always_bytes(kept, "device"), always_bytes(kept, "host", "host-shared")
    lies_there = spans.in_space(program, "device")
    devices = list(dict.fromkeys(machine.devices))
    place = np.array([devices.index(name) for name in machine.devices])
    limits = np.array([machine.memory_bytes(machine.devices.index(name)) for name in devices])
    held = spans.where(lies_there | on_cpu[spans.rank])
    total = np.bincount(place, on_device + in_host * on_cpu, minlength=len(devices)).astype(np.int64)
    # what lies in host memory beside GPUs; a CPU's device memory is its host's
    beside = spans.where(~lies_there & ~on_cpu[spans.rank])
    hosts = np.array(machine.hosts)
    in_hosts = np.bincount(hosts, in_host * ~on_cpu).astype(np.int64)
    host_limits = np.array([machine.host_memory_bytes(host) for host in range(len(in_hosts))])
    overflows = [
        _overflow(held, program, total, place, limits, "its device"),
        _overflow(beside, program, in_hosts, hosts, host_limits, "its host's memory"),
    ]
    return Memory(
        device=spans.where(lies_there).peaks(on_device, ranks),
        host=spans.where(~lies_there).peaks(in_host, ranks),
        both=spans.peaks(on_device + in_host, ranks),
        devices=dict(zip(devices, held.peaks(total, place).tolist(), strict=True)),
        gpu=~on_cpu,
        out_of_memory=min((found for found in overflows if found is not None), key=lambda one: one.tick, default=None),
        kept=kept,
        spans=spans,
        on_device=lies_there,
    )


def _overflow(
    spans: Spans, program: Program, always: Ints, place: Ints, limits: NDArray[np.float64], what: str
) -> OutOfMemory | None:
    """Find the first instant at which a memory exceeds its limit. ``place`` [P]: that of each rank; ``what``: name."""
    full = np.flatnonzero(always > limits)
    if len(full):
        rank = int(np.flatnonzero(place == full[0])[0])
        opening = program.templates[program.calendar.template(0)].ops
        name = opening[0].name if opening else ""
        return OutOfMemory(rank, name, 0, int(always[full[0]]), int(limits[full[0]]), what, 0)
    here, span, tick, level = spans.levels(place)
    over = np.flatnonzero(always[here] + level > limits[here])
    if not len(over):
        return None
    worst = over[np.lexsort((here[over], tick[over]))[0]]
    found, at = span[worst], here[worst]
    needed, limit = int(always[at] + level[worst]), int(limits[at])
    op = program.ops[int(spans.op_id[found])][1].name
    return OutOfMemory(int(spans.rank[found]), op, int(spans.epoch[found]), needed, limit, what, int(tick[worst]))
