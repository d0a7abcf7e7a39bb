"""Peak memory of this process, measured, less what the idle process held: of what is allocated and what is resident.

On a GPU the caching allocator counts what it has handed out and what it keeps. glibc does not, and with its blocks kept
for reuse (:mod:`executor.memory.allocator`) the resident memory depends on how they happen to lie: the same run took
116 to 179 MiB. So until the first training epoch has ended, which no time is taken from, each block of a page or more
is mapped by itself and returned at once: that epoch's high-water mark is the peak of allocated memory; once more for
the first evaluation, which may hold more, and the higher counts. Pages of files are taken out of it, which ranks share
and the system may drop: code that is read on its first call, batches and lists that lie mapped. There are ever more of
them, so whenever an op ends those that are there are taken out of the mark so far: at the end of an epoch there may be
some that came after its peak. Memory that the ranks of a host share counts on its first, likewise. The peak of all
other epochs, with blocks kept, is the resident one, the allocator's slack and pages of files included.

The idle process has loaded its libraries and its program, made its process groups and threads, run every kernel once,
and has room for blocks of less than a page (:mod:`executor.memory.heap`): objects of a run that are no arrays of a page
or more do not count, as on a GPU, whose allocator knows of tensors alone.
"""

import ctypes
import gc
import resource
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from executor.memory.allocator import (
    LARGEST_THRESHOLD,
    M_MMAP_THRESHOLD,
    M_TOP_PAD,
    M_TRIM_THRESHOLD,
    TOP_PAD,
    AllocatorSettings,
)
from executor.memory.heap import PAGE, Room, c_library, fill_holes, make_room, release_free_memory

if TYPE_CHECKING:
    from executor.rank.lanes import Record
    from executor.state.buffers import Now
    from executor.state.context import Sent

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
PIECE = 2**30
"""Bytes of one block when memory is touched ahead: below what is always mapped."""
SLACK = 0.5
"""Pages beyond its peak that a process is given ahead, of that peak. Small blocks split free ones, so the heap grows
while training until the large ones fit again: by 0.2 to 0.9 of the peak in runs of vanilla, cdfgnn and cagnet on
ogbn_arxiv. In a virtual machine whose host takes free pages back, an op that meets 87 MiB of new ones takes 0.04 to
0.9 s longer, when and on which rank is chance."""
MEASURING = {M_MMAP_THRESHOLD: PAGE, M_TRIM_THRESHOLD: PAGE, M_TOP_PAD: 0}
RUNNING = {M_MMAP_THRESHOLD: LARGEST_THRESHOLD, M_TRIM_THRESHOLD: LARGEST_THRESHOLD, M_TOP_PAD: TOP_PAD}


