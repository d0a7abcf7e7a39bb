"""The ranks that measure: joining their process group, and starting them where torchrun has not."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from executor.kernels.balance import threads_per_rank

TIMEOUT = timedelta(seconds=120)
POLL_S = 0.05
GRACE_S = 5.0
"""How long ranks may take to end, all together, before they are killed."""


@dataclass(frozen=True)
class World:
    """One rank's view of its group. ``same_host``: all ranks share one monotonic clock. ``hosts`` [P]: name of each
    rank's host; empty: all are on one."""

    rank: int
    ranks: int
    device: torch.device
    backend: str
    threads: int
    same_host: bool
    hosts: tuple[str, ...] = ()

    def on_one_host(self, ranks: Iterable[int]) -> int:
        """The most of these ranks that one host has."""
        return max(Counter(self.hosts[rank] if self.hosts else "" for rank in ranks).values(), default=0)

    def synchronize(self) -> None:
        """Wait until the device has finished what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait until every rank is here and its device is idle."""
        self.synchronize()
        if self.ranks > 1:
            dist.barrier()
            self.synchronize()

    def agree(self, value: bool) -> bool:
        """Rank 0's answer, on every rank."""
        flag = torch.tensor([int(value)], device=self.device)
        if self.ranks > 1:
            dist.broadcast(flag, src=0)
        return bool(flag.item())

    def gather(self, value: Any) -> list[Any]:
        """The plain JSON-like value of every rank, on every rank."""
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values


def join(backend: str = "auto") -> World:
    """Join the group that the environment describes (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``)."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() > 0 else "gloo"
    if backend == "nccl":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    threads = threads_per_rank(int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    torch.set_num_threads(threads)
    dist.init_process_group(backend, timeout=TIMEOUT)
    hosts: list[Any] = [None] * ranks
    dist.all_gather_object(hosts, socket.gethostname())
    return World(rank, ranks, device, backend, threads, len(set(hosts)) == 1, tuple(hosts))


def free_port() -> int:
    """A TCP port that is free on the loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(ranks: int, arguments: Sequence[str]) -> int:
    """Start ``python -m executor.microbench ARGUMENTS`` once a rank on this host; the first failing exit status, or 0.

    When a rank fails or this process is interrupted, the others are ended.
    """
    threads = str(threads_per_rank(ranks))
    shared = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
    }
    if sys.platform == "linux":
        shared.setdefault("GLOO_SOCKET_IFNAME", "lo")  # as runs on one host do
    command = [sys.executable, "-m", "executor.microbench", *arguments]
    running: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, _interrupted)  # so that the ranks are ended below
    try:
        for rank in range(ranks):
            running.append(subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        while True:
            states = [process.poll() for process in running]
            failed = [state for state in states if state]
            if failed:
                return failed[0]
            if all(state == 0 for state in states):
                return 0
            time.sleep(POLL_S)
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        limit = time.monotonic() + GRACE_S  # for all of them together
        for process in running:
            try:
                process.wait(timeout=max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _interrupted(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
