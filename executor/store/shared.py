"""Rows in POSIX shared memory: one rank makes them, other ranks of its host use them in place.

The memory has a name in ``/dev/shm`` only until all of them have mapped it; from then on the kernel frees it when the
last one ends, however it ends. Before that the resource tracker of the creating process removes the name should that
process die. Nobody else tells a tracker of it: ``multiprocessing.shared_memory`` does when it merely attaches (before
Python 3.13), and then the tracker of whoever ends first takes the name from the others.
"""

import errno
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from executor.state.context import GroupHandle
from executor.world.clock import gather_words
from simgnn.errors import BackendError
from simgnn.units import format_quantity

FOLDER = Path("/dev/shm")
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.ENOMEM, errno.EDQUOT})
FAILED = "failed: "
TRACKED = "shared_memory"


@contextmanager
def named_segment(nbytes: int) -> Iterator[str]:
    """New shared memory of ``nbytes`` zeros (a byte at least); its name, which lasts as long as the block.

    All its pages are there: a system that promised more than it has would end a rank by SIGBUS later. Raises
    :class:`BackendError` where /dev/shm is missing or too small.
    """
    name = f"simgnn-{os.getpid()}-{secrets.token_hex(8)}"
    resource_tracker.register(f"/{name}", TRACKED)
    try:
        _allocate(FOLDER / name, max(1, nbytes))
        yield name
    finally:
        (FOLDER / name).unlink(missing_ok=True)
        resource_tracker.unregister(f"/{name}", TRACKED)


def attach(name: str, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """The memory of that name as rows, in place; it stays mapped as long as the tensor is used.

    Raises :class:`BackendError` where this host has no such memory, or it is not as long as the rows.
    """
    nbytes = shape[0] * shape[1] * dtype.itemsize
    try:
        descriptor = os.open(FOLDER / name, os.O_RDWR)
    except OSError as error:
        raise BackendError(
            f"no {FOLDER / name} here ({error.strerror}): ranks of one host must run on one machine and see the same "
            "/dev/shm; give cluster.hosts and cluster.ranks_per_host as they are"
        ) from error
    try:
        found = os.fstat(descriptor).st_size
        if found != max(1, nbytes):
            raise BackendError(f"{FOLDER / name} has {found} bytes, expected {nbytes}: ranks disagree on its rows")
        raw = np.frombuffer(mmap.mmap(descriptor, found), dtype=np.uint8)
    finally:
        os.close(descriptor)
    return torch.from_numpy(raw)[:nbytes].view(dtype).view(shape)


def shared_rows(
    shape: tuple[int, int], dtype: torch.dtype, creator: int, fill: Callable[[torch.Tensor], None], group: GroupHandle
) -> torch.Tensor:
    """Rows [n, F] that this rank shares with its host. Every member of the group calls it.

    ``creator``: the rank of this host that makes them, and alone calls ``fill`` on them. What fails on one rank fails
    on all: :class:`BackendError`, or on that rank its own error.
    """
    rows: torch.Tensor | None = None
    fault: Exception | None = None
    word, mine = "", creator == rank_of(group)
    with ExitStack() as names:
        try:
            if mine:
                word = names.enter_context(named_segment(shape[0] * shape[1] * dtype.itemsize))
                rows = attach(word, shape, dtype)
                fill(rows)
        except Exception as error:  # agreed on below, then raised
            fault = error
        made = agree(word, fault, group)
        try:
            if not mine:
                rows = attach(made[group.members.index(creator)], shape, dtype)
        except Exception as error:  # agreed on below, then raised
            fault = error
        agree("", fault, group)  # only now may the name go
    assert rows is not None
    return rows


def agree(word: str, fault: Exception | None, group: GroupHandle) -> list[str]:
    """The word of every member; raises where any has failed, so that nobody waits for one that gave up."""
    said = word if fault is None else FAILED + str(fault)
    words = [said] if group.process_group is None else gather_words(said, group.process_group)
    if fault is not None:
        raise fault
    for member, told in zip(group.members, words, strict=True):
        if told.startswith(FAILED):
            raise BackendError(f"rank {member} could not share its rows: {told.removeprefix(FAILED)}")
    return words


def rank_of(group: GroupHandle) -> int:
    """This process's rank in the group's world."""
    return group.members[0] if group.process_group is None else dist.get_rank()


def _allocate(path: Path, nbytes: int) -> None:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError as error:
        raise BackendError(
            f"{FOLDER}: got no shared memory ({error.strerror}); the feature store keeps its rows there, expected a "
            "folder of a Linux system where files can be made"
        ) from error
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        disk = os.statvfs(FOLDER)
        free = disk.f_bavail * disk.f_frsize
        raise BackendError(
            f"{FOLDER}: {format_quantity(free, 'bytes')} free, the rows of this host need "
            f"{format_quantity(nbytes, 'bytes')}; enlarge it (mount -o remount,size=SIZE /dev/shm; docker run "
            "--shm-size SIZE), or use more hosts"
        ) from error
    finally:
        os.close(descriptor)
