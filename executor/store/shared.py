"""Rows in POSIX shared memory: one rank makes them, other ranks of its host use them in place.

The memory has a name in ``/dev/shm`` only until all ranks have mapped it; from then on the kernel frees it when the
last of them ends. If the creating process dies before, its resource tracker removes the name. Other ranks must not
register the name: ``multiprocessing.shared_memory`` does so when it attaches (before Python 3.13), and the tracker of
the first process to end would remove it for all.
"""

import errno
import json
import mmap
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.recording.failure import ShortOfMemoryError
from executor.state.context import GroupHandle
from simgnn.errors import BackendError
from simgnn.units import format_quantity

FOLDER = Path("/dev/shm")
SEGMENTS = f"{FOLDER}/simgnn-"
"""How the paths of shared memory begin, also in the list of a process's mappings."""
OWN_SEGMENTS = f"{SEGMENTS}rank-"
"""How the paths of mappings begin that are one rank's own."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.ENOMEM, errno.EDQUOT})
TRACKED = "shared_memory"
ALIGNED_TO = 64
Opened = TypeVar("Opened")


@contextmanager
def named_segment(nbytes: int, begin: str = SEGMENTS) -> Iterator[str]:
    """Create shared memory of ``nbytes`` zeros (at least one) and yield its name, which is removed when the block ends.
    All pages are allocated at once; otherwise a host short of memory would end a rank by SIGBUS later. Raises
    :class:`BackendError` if /dev/shm is missing or too small."""
    name = Path(f"{begin}{os.getpid()}-{secrets.token_hex(8)}").name
    resource_tracker.register(f"/{name}", TRACKED)
    try:
        _allocate(FOLDER / name, max(1, nbytes))
        yield name
    finally:
        (FOLDER / name).unlink(missing_ok=True)
        resource_tracker.unregister(f"/{name}", TRACKED)


def attach(name: str, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Map shared memory as rows, in place; it stays mapped as long as the tensor is used. Raises :class:`BackendError`
    if this host has no memory of that name, or if its size differs."""
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


def own_rows(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return rows [n, F] of zeros in a mapping of this process alone, which counts apart from the memory that it
    allocates. Raises :class:`BackendError` as :func:`named_segment` does."""
    with named_segment(shape[0] * shape[1] * dtype.itemsize, OWN_SEGMENTS) as name:
        return attach(name, shape, dtype)


def mapped_copy(value: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, dense or sparse CSR, that lies in mappings of this process alone."""
    if value.layout is torch.sparse_csr:
        starts, columns, values = map(mapped_copy, (value.crow_indices(), value.col_indices(), value.values()))
        return torch.sparse_csr_tensor(starts, columns, values, size=value.shape, check_invariants=False)
    rows = own_rows((max(1, value.numel()), 1), value.dtype)[: value.numel()].view(value.shape)
    return rows.copy_(value)


def check_room(nbytes: int, host: int, ranks: int) -> None:
    """Raise :class:`ShortOfMemoryError` unless ``nbytes`` more fit into this host's shared memory, for the rows of
    ``ranks`` ranks of ``host``."""
    if not nbytes:
        return
    try:
        disk = os.statvfs(FOLDER)
    except OSError as error:
        raise BackendError(f"{FOLDER}: no shared memory here ({error.strerror}), where rows of hosts lie") from error
    free = disk.f_bavail * disk.f_frsize
    if nbytes > free:
        raise ShortOfMemoryError(
            f"{FOLDER}: host {host} has {free:,} B free, the rows of its {ranks} ranks need {nbytes:,} B; enlarge it "
            "(mount -o remount,size=SIZE /dev/shm; docker run --shm-size SIZE), or use more hosts"
        )


def shared_rows(
    shape: tuple[int, int], dtype: torch.dtype, creator: int, fill: Callable[[torch.Tensor], None], group: GroupHandle
) -> torch.Tensor:
    """Return rows [n, F] that all ranks of this host share. Every member of the group calls it. ``creator``: the rank
    of this host that creates the rows, and alone calls ``fill`` on them. A failure on one rank raises on all: the
    original error there, :class:`BackendError` on other ranks."""
    nbytes = shape[0] * shape[1] * dtype.itemsize
    return shared_segment(nbytes, lambda name: attach(name, shape, dtype), creator, fill, group)


def shared_segment(
    nbytes: int, open_it: Callable[[str], Opened], creator: int, fill: Callable[[Opened], None], group: GroupHandle
) -> Opened:
    """Return what ``open_it`` makes of the name of shared memory, whose bytes the ``creator`` of this host makes and
    alone calls ``fill`` on; see :func:`shared_rows`."""
    found: list[Opened] = []
    fault: Exception | None = None
    word, mine = "", creator == rank_of(group)
    with ExitStack() as names:
        try:
            if mine:
                word = names.enter_context(named_segment(nbytes))
                found.append(open_it(word))
                fill(found[0])
        except Exception as error:  # agreed on below, then raised
            fault = error
        made = agree(word, fault, group)
        try:
            if not mine:
                found.append(open_it(made[group.members.index(creator)]))
        except Exception as error:  # agreed on below, then raised
            fault = error
        agree("", fault, group)  # only now may the name go
    return found[0]


def shared_arrays(
    make: Callable[[], Mapping[str, NDArray[Any]]], creator: int, group: GroupHandle
) -> dict[str, NDArray[Any]]:
    """Return named arrays that all ranks of this host share, read-only, in one piece of memory. Every member of the
    group calls it. ``creator``: the rank of this host that alone calls ``make``. Failures as in :func:`shared_rows`."""
    arrays: Mapping[str, NDArray[Any]] = {}
    fault: Exception | None = None
    word = ""
    if creator == rank_of(group):
        try:
            arrays = make()
            word = json.dumps([[name, array.dtype.str, array.shape] for name, array in arrays.items()])
        except Exception as error:  # agreed on below, then raised
            fault = error
    places: dict[str, tuple[slice, np.dtype[Any], list[int]]] = {}
    end = 0
    for name, kind, shape in json.loads(agree(word, fault, group)[group.members.index(creator)]):
        begin = -(-end // ALIGNED_TO) * ALIGNED_TO
        end = begin + np.dtype(kind).itemsize * int(np.prod(shape))
        places[name] = slice(begin, end), np.dtype(kind), shape

    def views(rows: torch.Tensor) -> dict[str, NDArray[Any]]:
        raw = rows.view(-1).numpy()
        return {name: raw[part].view(dtype).reshape(shape) for name, (part, dtype, shape) in places.items()}

    def fill(rows: torch.Tensor) -> None:
        for name, view in views(rows).items():
            view[...] = arrays[name]

    found = views(shared_rows((end, 1), torch.uint8, creator, fill, group))
    for array in found.values():
        array.flags.writeable = False  # all ranks of the host read them
    return found


def agree(word: str, fault: Exception | None, group: GroupHandle) -> list[str]:
    """Return the word of every member. Raises on all members if one has failed, so that no member waits forever."""
    replies: list[Any] = [(word, None)]
    if group.process_group is not None:
        replies *= len(group.members)
        dist.all_gather_object(replies, (word, None if fault is None else str(fault)), group=group.process_group)
    if fault is not None:
        raise fault
    for member, (_, failure) in zip(group.members, replies, strict=True):
        if failure is not None:
            raise BackendError(f"rank {member} could not share its rows: {failure}")
    return [text for text, _ in replies]


def rank_of(group: GroupHandle) -> int:
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
