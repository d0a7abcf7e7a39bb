"""The ranks that measure: their process groups, the hosts that they are on, one clock for all."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from executor.state.context import GroupHandle
from executor.world.environment import meeting_place, threads_per_rank, usable_cores
from executor.world.machines import clock_offset, host_identity, host_numbers, kernel_identity

TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True)
class World:
    """One rank's view of all ranks.

    ``threads_of`` [P]: threads that each rank computes with. ``hosts`` [P]: number of each rank's host, in the order of
    their first ranks. ``kernels`` [P]: name of each rank's kernel, whose ranks share one monotonic clock; empty: all
    ranks share one. ``control``: a Gloo group of all ranks, for what is not timed (None: the default group is one).
    """

    rank: int
    ranks: int
    device: torch.device
    backend: str
    threads_of: tuple[int, ...]
    hosts: tuple[int, ...]
    kernels: tuple[str, ...] = ()
    control: dist.ProcessGroup | None = None
    made: dict[tuple[int, ...], GroupHandle | None] = field(default_factory=dict, repr=False)

    @property
    def threads(self) -> int:
        return self.threads_of[self.rank]

    @property
    def host(self) -> int:
        return self.hosts[self.rank]

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(rank for rank, at in enumerate(self.hosts) if at == host) for host in range(max(self.hosts) + 1)
        )

    @property
    def leads(self) -> bool:
        return self.members[self.host][0] == self.rank

    @cached_property
    def works(self) -> bool:
        """Whether this rank's device work is measured: not if ranks of its host would take turns on a core."""
        if self.device.type != "cpu":
            return True
        return self.members[self.host].index(self.rank) < max(1, usable_cores() // self.threads)

    def group(self, ranks: Sequence[int]) -> GroupHandle | None:
        """Return a process group of some ranks on its members, else None. All ranks must call it in the same order."""
        members = tuple(sorted(ranks))
        if members not in self.made:
            group = dist.group.WORLD if len(members) == self.ranks else dist.new_group(list(members), timeout=TIMEOUT)
            handle = GroupHandle(group, members, self.device) if self.rank in members else None
            self.made[members] = handle
        return self.made[members]

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait until every rank is here and its device is idle."""
        self.synchronize()
        if self.ranks > 1:
            dist.barrier()
            self.synchronize()

    def any(self, value: bool) -> bool:
        """Return whether the value is true on any rank; the same answer on every rank."""
        flag = torch.tensor([int(value)], device=self.device)
        if self.ranks > 1:
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def gather(self, value: Any) -> list[Any]:
        """Return the plain JSON-like value of every rank, on every rank."""
        if self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values

    def clock_ahead_s(self) -> float:
        """Measure by how many seconds this rank's clock is ahead of rank 0's now. All ranks call it together."""
        return clock_offset(list(self.kernels), self.control) if len(set(self.kernels)) > 1 else 0.0

    def say(self, text: str) -> None:
        """Print a line for people to stderr, on rank 0 alone."""
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)


def join(backend: str = "auto") -> World:
    """Join the group that the environment describes (``RANK``, ``WORLD_SIZE``, and where the ranks meet)."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    threads = threads_per_rank(None, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    torch.set_num_threads(threads)
    dist.init_process_group(backend, init_method=meeting_place(), rank=rank, world_size=ranks, timeout=TIMEOUT)
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, (threads, host_identity(), kernel_identity()))
    every, identities, kernels = zip(*gathered, strict=True)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT) if backend != "gloo" else None
    return World(rank, ranks, device, backend, every, host_numbers(identities), kernels, control)
