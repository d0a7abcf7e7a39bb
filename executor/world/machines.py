"""One clock for all ranks: the monotonic clock of rank 0, and each rank's offset to it."""

import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PINGS = 32


def kernel_identity() -> str:
    """Names the running kernel: processes with the same one share a monotonic clock, whatever their namespace says."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


def gather_words(word: str, group: dist.ProcessGroup | None) -> list[str]:
    """A short word of every rank, on every rank (ASCII, at most 128 characters)."""
    raw = word.encode("ascii", "replace")[:128].ljust(128)
    mine = torch.tensor(list(raw), dtype=torch.uint8)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return [bytes(part.tolist()).decode().strip() for part in every]


def clock_offset(kernels: list[str], group: dist.ProcessGroup | None) -> float:
    """Seconds that this rank's monotonic clock is ahead of rank 0's; 0.0 on the same machine.

    Elsewhere the middle of a ping is taken to be the moment of its answer, and the fastest of 32 pings counts
    (Cristian's method); half of that round trip bounds the error. Ranks take turns, so that pings do not disturb one
    another.
    """
    rank, offset = dist.get_rank(group), 0.0
    for other, kernel in enumerate(kernels):
        if kernel == kernels[0]:
            continue
        if rank == 0:
            _answer(other, group)
        elif rank == other:
            offset = _ask(group)
    return offset


def _answer(other: int, group: dist.ProcessGroup | None) -> None:
    for _ in range(PINGS):
        stamp = torch.zeros(1, dtype=torch.float64)
        dist.recv(stamp, src=other, group=group)
        stamp[0] = time.perf_counter()
        dist.send(stamp, dst=other, group=group)


def _ask(group: dist.ProcessGroup | None) -> float:
    best = (float("inf"), 0.0)
    for _ in range(PINGS):
        stamp = torch.zeros(1, dtype=torch.float64)
        sent = time.perf_counter()
        dist.send(stamp, dst=0, group=group)
        dist.recv(stamp, src=0, group=group)
        returned = time.perf_counter()
        best = min(best, (returned - sent, (sent + returned) / 2 - float(stamp[0])))
    return best[1]
