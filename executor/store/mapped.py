"""Buffers of a program in mappings of one rank, which count apart from the memory that it allocates."""

from collections.abc import Sequence, Set
from dataclasses import replace

import torch

from executor.state.buffers import TORCH_TYPES
from executor.state.context import GroupHandle
from executor.state.task import Task
from executor.store.shared import agree, check_room, mapped_copy, own_rows
from simgnn.errors import BackendError
from simgnn.program.program import Program


def check_host_room(program: Program, rank: int, group: GroupHandle) -> None:
    """Raise :class:`ShortOfMemoryError` if the shared memory of this rank's host is smaller than the buffers that lie
    there. Every rank of ``group`` calls it, before any makes its own."""
    here = [other for other, host in enumerate(program.hosts) if host == program.hosts[rank]]
    fault = None
    try:
        check_room(mapped_bytes(program, here), program.hosts[rank], len(here))
    except BackendError as error:  # agreed on below, then raised
        fault = error
    agree("", fault, group)


def mapped_bytes(program: Program, ranks: Sequence[int]) -> int:
    """Return the bytes of buffers in the shared memory of a host with some ranks: their own, and once what they
    share."""
    total = 0
    for buffer in program.buffers.values():
        rows = program.sizes.most(buffer.rows)[list(ranks)] * (buffer.row_bytes * buffer.depth)
        total += {"host-mapped": int(rows.sum()), "host-shared": int(rows[0])}.get(buffer.space, 0)
    return total


def in_mappings(program: Program, task: Task) -> Task:
    """Return the task with features and labels in mappings, if the program has them there."""
    features, labels = (
        mapped_copy(value) if program.buffers[name].space == "host-mapped" else value
        for name, value in (("features", task.features), ("labels", task.labels))
    )
    return replace(task, features=features, labels=labels)


def mapped_buffers(program: Program, rank: int, constants: Set[str]) -> dict[str, list[torch.Tensor]]:
    """Return the memory of all copies of the program's buffers in mappings of this rank, but of ``constants``."""
    found = {}
    for name, buffer in sorted(program.buffers.items()):
        if buffer.space == "host-mapped" and name not in constants:
            shape = (int(program.sizes.most(buffer.rows)[rank]), buffer.width)
            found[name] = [own_rows(shape, TORCH_TYPES[buffer.dtype]) for _ in range(buffer.depth)]
    return found
