"""A small presampled run on several hosts, and a slow reading of what its batches pull: sets and lists, no NumPy."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import presample
from simgnn.sampling.draw.sampler import Sampler
from tests.sampling.sampling_graphs import hubs, owners

EPOCHS = 3
SOURCE = "s"


@dataclass(frozen=True)
class Case:
    """Batches of ``plan`` in ``folder``, rank r on host ``hosts[r]``; with ``whole_run`` hot rows are of all epochs."""

    plan: SamplingPlan
    hosts: tuple[int, ...]
    folder: Path
    whole_run: bool = False

    @property
    def rank_hosts(self) -> np.ndarray:
        return np.array(self.hosts, np.int64)

    def inputs(self, epoch: int, worker: int) -> list[list[int]]:
        """Input vertices of every batch, sampled anew: nothing is read from disk."""
        sampler, turn = Sampler(self.plan.csr, self.plan.fanouts), self.plan.epoch(worker, epoch)
        return [turn.sample(number, sampler).vertices.tolist() for number in range(len(turn))]

    def far(self, worker: int, vertex: int) -> bool:
        """Whether a vertex lies on another host than a worker."""
        return self.hosts[int(self.plan.owner[vertex])] != self.hosts[worker]

    def sender(self, worker: int, vertex: int) -> int:
        """The rank that sends it: of the owner's host the one at the worker's place, counted around."""
        host = self.hosts[int(self.plan.owner[vertex])]
        members = [rank for rank, other in enumerate(self.hosts) if other == host]
        place = [rank for rank, other in enumerate(self.hosts) if other == self.hosts[worker]].index(worker)
        return members[place % len(members)]

    def counts(self, epoch: int, worker: int) -> Counter[int]:
        """In how many batches each vertex of another host is needed."""
        counted = range(EPOCHS) if self.whole_run else [epoch]
        return Counter(v for e in counted for batch in self.inputs(e, worker) for v in batch if self.far(worker, v))

    def hot(self, epoch: int, worker: int, hot_rows: int) -> list[int]:
        """The vertices in the cache, by slot."""
        counts = self.counts(epoch, worker)
        return sorted(counts, key=lambda vertex: (-counts[vertex], vertex))[:hot_rows]

    def pulls(self, epoch: int, worker: int, hot_rows: int) -> list[list[int]]:
        """The vertices that each batch pulls, in order of the rank that sends them, then of the batch."""
        held = set(self.hot(epoch, worker, hot_rows))
        lists = [[v for v in batch if self.far(worker, v) and v not in held] for batch in self.inputs(epoch, worker)]
        return [sorted(missing, key=lambda vertex: self.sender(worker, vertex)) for missing in lists]


def make_case(folder: Path, hosts: tuple[int, ...]) -> Case:
    """Workers of 45, 0, 23 and a few more training vertices, batches of 8."""
    train = np.random.default_rng(3).permutation(300)[:90]
    cuts = np.linspace(68, 90, len(hosts) - 2).astype(int)[:-1].tolist()
    workers = tuple(np.sort(part).astype(np.int64) for part in np.split(train, [45, 45, *cuts]))
    plan = SamplingPlan(hubs(), owners(300, len(hosts)), workers, (6, 4), 8, 5)
    presample(plan, SOURCE, folder, EPOCHS, threads=1)
    return Case(plan, hosts, folder)
