"""What the tests of tasks share: pools of all ranks in one process, a carrier of requests, and delays drawn by seed."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.partition.local.serving import Serving
from simgnn.sampling.draw.parted import HostStructure
from simgnn.sampling.tasks.batch import BatchMaker, BatchTasks, TaskBatch
from simgnn.sampling.tasks.places import Places
from simgnn.sampling.tasks.pool import TaskPool, Ticket
from simgnn.sampling.tasks.requests import Request, RowRequest, SampleRequest, Server
from simgnn.sampling.tasks.rows import RowTable
from simgnn.sampling.tasks.structure import PartStructure

Inbox = SimpleQueue[Sequence[Ticket] | None]


class Delayed(BatchTasks):
    """A batch whose tasks begin late, by a random time."""

    def run(self, number: int) -> list[Request]:
        time.sleep(random.Random(f"{self.batch_seed} {number}").choice((0, 0, 0.0005, 0.002)))
        return super().run(number)


def delayed(maker: BatchMaker, seeds: NDArray[np.int64], batch_seed: int) -> Delayed:
    return Delayed(maker, maker.graph(len(seeds)), np.asarray(seeds), batch_seed)


@dataclass
class World:
    """``held`` and ``rows`` by host, ``serving`` of all ranks, ``fanouts``; requests that were carried, by (rank,
    batch)."""

    held: Sequence[HostStructure]
    rows: Sequence[NDArray[np.float32]]
    serving: Serving
    fanouts: tuple[int, ...]
    carried: dict[tuple[int, int], list[Request]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(
        cls,
        csr: CSR,
        owner: NDArray[np.int32],
        serving: Serving,
        features: NDArray[np.float32],
        fanouts: tuple[int, ...],
    ) -> "World":
        held = [HostStructure.of(csr, owner, serving, host) for host in range(serving.parts)]
        rows = [features[one.part.oid[: one.part.core]] for one in held]
        return cls(held, rows, serving, fanouts)

    def maker(self, rank: int, csr: CSR, chunk: int, negatives: int = 0) -> BatchMaker:
        host = self.serving.hosts[rank]
        held, servers = self.held[host], self.serving.servers[rank]
        structure = PartStructure(held, servers, csr.degrees().astype(np.int32))
        table = RowTable(self.rows[host], Places(host, held.node_map, held.old2new, servers))
        return BatchMaker(structure, self.fanouts, chunk, negatives, table)

    def server(self, rank: int) -> Server:
        host = self.serving.hosts[rank]
        return Server(self.held[host], self.rows[host], self.fanouts)

    def carry(
        self, rank: int, pool: Callable[[], TaskPool], seed: int
    ) -> tuple[threading.Thread, SimpleQueue[Sequence[Ticket] | None]]:
        """Start a thread that answers requests of ``rank`` in an order of its own; None in its queue ends it."""
        inbox: Inbox = SimpleQueue()
        chance = random.Random(seed)

        def serve() -> None:
            late: list[Ticket] = []
            while (tickets := inbox.get()) is not None:
                late += tickets
                while not inbox.empty() and (more := inbox.get()) is not None:
                    late += more
                chance.shuffle(late)
                for ticket in late:
                    request = ticket.request
                    self.carried[rank, ticket.ready.batch].append(request)
                    server = self.server(request.server)
                    if isinstance(request, SampleRequest):
                        pool().answer(ticket, server.sample(request.seed, request.hop, request.lids))
                    else:
                        assert isinstance(request, RowRequest)
                        pool().answer(ticket, server.rows(request.lids))
                late = []

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return thread, inbox

    def draw(
        self,
        rank: int,
        maker: BatchMaker,
        batches: Sequence[tuple[NDArray[np.int64], int]],
        threads: int,
        in_flight: int = 3,
    ) -> list[TaskBatch]:
        """Draw batches of one rank, given as (seeds, batch seed), ``in_flight`` at once, with random delays."""
        pool: TaskPool
        thread, inbox = self.carry(rank, lambda: pool, rank)
        pool = TaskPool(threads, send=inbox.put)
        try:
            found = []
            for number, (seeds, batch_seed) in enumerate(batches):
                pool.launch(number, delayed(maker, seeds, batch_seed))
                if number >= in_flight:
                    found.append(pool.take(number - in_flight, 60))
            return found + [pool.take(number, 60) for number in range(len(found), len(batches))]
        finally:
            pool.close()
            inbox.put(None)
            thread.join()
