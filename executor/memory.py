"""Peak memory of this process, measured, less what the idle process held: of what is allocated and what is resident.

On a GPU the caching allocator counts what it has handed out and what it keeps. glibc does not, and with its blocks kept
for reuse (:mod:`executor.allocator`) the resident memory depends on how they happen to lie: the same run took 116 to
179 MiB. So until the first training epoch has ended, which no time is taken from, every large block is mapped by itself
and returned at once: the high-water mark of that epoch is the peak of allocated memory. That of all later epochs, with
blocks kept, is the resident peak, the allocator's slack included.
"""

import ctypes
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from executor.allocator import LARGEST_THRESHOLD, M_MMAP_THRESHOLD, AllocatorSettings

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
PIECE = 2**30
"""Bytes of one block when memory is touched ahead: below what is always mapped."""
MAPPED = 64 * 2**10
"""Bytes from which a block is mapped by itself while allocated memory is measured."""


@dataclass
class PeakMemory:
    """``baseline``: bytes resident before anything was loaded. ``method`` tells how the peak was taken.

    ``allocated``: peak of the first epoch with large blocks mapped; None: not possible here, or not yet known.
    """

    device: torch.device
    baseline: int = 0
    method: str = ""
    allocated: int | None = None

    @classmethod
    def begin(cls, device: torch.device, settings: AllocatorSettings) -> "PeakMemory":
        """Note the idle process, without memory that it has freed but kept; from now on map large blocks, where the
        allocator can be told so and back. Blocks of the set-up would else leave holes that count as allocated."""
        release_free_memory()
        mapped = device.type == "cpu" and settings.applied and settings.mmap_threshold is not None
        mapped = mapped and _clear() and _mapped_from(MAPPED)
        baseline = 0 if device.type == "cuda" else (_status("VmRSS") or _usage())
        return cls(device, baseline, "", 0 if mapped else None)

    def start(self) -> None:
        """Before the first epoch: forget the set-up."""
        release_free_memory()
        if self.allocated is not None:
            _clear()

    def reset(self) -> None:
        """After the first epoch: note its peak, keep blocks again, and forget the peak so far."""
        if self.allocated is not None:
            peak = _status("VmHWM") or 0
            self.allocated = max(0, peak - self.baseline)
            _mapped_from(LARGEST_THRESHOLD)
            release_free_memory()
            _touch(peak - (_status("VmRSS") or peak))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.method = "caching allocator, after warm-up"
            return
        if _clear():
            self.method = "VmHWM after warm-up, less the idle process"
        else:
            self.method = "ru_maxrss of the whole run (the high-water mark cannot be reset here), less the idle process"

    def peak_bytes(self) -> int:
        """Peak of allocated memory; where that is not known, of resident memory; at least 0."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return self.allocated or self.resident_bytes()

    def peak_method(self) -> str:
        """How :meth:`peak_bytes` was taken."""
        if self.allocated:
            return "VmHWM of the first epoch with large blocks mapped, less the idle process"
        return self.method

    def resident_bytes(self) -> int:
        """Peak of resident memory since the first epoch, what the allocator keeps included; at least 0."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_reserved(self.device))
        reset = self.method.startswith("VmHWM")
        peak = (_status("VmHWM") if reset else None) or _usage()
        return max(0, peak - self.baseline)


def release_free_memory() -> None:
    """Give freed memory of the set-up back to the system, so that it is not taken for memory of training.

    glibc only; elsewhere nothing happens.
    """
    if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


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


def _mapped_from(nbytes: int) -> bool:
    """From how many bytes on a block is mapped by itself and returned when it is freed."""
    return bool(ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, nbytes) == 1)


def _status(field: str) -> int | None:
    try:
        for line in STATUS.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _usage() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
