"""A pool of threads that runs tasks of several batches at once: of all that are ready, the first in a given order."""

import heapq
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from simgnn.errors import BackendError
from simgnn.sampling.tasks.batch import BatchTasks, TaskBatch
from simgnn.sampling.tasks.graph import KINDS, Task
from simgnn.sampling.tasks.requests import Reply, Request


class Ready(NamedTuple):
    """A task whose parents have ended. ``batch``: its number in the order of launches; ``number``: of the task in its
    graph; ``cost``: see :meth:`BatchTasks.cost`."""

    batch: int
    cost: float
    number: int
    task: Task


Order = Callable[[Ready], Any]
"""Gives each ready task a key; the smallest runs next."""


def batch_then_cost(ready: Ready) -> tuple[Any, ...]:
    """Order of ByteGNN (section 5.2): old batches first, then light tasks; ties by kind, branch, hop and chunk."""
    task = ready.task
    return ready.batch, ready.cost, KINDS.index(task.kind), task.branch, task.hop, task.chunk


class TaskError(BackendError):
    """Raised for a task that has failed; its message says which of which batch. ``ready``: the task."""

    def __init__(self, ready: Ready, error: BaseException) -> None:
        super().__init__(f"batch {ready.batch}, task '{ready.task}': {type(error).__name__}: {error}")
        self.ready = ready
        self.__cause__ = error


class Ticket(NamedTuple):
    """A request on its way. ``key``: the place of its task in the order, by which requests are sent, too; ``asked_s``:
    when its task made it, by ``time.perf_counter``."""

    key: Any
    ready: Ready
    request: Request
    asked_s: float


class TaskRecord(NamedTuple):
    """When a task was ready, when its thread ran it (seconds of ``time.perf_counter``), the thread's number, and the
    vertices that it began with. Its replies may arrive later: :meth:`TaskPool.answer`."""

    ready: Ready
    ready_s: float
    started_s: float
    ended_s: float
    thread: int
    size: int


@dataclass
class _Open:
    """A batch in flight: by task how many parents have yet to end, and how many tasks are left."""

    tasks: BatchTasks
    waits: list[int]
    left: int


class TaskPool:
    """``threads`` threads that run tasks, each the first of ``order``. ``send``: carries a request to another host and
    later calls :meth:`answer`; None where no task makes one. ``record``: called after each task by its thread.
    ``failed``: called with the first error.

    Batches are launched in ascending numbers and taken in any order. The first error of a task, or of :meth:`fail`,
    ends all: :meth:`take` raises it."""

    def __init__(
        self,
        threads: int,
        order: Order = batch_then_cost,
        send: Callable[[Sequence[Ticket]], None] | None = None,
        record: Callable[[TaskRecord], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._order, self._send, self._record, self._failed = order, send, record, failed
        lock = threading.RLock()
        self._changed, self._taken = threading.Condition(lock), threading.Condition(lock)
        self._heap: list[tuple[Any, int, Ready, float]] = []
        self._open: dict[int, _Open] = {}
        self._made: dict[int, TaskBatch] = {}
        self._error: BaseException | None = None
        self._closed, self._count, self._running = False, 0, 0
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"tasks-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def in_flight(self) -> int:
        """Batches launched whose last task has not ended."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """Batches that are ready to be taken."""
        return len(self._made)

    @property
    def running(self) -> int:
        """Tasks that threads run now, about."""
        return self._running

    def launch(self, number: int, tasks: BatchTasks) -> None:
        """Begin batch ``number``."""
        graph = tasks.graph
        with self._changed:
            self._open[number] = _Open(tasks, [len(before) for before in graph.parents], len(graph.tasks))
            self._push(number, [0], 0)

    def answer(self, ticket: Ticket, reply: Reply) -> None:
        """Take the reply to a request. One thread at a time calls it, and raises nothing: :meth:`take` does."""
        ready = ticket.ready
        try:
            if self._open[ready.batch].tasks.accept(ticket.request, reply):
                with self._changed:
                    self._end(ready, spare=0)
        except BaseException as error:
            self.fail(TaskError(ready, error))

    def fail(self, error: BaseException) -> None:
        """End all tasks; the first error is what :meth:`take` raises."""
        with self._changed:
            first, self._error = self._error is None, self._error or error
            self._changed.notify_all()
            self._taken.notify_all()
        if first and self._failed is not None:
            self._failed(error)

    def take(self, number: int, timeout_s: float) -> TaskBatch:
        """Wait for a launched batch and return it. Raises the error that has ended the pool, and :class:`BackendError`
        when the batch is not made within ``timeout_s`` seconds."""
        with self._changed:
            ended = self._taken.wait_for(lambda: number in self._made or self._error is not None, timeout_s)
            if self._error is not None:
                raise self._error
            if not ended:
                left = self._open[number].left if number in self._open else 0
                raise BackendError(
                    f"batch {number}: {left} tasks have not ended within {timeout_s:g} s (train.timeout)"
                )
            return self._made.pop(number)

    def close(self) -> None:
        """End the threads: each after the task that it runs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, thread: int) -> None:
        ready: Ready | None = None
        ended = False
        try:
            while True:
                with self._changed:
                    if ready is not None:
                        self._running -= 1
                        if ended:
                            self._end(ready, spare=1)
                    ready = None
                    while not self._heap and not self._closed and self._error is None:
                        self._changed.wait()
                    if self._closed or self._error is not None:
                        return
                    key, _, ready, ready_s = heapq.heappop(self._heap)
                    tasks = self._open[ready.batch].tasks
                    self._running += 1
                started_s = perf_counter()
                requests = tasks.run(ready.number)
                if self._record is not None:
                    size = tasks.size(ready.number)
                    self._record(TaskRecord(ready, ready_s, started_s, perf_counter(), thread, size))
                if requests:
                    assert self._send is not None, "a host that holds everything requests nothing"
                    asked_s = perf_counter()
                    self._send([Ticket(key, ready, request, asked_s) for request in requests])
                ended = not requests
        except BaseException as error:
            self.fail(error if ready is None else TaskError(ready, error))

    def _push(self, batch: int, numbers: Sequence[int], spare: int) -> None:
        """Make tasks ready. ``spare``: how many the calling thread may take itself, so that it wakes no other."""
        opened = self._open[batch]
        now = perf_counter()
        for number in numbers:
            ready = Ready(batch, opened.tasks.cost(number), number, opened.tasks.graph.tasks[number])
            self._count += 1  # heapq compares keys of equal tasks no further
            heapq.heappush(self._heap, (self._order(ready), self._count, ready, now))
        if len(numbers) > spare:
            self._changed.notify(len(numbers) - spare)

    def _end(self, ready: Ready, spare: int) -> None:
        opened = self._open[ready.batch]
        free = []
        for child in opened.tasks.graph.children[ready.number]:
            opened.waits[child] -= 1
            if not opened.waits[child]:
                free.append(child)
        opened.left -= 1
        if opened.left:
            self._push(ready.batch, free, spare)
            return
        del self._open[ready.batch]
        made = opened.tasks.made
        assert made is not None, "the last task merges"
        self._made[ready.batch] = made
        self._taken.notify_all()
