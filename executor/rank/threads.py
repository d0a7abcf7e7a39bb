"""Threads that are there before a run's memory is measured: each has its stack and what libraries keep for a thread."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from simgnn.errors import BackendError
from simgnn.program.program import Program

Job = Callable[[], None]


class Workers:
    """Threads that wait for jobs, each of which runs to its end. torch and Python keep some 60 KiB of each thread that
    has called them, which no graph makes grow."""

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[tuple[Job, threading.Event] | None] = SimpleQueue()
        self._fault: BaseException | None = None
        self._idle = 0
        self._add(count)

    def run(self, name: str, job: Job) -> threading.Event:
        """Run a job in a thread that waits, or in a new one where none does. What is returned is set when it ended."""
        if not self._idle:
            self._add(1)
        self._idle -= 1
        ended = threading.Event()

        def named() -> None:
            threading.current_thread().name = name
            job()

        self._jobs.put((named, ended))
        return ended

    def close(self) -> None:
        """End the threads that wait; those with a job end with it."""
        for _ in range(self._idle):
            self._jobs.put(None)
        self._idle = 0

    def _add(self, count: int) -> None:
        ready = threading.Barrier(count + 1)
        for _ in range(count):
            threading.Thread(target=self._wait, args=(ready,), daemon=True).start()
        try:
            ready.wait()
        except threading.BrokenBarrierError:
            fault = self._fault
            raise BackendError(f"a stream's thread could not begin: {type(fault).__name__}: {fault}") from fault
        self._idle += count

    def _wait(self, ready: threading.Barrier) -> None:
        try:
            with torch.no_grad():
                torch.ones(1).add_(1)  # libraries make what they keep for a thread at its first call
            ready.wait()
        except threading.BrokenBarrierError:
            return  # another thread could not begin
        except BaseException as error:
            self._fault = error
            ready.abort()
            return
        wanted = self._jobs.get()
        if wanted is None:
            return
        job, ended = wanted
        try:
            job()
        finally:
            ended.set()


def stream_threads(program: Program) -> int:
    """Threads that the streams of a program take beside the main thread, which runs one of them."""
    return max(0, sum(stream.servers for stream in program.streams.values()) - 1)