@dataclass
class PeakMemory:
    """``baseline``: bytes resident in the idle process; ``idle``: of them those that are no pages of files.
    ``method`` tells how the peak was taken.

    ``allocated``: peak with blocks of a page or more mapped; None: not possible here, or not yet known. ``resident``:
    highest so far of what was resident before :meth:`start_again`. ``measures``: such blocks are mapped now, so
    :meth:`note` has something to note. ``_mark``: the high-water mark at the last note. ``holes``: addresses of blocks
    that fill the heap's holes meanwhile. ``room``: what keeps room for small objects. ``processes``: how many share
    this machine's free memory. ``first``: this rank is the first of its host, and holds what its ranks share.
    """

    device: torch.device
    baseline: int = 0
    idle: int = 0
    method: str = ""
    allocated: int | None = None
    holes: list[int] = field(default_factory=list)
    room: Room = field(default_factory=Room)
    processes: int = 1
    first: bool = True
    resident: int = 0
    measures: bool = False
    _mark: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begin(
        cls, device: torch.device, settings: AllocatorSettings, processes: int = 1, first: bool = True
    ) -> "PeakMemory":
        """Note the idle process; from now on map blocks of a page or more, where the allocator can be told so and back.
        Those of the set-up would else leave holes that count as allocated."""
        gc.collect()
        mapped = device.type == "cpu" and settings.applied and settings.mmap_threshold is not None
        mapped = mapped and _status("RssFile") is not None and _clear()
        if mapped and not _set(MEASURING):
            _set(RUNNING)
            mapped = False
        room, holes = Room(), list[int]()
        if mapped:
            release_free_memory()
            room, holes = make_room(), fill_holes()
        baseline = _status("VmRSS") or _usage()
        idle = baseline - (_status("RssFile") or 0) - (0 if first else _status("RssShmem") or 0)
        return cls(device, baseline, idle, "", 0 if mapped else None, holes, room, processes, first)

    def start(self) -> None:
        """Before the first epoch: forget the set-up."""
        gc.collect()
        if self.allocated is not None:
            self.holes += fill_holes()
            self._forget()
            self.measures = True

    def note(self) -> None:
        """An op has ended, on any thread: what was allocated at most so far. Others may end meanwhile.

        A mark that has not risen since the last note holds pages of files that were there then and may have left: what
        they leave of it is not allocated. Then what is resident now counts.
        """
        with self._lock:
            status = _statuses()
            mark = status.get("VmHWM", 0)
            most = mark if mark > self._mark else status.get("VmRSS", 0)
            self._mark = mark
            self.allocated = max(self.allocated or 0, most - self._elsewhere(status))

    def _forget(self) -> None:
        """Let the mark rise anew."""
        _clear()
        self._mark = 0

    def _elsewhere(self, status: Mapping[str, int]) -> int:
        """Bytes of what is resident that do not count: the idle process, pages of files, what another rank shares."""
        return status.get("RssFile", 0) + (0 if self.first else status.get("RssShmem", 0)) + self.idle

    def start_again(self) -> bool:
        """Before the first evaluation: map blocks of a page or more again, where that was possible; :meth:`reset` ends
        it."""
        if self.allocated is None:
            return False
        gc.collect()
        self.resident = max(self.resident, _status("VmHWM") or 0)
        _set(MEASURING)
        release_free_memory()
        self.holes += fill_holes()
        self._forget()
        self.measures = True
        return True

    def reset(self) -> None:
        """After the first epoch: note its peak, keep blocks again with pages for it and :data:`SLACK`, and forget
        the peak so far. Ranks take different times to get these pages."""
        if self.allocated is not None:
            self.note()
            self.measures = False
            peak = self.allocated + self._elsewhere(_statuses())
            _set(RUNNING)
            self._free_holes()
            release_free_memory()
            room = psutil.virtual_memory().available // (2 * self.processes)
            _touch(peak - (_status("VmRSS") or peak) + min(int(SLACK * self.allocated), room))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.method = "caching allocator, after warm-up"
            return
        if _clear():
            self.method = "VmHWM after warm-up, less the idle process"
        else:
            self.method = "ru_maxrss of the whole run (the high-water mark cannot be reset here), less the idle process"

    def close(self) -> None:
        """Give back what measuring took, when peaks have been told."""
        self._free_holes()
        self.room.close()

    def _free_holes(self) -> None:
        if self.holes:  # elsewhere than with glibc there are none, nor what c_library() asks for
            library = c_library()
            while self.holes:
                library.free(self.holes.pop())

    def peak_bytes(self) -> int:
        """Peak of allocated memory; where that is not known, of resident memory; at least 0."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return self.allocated or self.resident_bytes()

    def peak_method(self) -> str:
        """How :meth:`peak_bytes` was taken."""
        if self.allocated:
            return (
                "VmHWM of the first epoch and of the first evaluation with blocks of a page or more mapped, room for "
                "smaller ones in the idle process, less pages of files, "
                "the idle process and, but on its host's first rank, shared memory"
            )
        return self.method

    def resident_bytes(self) -> int:
        """Peak of resident memory since the first epoch, what the allocator keeps included; at least 0."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        reset = self.method.startswith("VmHWM")
        peak = (_status("VmHWM") if reset else None) or _usage()
        return max(0, max(peak, self.resident) - self.baseline)


@dataclass(frozen=True)
class NotedMemory:
    """Notes memory whenever an op has ended, then the op: a run's ``record`` while memory is measured."""

    record: "Record"
    memory: PeakMemory

    def add(self, now: "Now", op_id: int, issued: Any, ended: Any, sent: "Sent") -> None:
        """See :class:`executor.rank.interpreter.Record`."""
        self.memory.note()
        self.record.add(now, op_id, issued, ended, sent)


def _clear() -> bool:
    """Reset the high-water mark of resident memory; false where that is not possible."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _touch(nbytes: int) -> None:
    """Let the heap grow by so many bytes and free them: the epochs that follow find their pages there."""
    blocks = [torch.ones(min(PIECE, nbytes - start), dtype=torch.uint8) for start in range(0, max(nbytes, 0), PIECE)]
    del blocks


def _set(parameters: Mapping[int, int]) -> bool:
    """Set parameters of glibc's allocator; whether it took them all."""
    mallopt = ctypes.CDLL(None).mallopt
    taken = [mallopt(name, value) == 1 for name, value in parameters.items()]
    return all(taken)


def _status(field: str) -> int | None:
    return _statuses().get(field)


def _statuses() -> dict[str, int]:
    """Bytes of what the system says of this process's memory, read at once; empty where it says nothing."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.startswith(("Vm", "Rss")))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def _usage() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
