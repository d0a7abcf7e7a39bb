"""Measures the peaks of allocated and of resident memory of this process, minus the memory of the idle process.

On a GPU the caching allocator counts the memory that it has handed out and that it keeps. glibc does not, and with
freed blocks kept (:mod:`executor.memory.allocator`) the resident memory depends on how blocks happen to be placed: the
same run took 116 to 179 MiB. So until the first training epoch has ended, whose times do not count, each block of a
page or more is mapped separately and returned at once. The high-water mark of that epoch is the peak of allocated
memory. The first evaluation, which may hold more, is measured in the same way, and the higher mark counts.

Pages of files do not count, since ranks share them and the system may drop them: code that is read on its first call,
memory-mapped batches and lists. Their number grows, also after the peak of an epoch, so they are subtracted from the
mark whenever an op ends, and so are pages of memory that the ranks of a host share. That memory is told apart, on the
first rank of its host, by the size of its mappings, all pages of which are allocated at once. The resident peak is that
of all other epochs, with freed blocks kept, and includes the allocator's slack and pages of files.

The idle process has loaded its libraries and its program, made its process groups and threads, run every kernel once,
and has room for blocks of less than a page. So objects that are not arrays of a page or more do not count, as on a GPU,
whose allocator holds only tensors.
"""

import ctypes
import gc
import resource
import sys
import threading
from collections.abc import Callable, Mapping
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
    PAGE,
    TOP_PAD,
    AllocatorSettings,
    Room,
    c_library,
    fill_holes,
    make_room,
    release_free_memory,
)
from executor.recording.failure import ShortOfMemoryError
from executor.store.shared import OWN_SEGMENTS
from executor.store.shared import SEGMENTS as SHARED

if TYPE_CHECKING:
    from executor.rank.lanes import Record
    from executor.state.buffers import Now
    from executor.state.context import Sent

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
MAPS = Path("/proc/self/maps")
PIECE = 2**30
"""Bytes of one block when memory is touched in advance: blocks above 2 GiB are always mapped."""
DRIFT = 32 * PAGE * (psutil.cpu_count() or 1)
"""Bytes by which Linux's high-water mark may rise though memory does not: each CPU counts up to 32 pages by itself."""
SLACK = 0.5
"""Memory beyond its peak that a process touches in advance, as a share of that peak. Small blocks split free ones, so
the heap grows during training until large ones fit again: by 0.2 to 0.9 of the peak in runs of vanilla, cdfgnn and
cagnet on ogbn_arxiv. In a virtual machine whose host takes free pages back, an op that first touches 87 MiB takes 0.04
to 0.9 s longer, at a random time on a random rank."""
MEASURING = {M_MMAP_THRESHOLD: PAGE, M_TRIM_THRESHOLD: PAGE, M_TOP_PAD: 0}
RUNNING = {M_MMAP_THRESHOLD: LARGEST_THRESHOLD, M_TRIM_THRESHOLD: LARGEST_THRESHOLD, M_TOP_PAD: TOP_PAD}


