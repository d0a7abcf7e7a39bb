"""Carries requests of tasks between ranks in numbered rounds, and serves those of other ranks."""

import heapq
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from executor.handlers.wire import all_to_all
from executor.recording.failure import LostPeerError, raise_at
from executor.rounds.messages import (
    DONE,
    FAILED,
    GROUP,
    ROWS,
    SAMPLES,
    Asked,
    Served,
    failed_header,
    failed_task,
    lengths,
)
from executor.rounds.traffic import PayloadClass, Traffic, tensor_bytes
from executor.state.context import GroupHandle
from simgnn.sampling.tasks.pool import Ticket
from simgnn.sampling.tasks.requests import Reply, SampleReply, SampleRequest, Server

IDLE_S = 0.001
"""Pause after a round in which no rank asked for anything, unless a request comes before."""
ROUND_BYTES = 4 << 20


class RequestRecord(NamedTuple):
    """A request that was answered in round ``number`` (from 1): it lasted from ``ticket.asked_s`` to ``ended_s``."""

    ticket: Ticket
    number: int
    ended_s: float


class Rounds:
    """Rounds of one rank. ``group``: all P ranks, on the CPU, for rounds alone; ``answer``: takes the reply to a
    request; ``round_bytes``: a round takes requests, the most urgent first, while their replies have at most so many
    bytes, and one at least; ``record``: called for each reply, before ``answer``.

    Any thread calls :meth:`submit`; one thread calls :meth:`run`, on every rank. Source: ByteGNN (Zheng et al., PVLDB
    15(6), 2022, section 5.2); that rounds are numbered is our decision, since collectives need an order.
    """

    def __init__(
        self,
        group: GroupHandle,
        rank: int,
        server: Server,
        answer: Callable[[Ticket, Reply], None],
        round_bytes: int = ROUND_BYTES,
        record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        assert group.members == tuple(range(len(group.members))), "the group of rounds is all ranks"
        self.traffic = Traffic()
        self._group, self._rank, self._server, self._answer = group, rank, server, answer
        self._round_bytes, self._record = round_bytes, record
        self._changed = threading.Condition()
        self._queue: list[tuple[object, int, Ticket]] = []
        self._count, self._done = 0, False
        self._failed: BaseException | None = None

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue requests for the next rounds."""
        with self._changed:
            assert not self._done, "no task asks for anything once all batches are made"
            for ticket in tickets:
                self._count += 1
                heapq.heappush(self._queue, (ticket.key, self._count, ticket))
            self._changed.notify()

    def finish(self) -> None:
        """Say that no request follows. The rank serves others until all have said so."""
        with self._changed:
            self._done = True
            self._changed.notify()

    def fail(self, error: BaseException) -> None:
        """Say that tasks of this rank have failed: other ranks learn it in the next round, and end."""
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify()

    def run(self) -> None:
        """Take part in rounds until every rank has finished. Raises
        :class:`~executor.recording.failure.LostPeerError` when another rank fails, dies or is silent for longer than
        the group's timeout."""
        more = True
        while more:
            tickets: list[Ticket] = []
            try:
                tickets = self._take()
                more = self._round(tickets)
            except BaseException as error:
                first = next((f", for batch {t.ready.batch}, task '{t.ready.task}'" for t in tickets), "")
                raise_at(f"rank {self._rank}, round {self.traffic.rounds}{first}", error)

    def _take(self) -> list[Ticket]:
        """Take the most urgent requests."""
        with self._changed:
            taken: list[Ticket] = []
            size = 0
            while self._queue and self._failed is None:
                size += self._queue[0][2].request.reply_bytes
                if taken and size > self._round_bytes:
                    break
                taken.append(heapq.heappop(self._queue)[2])
            return taken

    def _round(self, tickets: list[Ticket]) -> bool:
        """Make one round; return whether another follows."""
        ranks = len(self._group.members)
        with self._changed:
            flags, mine = DONE * (self._done and not self._queue), self._failed
        asked = Asked.of(tickets, ranks, flags)
        header = self._headers(asked.header if mine is None else failed_header(ranks, mine))
        told = int(np.bitwise_or.reduce(header[:, 2]))
        if mine is not None:
            return False
        if told & FAILED:
            rank = int(np.flatnonzero(header[:, 2] & FAILED)[0])
            raise LostPeerError(
                f"rank {self._rank}, round {self.traffic.rounds}: rank {rank} failed{failed_task(header[rank])}"
            )
        if told & (SAMPLES | ROWS):
            self._exchange(asked, header, told)
        else:
            self.traffic.empty += 1
        if (header[:, 2] & DONE).all():
            return False
        if not told & (SAMPLES | ROWS):
            with self._changed:
                if not self._queue and self._failed is None:
                    self._changed.wait(IDLE_S)
        return True

    def _headers(self, mine: np.ndarray) -> np.ndarray:
        """Exchange headers, int64 [P, 4] each."""
        self.traffic.rounds += 1
        if self._group.process_group is None:
            return mine
        wire = torch.from_numpy(mine)
        out = torch.empty_like(wire)
        dist.all_to_all_single(out, wire, group=self._group.process_group)
        self.traffic.control_bytes += tensor_bytes(wire[0]) * (len(mine) - 1)
        found: np.ndarray = out.numpy()
        return found

    def _exchange(self, asked: Asked, header: np.ndarray, told: int) -> None:
        """Send requests, serve those of others, send replies, and hand over what came back."""
        group = self._group
        mine, others = asked.header, header
        words = all_to_all(torch.from_numpy(asked.words), asked.lengths, lengths(others), group)
        served = Served.of(words.numpy(), others, self._server, bool(told & ROWS))
        degrees = neighbours = rows = torch.empty(0, dtype=torch.int64)
        if told & SAMPLES:
            degrees = all_to_all(served.degrees, others[:, 0].tolist(), mine[:, 0].tolist(), group)
            sums = [int(part.sum()) for part in torch.split(degrees, mine[:, 0].tolist())]
            neighbours = all_to_all(served.neighbours, served.lengths, sums, group)
        if served.rows is not None:
            rows = all_to_all(served.rows, others[:, 1].tolist(), mine[:, 1].tolist(), group)
        self._count_sent(asked, others, served)
        self._hand_over(asked, degrees.numpy(), neighbours.numpy(), rows.numpy())

    def _hand_over(self, asked: Asked, degrees: np.ndarray, neighbours: np.ndarray, rows: np.ndarray) -> None:
        first = row = found = 0
        answers: list[tuple[Ticket, Reply]] = []
        for tickets in asked.samples:
            for ticket in tickets:
                end = first + len(ticket.request.lids)
                kept = degrees[first:end]
                last = found + int(kept.sum(dtype=np.int64))
                answers.append((ticket, SampleReply(kept, neighbours[found:last])))
                first, found = end, last
        for tickets in asked.rows:
            for ticket in tickets:
                end = row + len(ticket.request.lids)
                answers.append((ticket, rows[row:end]))
                row = end
        ended_s = perf_counter()
        for ticket, reply in sorted(answers, key=lambda answer: answer[0].key):
            self._count_batch(ticket, reply)
            if self._record is not None:
                self._record(RequestRecord(ticket, self.traffic.rounds, ended_s))
            self._answer(ticket, reply)

    def _count_batch(self, ticket: Ticket, reply: Reply) -> None:
        batch, request, counted = ticket.ready.batch, ticket.request, self.traffic.of_batch
        if isinstance(request, SampleRequest):
            assert isinstance(reply, SampleReply)
            counted[batch, request.server, "sample_groups"] += 8 * GROUP
            counted[batch, request.server, "sample_ids"] += request.lids.nbytes
            counted[batch, request.server, "sample_neighbours"] += reply.degrees.nbytes + reply.neighbours.nbytes
        else:
            assert isinstance(reply, np.ndarray)
            counted[batch, request.server, "row_ids"] += request.lids.nbytes
            counted[batch, request.server, "rows"] += reply.nbytes

    def _count_sent(self, asked: Asked, others: np.ndarray, served: Served) -> None:
        """Count what left this rank, from the tensors that were sent."""
        word = asked.words.itemsize
        width = tensor_bytes(served.rows[:1]) if served.rows is not None and len(served.rows) else 0
        for peer in self._group.members:
            sizes: dict[PayloadClass, int] = {
                "sample_groups": word * GROUP * int(asked.header[peer, 3]),
                "sample_ids": word * int(asked.header[peer, 0]),
                "row_ids": word * int(asked.header[peer, 1]),
                "sample_neighbours": served.degrees.element_size() * int(others[peer, 0])
                + served.neighbours.element_size() * served.lengths[peer],
                "rows": width * int(others[peer, 1]),
            }
            for kind, size in sizes.items():
                if size and peer != self._rank:
                    self.traffic.sent[peer, kind] += size


def serve_rounds(rounds: Rounds, failed: Callable[[BaseException], None]) -> threading.Thread:
    """Start the thread that runs ``rounds``; ``failed`` takes the error that ends it early."""

    def run() -> None:
        try:
            rounds.run()
        except BaseException as error:
            failed(error)

    thread = threading.Thread(target=run, name="rounds", daemon=True)
    thread.start()
    return thread
