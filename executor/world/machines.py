"""Finds which ranks share a machine or a host, and how far each rank's clock is ahead of rank 0's."""

import socket
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = Path("/proc/self/ns/net")
PINGS = 32


def kernel_identity() -> str:
    """Return the name of the running kernel: processes on one kernel share a monotonic clock, in any namespace."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


def host_identity() -> str:
    """Return the name of this host: the running kernel and its network. Network namespaces of one kernel are separate
    hosts, since only links join them; containers that share the machine's network are one host."""
    try:
        return f"{kernel_identity()}/{NETWORK.stat().st_ino}"
    except OSError:
        return kernel_identity()


def host_numbers(identities: Sequence[str]) -> tuple[int, ...]:
    """Return the number of each rank's host, where hosts are numbered in the order of their first ranks."""
    order = list(dict.fromkeys(identities))
    return tuple(order.index(identity) for identity in identities)


def one_machine_notes(declared: Sequence[int], found: Sequence[int]) -> list[str]:
    """Return a warning for each host that ran several hosts of the experiment: messages between these used
    loopback. ``declared`` [P]: host of each rank in the experiment; ``found`` [P]: in the run."""
    hosts, notes = len(set(declared)), []
    for machine in dict.fromkeys(found):
        together = sorted({int(host) for host, at in zip(declared, found, strict=True) if at == machine})
        if len(together) < 2:
            continue
        which = f"all {hosts} hosts" if len(together) == hosts else f"hosts {', '.join(map(str, together))} of {hosts}"
        notes.append(
            f"one machine stood for {which}: what they sent one another never left it (loopback), so bytes are those "
            f"of {hosts} hosts and times are not; for links of a stated rate: python -m executor testbed"
        )
    return notes


def gather_words(word: str, group: dist.ProcessGroup | None) -> list[str]:
    """Return a short text of every rank, on every rank (ASCII, at most 128 characters)."""
    raw = word.encode("ascii", "replace")[:128].ljust(128)
    mine = torch.tensor(list(raw), dtype=torch.uint8)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return [bytes(part.tolist()).decode().strip() for part in every]


def clock_offset(kernels: list[str], group: dist.ProcessGroup | None) -> float:
    """Measure how many seconds this rank's monotonic clock is ahead of rank 0's; 0.0 on the same machine.

    It assumes that a ping is answered in the middle of its round trip, and uses the fastest of 32 pings (Cristian's
    method); half of that round trip bounds the error. Ranks take turns, so that pings do not disturb one another.
    """
    rank, best = dist.get_rank(group), (float("inf"), 0.0)
    stamp = torch.zeros(1, dtype=torch.float64)
    for other, kernel in enumerate(kernels):
        if kernel == kernels[0] or rank not in (0, other):
            continue
        for _ in range(PINGS):
            if rank == 0:
                dist.recv(stamp, src=other, group=group)
                stamp[0] = time.perf_counter()
                dist.send(stamp, dst=other, group=group)
            else:
                sent = time.perf_counter()
                dist.send(stamp, dst=0, group=group)
                dist.recv(stamp, src=0, group=group)
                returned = time.perf_counter()
                best = min(best, (returned - sent, (sent + returned) / 2 - float(stamp[0])))
    return best[1]
