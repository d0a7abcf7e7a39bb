"""Ranks that draw batches by tasks whose requests rounds carry: what the tests of rounds share."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.rounds.rounds import RequestRecord, Rounds, serve_rounds
from executor.rounds.traffic import Traffic
from executor.state.context import GroupHandle
from simgnn.graph.csr import CSR
from simgnn.partition.local.serving import Serving
from simgnn.sampling.draw.seeds import batch_seed
from simgnn.sampling.tasks.batch import BatchTasks, TaskBatch
from simgnn.sampling.tasks.pool import TaskPool
from simgnn.sampling.tasks.requests import Request
from tests.sampling.sampling_graphs import hubs, owners
from tests.sampling.task_worlds import World, delayed

FANOUTS = (4, 3)
WIDTH = 3


@dataclass(frozen=True)
class Case:
    """A run of ranks on ``hosts``: number of batches of each rank, chunk, threads, negatives, bytes of a round."""

    hosts: tuple[int, ...]
    batches: tuple[int, ...]
    chunk: int = 7
    threads: int = 2
    negatives: int = 0
    round_bytes: int = 4 << 20
    seeds: int = 20

    @property
    def csr(self) -> CSR:
        return hubs()

    @property
    def features(self) -> NDArray[np.float32]:
        return np.random.default_rng(7).standard_normal((self.csr.rows, WIDTH), dtype=np.float32)

    @property
    def host_of(self) -> NDArray[np.int64]:
        """Host of each vertex."""
        return np.array(self.hosts)[owners(self.csr.rows, len(self.hosts))]

    @property
    def world(self) -> World:
        owner = owners(self.csr.rows, len(self.hosts))
        return World.of(self.csr, owner, Serving(self.hosts), self.features, FANOUTS)

    def given(self, rank: int) -> list[tuple[NDArray[np.int64], int]]:
        """(Seeds, batch seed) of each batch of a rank."""
        own = np.flatnonzero(self.host_of == self.hosts[rank])
        draw = np.random.default_rng(rank)
        return [
            (draw.permutation(own)[: self.seeds], batch_seed(3, rank, 0, number))
            for number in range(self.batches[rank])
        ]


def group_of(ranks: int, timeout_s: float) -> GroupHandle:
    """A group of all ranks; every rank makes it."""
    made = dist.new_group(list(range(ranks)), backend="gloo", timeout=timedelta(seconds=timeout_s))
    return GroupHandle(made, tuple(range(ranks)), torch.device("cpu"))


@contextmanager
def tapped() -> Iterator[Counter[tuple[str, int]]]:
    """Bytes handed to ``torch.distributed``, by (function, other rank; -1: all)."""
    counted: Counter[tuple[str, int]] = Counter()
    sends, exchanges = dist.isend, dist.all_to_all_single

    def send(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        counted["isend", options["group_dst"]] += tensor.numel() * tensor.element_size()
        return sends(tensor, *arguments, **options)

    def exchange(out: torch.Tensor, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        counted["all_to_all_single", -1] += tensor.numel() * tensor.element_size()
        return exchanges(out, tensor, *arguments, **options)

    dist.isend, dist.all_to_all_single = send, exchange  # type: ignore[assignment]
    try:
        yield counted
    finally:
        dist.isend, dist.all_to_all_single = sends, exchanges


class Broken(BatchTasks):
    """A batch whose task ``at`` raises, or ends the process."""

    at: int
    dies = False

    def run(self, number: int) -> list[Request]:
        if number == self.at:
            if self.dies:
                os._exit(0)
            raise ValueError("a task that fails on purpose")
        return super().run(number)


class Draws:
    """A pool and the rounds of one rank."""

    def __init__(self, case: Case, rank: int, timeout_s: float = 60.0, group: GroupHandle | None = None) -> None:
        world = case.world
        self.answered: list[RequestRecord] = []
        group = group or group_of(len(case.hosts), timeout_s)
        self.rounds = Rounds(group, rank, world.server(rank), self._answer, case.round_bytes, self.answered.append)
        self.pool = TaskPool(case.threads, send=self.rounds.submit, failed=self.rounds.fail)
        self.maker = world.maker(rank, case.csr, case.chunk, case.negatives)
        self.thread = serve_rounds(self.rounds, self.pool.fail)

    def _answer(self, ticket: Any, reply: Any) -> None:
        self.pool.answer(ticket, reply)

    def draw(self, given: Sequence[tuple[NDArray[np.int64], int]], in_flight: int = 3) -> list[TaskBatch]:
        """Draw all batches, then take part in rounds until the others have theirs."""
        found = []
        for number, (seeds, seed) in enumerate(given):
            self.pool.launch(number, delayed(self.maker, seeds, seed))
            if number >= in_flight:
                found.append(self.pool.take(number - in_flight, 60))
        found += [self.pool.take(number, 60) for number in range(len(found), len(given))]
        self.rounds.finish()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.pool.close()
        return found

    @property
    def traffic(self) -> Traffic:
        return self.rounds.traffic


def leave(folder: str, rank: int, result: Any) -> None:
    """End the process at once, without the barrier of ranks that all live."""
    torch.save(result, Path(folder) / f"result-{rank}.pt")
    time.sleep(0.1)
    os._exit(0)
