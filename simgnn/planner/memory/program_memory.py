"""Memory of a program without a simulation: peaks of its buffers and scratch, with ops in program order; and whether
devices hold no more than their budget."""

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from simgnn.experiment.schema import Experiment
from simgnn.program.program import (
    Program,
    Template,
    block_owner,
    carried,
    handed_over,
    received_blocks,
    same_as_constants,
)
from simgnn.program.sizes import IntArray


def program_bytes(program: Program, on_cpu: NDArray[np.bool_]) -> IntArray:
    """Return the peak memory of each rank's device in bytes, int64 [P]; that of a CPU holds buffers of the host, too,
    but not memory that the ranks of a host share, nor mappings.

    ``on_cpu`` bool [P]: which ranks have a CPU as their device. Buffers that are not permanent live from the first op
    of a template that touches them to the last one; sizes that vary count as their largest. A simulation, which also
    knows what overlaps, gives a little less or more (tests/experiment/test_fitted_partition.py compares them)."""
    lasting = {buffer.name for buffer in program.buffers.values() if buffer.allocated_once}
    kept = (carried(program) | lasting) - same_as_constants(program)
    handed = handed_over(program)
    size = {name: _bytes(program, name, on_cpu) * (~on_cpu if name in handed else 1) for name in program.buffers}
    always = np.zeros(program.ranks, dtype=np.int64)
    for name in kept:
        always += size[name]
    for scratch in program.kept.values():
        always += scratch.at(program.sizes.most)
    most = always.copy()
    passing = {name for name in program.buffers if name not in kept}
    for template in program.templates.values():
        changes = np.zeros((len(template.ops) + 1, program.ranks), dtype=np.int64)
        for name, (first, last) in _spans(template, passing, received_blocks(program), program.ranks).items():
            ranks = np.flatnonzero(last >= 0)
            changes[first[ranks], ranks] += size[name][ranks]
            changes[last[ranks] + 1, ranks] -= size[name][ranks]
        for op, held in zip(template.ops, np.cumsum(changes, axis=0), strict=False):
            most = np.maximum(most, always + held + op.scratch.at(program.sizes.most))
    return most


def fixed_bytes(program: Program) -> int:
    """Return the bytes of permanent buffers whose size no part of a graph changes: parameters and what goes with
    them."""
    kept, total = carried(program), 0
    for name in kept:
        buffer = program.buffers[name]
        if isinstance(buffer.rows, int):
            total += buffer.rows * buffer.row_bytes * buffer.depth
    return total


def shared_bytes(program: Program) -> IntArray:
    """Return the bytes of buffers that the ranks of a host share, as each rank sees them, int64 [P]."""
    return _in_space(program, "host-shared")


def staged_bytes(program: Program) -> IntArray:
    """Return the bytes of each rank's own buffers in the memory of its host, int64 [P]."""
    return _in_space(program, "host") + _in_space(program, "host-mapped")


def _in_space(program: Program, space: str) -> IntArray:
    total = np.zeros(program.ranks, np.int64)
    for buffer in program.buffers.values():
        if buffer.space == space:
            total += program.sizes.most(buffer.rows) * (buffer.row_bytes * buffer.depth)
    return total


def _bytes(program: Program, name: str, on_cpu: NDArray[np.bool_]) -> IntArray:
    buffer = program.buffers[name]
    if buffer.space in ("host-shared", "host-mapped"):
        return np.zeros(program.ranks, dtype=np.int64)
    found = program.sizes.most(buffer.rows) * (buffer.row_bytes * buffer.depth)
    return found if buffer.space == "device" else np.asarray(found * on_cpu)


def _spans(template: Template, names: Set[str], received: Set[str], ranks: int) -> dict[str, tuple[IntArray, IntArray]]:
    """Return the positions of the first and last op that touch each buffer, int64 [P] each; last -1: on this rank no op
    does. What an op writes last, as copies of others, exists from the next op on. ``received``: see
    :func:`received_blocks`."""
    spans: dict[str, tuple[IntArray, IntArray]] = {}
    for position, op in enumerate(template.ops):
        owner = block_owner(op)
        for access in op.reads + op.writes:
            if access.buffer not in names:
                continue
            begin = position + (access.buffer in op.scratch.copied_last)
            nowhere = np.full(ranks, len(template.ops)), np.full(ranks, -1)
            first, last = spans.setdefault(access.buffer, nowhere)
            here = np.ones(ranks, dtype=np.bool_)
            if owner is not None and access.buffer in received:
                here[owner] = False
            first[here] = np.minimum(first[here], begin)
            last[here] = np.maximum(last[here], position)
    return spans


def shortfall(experiment: Experiment, held: IntArray) -> str:
    """Describe which rank needs more than the budget of the experiment, how much, and what to do; "" if none does or
    there is no budget. ``held`` int64 [P]: the most bytes that each rank's device holds."""
    budget, most = experiment.placement.device_bytes, int(held.max())
    if not budget or most <= budget:
        return ""
    return (
        f"placement.device_bytes: rank {int(held.argmax())} needs {most:,} B on its device, budget {budget:,} B; "
        f"expected at least {most:,} B, more ranks (--ranks) or narrower layers (model.hidden)"
    )
