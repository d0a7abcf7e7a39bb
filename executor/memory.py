"""Peak memory of this process, measured: the high-water mark after warm-up, less what the idle process held."""

import ctypes
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


@dataclass
class PeakMemory:
    """``baseline``: bytes resident before anything was loaded. ``method`` tells how the peak was taken."""

    device: torch.device
    baseline: int = 0
    method: str = ""

    @classmethod
    def begin(cls, device: torch.device) -> "PeakMemory":
        """Note the idle process."""
        baseline = 0 if device.type == "cuda" else (_status("VmRSS") or _usage())
        return cls(device, baseline, "")

    def reset(self) -> None:
        """Forget the peak so far (set-up and warm-up)."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.method = "caching allocator, after warm-up"
            return
        try:
            CLEAR.write_text("5")
            self.method = "VmHWM after warm-up, less the idle process"
        except OSError:
            self.method = "ru_maxrss of the whole run (the high-water mark cannot be reset here), less the idle process"

    def peak_bytes(self) -> int:
        """Peak so far, at least 0."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        reset = self.method.startswith("VmHWM")
        peak = (_status("VmHWM") if reset else None) or _usage()
        return max(0, peak - self.baseline)


def release_free_memory() -> None:
    """Give freed memory of the set-up back to the system, so that it is not taken for memory of training.

    glibc only; elsewhere nothing happens.
    """
    if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


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
