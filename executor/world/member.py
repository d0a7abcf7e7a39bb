"""Joins a process to a run as one rank, with its device and process groups."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.state.context import GroupHandle
from executor.world.environment import meeting_place
from executor.world.machines import clock_offset, gather_words, host_identity, host_numbers, kernel_identity
from simgnn.errors import BackendError, ConfigError
from simgnn.program.program import Program

WAKING = 8
"""Concurrent calls that wake the threads of a group. Gloo has two: while one waits, the other works."""


@dataclass(frozen=True)
class World:
    """One rank's view of the run.

    ``control``: a Gloo group of all ranks for the driver's own messages, never timed. ``near`` [P]: whether each rank
    is on rank 0's machine; ``here``: the ranks on this rank's machine. ``hosts`` [P]: number of each rank's host in
    this run. ``clock_offset_s``: this rank's clock minus rank 0's.
    """

    rank: int
    ranks: int
    device: torch.device
    backend: str
    control: dist.ProcessGroup
    near: tuple[bool, ...]
    here: tuple[int, ...]
    hosts: tuple[int, ...]
    clock_offset_s: float

    def barrier(self) -> None:
        dist.barrier(group=self.control)

    def sum(self, values: list[float]) -> list[float]:
        """Sum lists of numbers over ranks, element by element; exact for integers below 2**53."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return [float(value) for value in total.tolist()]

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the numbers of each rank, on every rank."""
        mine = torch.tensor(values, dtype=torch.float64)
        every = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(every, mine, group=self.control)
        return [part.tolist() for part in every]

    def broadcast(self, value: float) -> float:
        """Return rank 0's number, on every rank."""
        number = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(number, src=0, group=self.control)
        return float(number[0])

    def fetch_file(self, path: Path, source: int) -> None:
        """Copy a file of rank ``source`` to the same path on rank 0; called by these two ranks only."""
        if self.rank == source:
            raw = torch.frombuffer(bytearray(path.read_bytes()) or bytearray(1), dtype=torch.uint8)
            dist.send(torch.tensor([path.stat().st_size]), dst=0, group=self.control)
            dist.send(raw, dst=0, group=self.control)
        elif self.rank == 0:
            size = torch.zeros(1, dtype=torch.int64)
            dist.recv(size, src=source, group=self.control)
            raw = torch.empty(max(1, int(size)), dtype=torch.uint8)
            dist.recv(raw, src=source, group=self.control)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw.numpy().tobytes()[: int(size)])


def join(ranks: int, device: str, timeout: float) -> World:
    """Join the run that the environment variables describe. ``device``: auto, cpu or cuda.

    Raises :class:`ConfigError` for another number of processes, :class:`BackendError` for too few GPUs.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world != ranks:
        raise ConfigError(
            f"the run was prepared for {ranks} ranks, {world} were started; "
            f"start {ranks} (torchrun --nproc-per-node), or prepare it again with --ranks {world}"
        )
    place = choose_device(device, local_rank, local_ranks)
    backend = "nccl" if place.type == "cuda" else "gloo"
    if place.type == "cuda":
        torch.cuda.set_device(place)
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=meeting_place(), rank=rank, world_size=world, timeout=limit)
    assert dist.group.WORLD is not None
    control = dist.group.WORLD
    kernels = gather_words(kernel_identity(), control)
    near = tuple(kernel == kernels[0] for kernel in kernels)
    here = tuple(other for other, kernel in enumerate(kernels) if kernel == kernels[rank])
    hosts = host_numbers(gather_words(host_identity(), control))
    return World(rank, world, place, backend, control, near, here, hosts, clock_offset(kernels, control))


def choose_device(wanted: str, local_rank: int, local_ranks: int) -> torch.device:
    """Return the device of a rank. ``auto``: a GPU for each rank where the host has enough of them, else the CPU."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {wanted}: expected auto, cpu or cuda")
    if wanted == "cpu":
        return torch.device("cpu")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus >= local_ranks:
        return torch.device("cuda", local_rank)
    if wanted == "cuda":
        raise BackendError(
            f"--device cuda: {local_ranks} ranks on this host, but {gpus} GPUs; NCCL needs one per rank: "
            "use fewer ranks, or --device cpu"
        )
    if gpus and local_rank == 0:
        print(f"{local_ranks} ranks on this host, but {gpus} GPUs: training on the CPU", file=sys.stderr, flush=True)
    return torch.device("cpu")


def group_ids(program: Program, members: str) -> NDArray[np.int64]:
    """Return the number of each rank's group among groups with these ``members``, int64 [P]."""
    if members == "world":
        return np.zeros(program.ranks, dtype=np.int64)
    return np.asarray(program.hosts, dtype=np.int64) if members == "host" else program.sizes.columns[members]


def process_groups(program: Program, world: World, timeout: float) -> dict[str, GroupHandle]:
    """Make one process group for each group of the program; every rank makes all of them, in one order."""
    result: dict[str, GroupHandle] = {}
    limit = timedelta(seconds=timeout)
    for name in sorted(program.groups):
        group = program.groups[name]
        backend = world.backend if group.backend == "default" else group.backend
        if backend == "nccl" and world.device.type != "cuda":
            raise BackendError(f"group '{name}' uses NCCL, but this run is on the CPU; set backend = 'gloo'")
        device = world.device if backend == "nccl" else torch.device("cpu")
        ids = group_ids(program, group.members)
        for number in sorted({int(i) for i in ids}):
            members = tuple(rank for rank in range(program.ranks) if ids[rank] == number)
            made = dist.new_group(list(members), backend=backend, timeout=limit)
            if world.rank in members:
                result[name] = GroupHandle(made, members, device)
    return result


def wake_groups(groups: Mapping[str, GroupHandle]) -> None:
    """Let the library threads of every group work once: each allocates memory at its first call, and keeps it."""
    for _, group in sorted(groups.items()):
        if group.device.type == "cpu" and len(group.members) > 1:
            calls = [dist.all_reduce(torch.zeros(1), group=group.process_group, async_op=True) for _ in range(WAKING)]
            for call in calls:
                call.wait()