@dataclass
class PeakMemory:
    """Measures the peak memory of a run; the session calls its methods in the order :meth:`begin`, :meth:`start`,
    :meth:`note` after each op, :meth:`reset` after the first epoch, and :meth:`start_again` and :meth:`reset` around
    the first evaluation.

    ``baseline``: resident bytes of the idle process; ``idle``: ``baseline`` without pages of files and of shared
    memory; ``idle_shared``: the latter. ``method``: how the resident peak was measured. ``allocated``: peak with blocks
    of a page or more mapped, without shared memory; None where it is not possible or not yet known. ``resident``:
    highest resident memory before :meth:`start_again`. ``measures``: whether such blocks are mapped now, so that
    :meth:`note` counts. ``_mark``: high-water mark at the last note. ``holes``: addresses of blocks that fill holes in
    the heap. ``room``: room for small objects. ``processes``: how many share this machine's free memory. ``first``:
    whether this rank is the first of its host, on which shared memory counts.
    """

    device: torch.device
    baseline: int = 0
    idle: int = 0
    idle_shared: int = 0
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
        """Measure the idle process. From then on map each block of a page or more, if the allocator can switch this on
        and off; otherwise blocks of the set-up would leave holes that count as allocated."""
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
        shared = _status("RssShmem") or 0
        idle = baseline - (_status("RssFile") or 0) - shared
        return cls(device, baseline, idle, shared, "", 0 if mapped else None, holes, room, processes, first)

    def start(self) -> None:
        """Start measuring before the first epoch, so that the set-up does not count."""
        gc.collect()
        if self.allocated is not None:
            self.holes += fill_holes()
            self._restart_mark()
            self.measures = True

    def note(self) -> None:
        """Raise ``allocated`` to the peak so far; called from any thread when an op has ended.

        If the high-water mark has not risen since the last call, the system may have dropped pages of files that it
        includes, so subtracting the current pages would leave too much. Then the memory resident now counts.
        """
        with self._lock:
            status = _statuses()
            mark = status.get("VmHWM", 0)
            risen = mark > self._mark + DRIFT
            most, self._mark = (mark, mark) if risen else (status.get("VmRSS", 0), self._mark)
            self.allocated = max(self.allocated or 0, most - self._elsewhere(status))

    def _restart_mark(self) -> None:
        _clear()
        self._mark = 0

    def _elsewhere(self, status: Mapping[str, int]) -> int:
        """Return resident bytes that do not count: the idle process, pages of files, memory that ranks share."""
        return status.get("RssFile", 0) + status.get("RssShmem", 0) + self.idle

    def start_again(self) -> bool:
        """Map large blocks again before the first evaluation, until :meth:`reset`; return whether that is possible."""
        if self.allocated is None:
            return False
        gc.collect()
        self.resident = max(self.resident, _status("VmHWM") or 0)
        _set(MEASURING)
        release_free_memory()
        self.holes += fill_holes()
        self._restart_mark()
        self.measures = True
        return True

    def reset(self) -> None:
        """Record the peak of the first epoch, keep freed blocks again with memory for the peak and :data:`SLACK`, and
        restart the resident peak. Ranks take different times for it."""
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
        """Free the memory that measuring used; call it after the peaks were read."""
        self._free_holes()
        self.room.close()

    def _free_holes(self) -> None:
        if self.holes:  # other C libraries than glibc have none, nor the functions of c_library()
            library = c_library()
            while self.holes:
                library.free(self.holes.pop())

    def peak_bytes(self) -> int:
        """Return the peak of allocated memory, or of resident memory where the former is unknown; at least 0. On a CPU
        memory that the ranks of a host share counts on the first of them."""
        if self.device.type == "cuda" or not self.allocated:
            return self.device_bytes()
        return self.allocated + self.shared_bytes()

    def device_bytes(self) -> int:
        """Return the part of :meth:`peak_bytes` that the device of this rank holds: all but memory that ranks share,
        where the two can be told apart."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return self.allocated or self.resident_bytes()

    def shared_bytes(self) -> int:
        """Return the bytes of this rank's own mappings; on the first rank of its host, also of memory that its ranks
        share."""
        if not self.first:
            return _mapped(OWN_SEGMENTS)
        return max(_mapped(SHARED), (_status("RssShmem") or 0) - self.idle_shared)

    def over(self, budget: int) -> int:
        """Return the bytes that the device of this rank has held so far, if they are certainly more than ``budget``
        (0: there is none); else 0."""
        on_gpu = self.device.type == "cuda"
        held = self.device_bytes() if on_gpu else self.allocated or 0
        return held if budget and held > budget + (0 if on_gpu else DRIFT) else 0

    def peak_method(self) -> str:
        if self.allocated:
            return (
                "VmHWM of the first epoch and of the first evaluation with blocks of a page or more mapped, room for "
                "smaller ones in the idle process, less pages of files, "
                "the idle process and shared memory; on its host's first rank the latter's size is added"
            )
        return self.method

    def capacity_bytes(self) -> int:
        """Return the memory that this rank's tensors lie in: of its GPU, or of the machine."""
        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return int(psutil.virtual_memory().total)

    def resident_bytes(self) -> int:
        """Return the peak of resident memory since the first epoch, including the allocator's slack; at least 0."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        reset = self.method.startswith("VmHWM")
        peak = (_status("VmHWM") if reset else None) or _usage()
        return max(0, max(peak, self.resident) - self.baseline)


@dataclass(frozen=True)
class NotedMemory:
    """Wraps the ``record`` of a run while memory is measured: notes memory when an op has ended, then records it.
    ``check``: called with the turn and the op after each note."""

    record: "Record"
    memory: PeakMemory
    check: Callable[["Now", int], None]

    def add(self, now: "Now", op_id: int, issued: Any, ended: Any, sent: "Sent", started: Any = None) -> None:
        self.memory.note()
        self.record.add(now, op_id, issued, ended, sent, started)
        self.check(now, op_id)


def check_budget(memory: PeakMemory, budget: int, where: str) -> None:
    """Raise :class:`ShortOfMemoryError` if the device of this rank has held more than its ``budget`` (0: there is none)
    by ``where``, such as "rank 1, epoch 1, op 'forward/loss'"."""
    if held := memory.over(budget):
        raise ShortOfMemoryError(
            f"placement.device_bytes: {where}: the device has held {held:,} B, budget {budget:,} B, though the "
            "prediction fitted into it; allow more, or use more ranks (--ranks) or narrower layers (model.hidden)"
        )


def _clear() -> bool:
    """Reset the high-water mark of resident memory; return whether that is possible."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _touch(nbytes: int) -> None:
    """Grow the heap by ``nbytes`` and free them, so that the next epochs need no new pages."""
    blocks = [torch.ones(min(PIECE, nbytes - start), dtype=torch.uint8) for start in range(0, max(nbytes, 0), PIECE)]
    del blocks


def _set(parameters: Mapping[int, int]) -> bool:
    """Set parameters of glibc's allocator; return whether it accepted all of them."""
    mallopt = ctypes.CDLL(None).mallopt
    done = [mallopt(name, value) == 1 for name, value in parameters.items()]
    return all(done)


def _status(field: str) -> int | None:
    return _statuses().get(field)


def _statuses() -> dict[str, int]:
    """Return bytes of this process's memory by name of the system's field, read at once; empty where there are none."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(":") for line in lines if line.startswith(("Vm", "Rss")))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def _mapped(prefix: str) -> int:
    """Return the bytes of this process's mappings of files whose path begins with ``prefix``; each page once."""
    try:
        lines = MAPS.read_text().splitlines()
    except OSError:
        return 0
    spans = set()
    for fields in (line.split(maxsplit=5) for line in lines):
        if len(fields) == 6 and fields[5].startswith(prefix):
            low, high = (int(end, 16) for end in fields[0].split("-"))
            spans.add((fields[4], int(fields[2], 16), high - low))
    return sum(nbytes for _, _, nbytes in spans)


def _usage() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
