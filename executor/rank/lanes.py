"""Run streams in threads: several turns (steps) run at once, and only dependencies order their ops.

The main thread runs the first stream that does not communicate; every other stream has one thread per server. The
dispatcher (:mod:`simgnn.program.dispatch`) chooses the next op of a stream.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from executor.rank.compile import Coming, CompiledTemplate, Step
from executor.recording.failure import raise_at
from executor.state.buffers import Now
from executor.state.context import NOTHING, RankContext, Sent, Turns
from simgnn.errors import BackendError
from simgnn.program.dispatch import Dispatcher, Job, Lane, OpenTurn, Picks


class Workers:
    """A pool of threads that wait for jobs. They start before a run's memory is measured, since torch and Python
    allocate some 60 KiB per thread that has called them."""

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        self._fault: BaseException | None = None
        self._idle = 0
        self._add(count)

    def run(self, name: str, job: Callable[[], None]) -> threading.Event:
        """Run a job in a waiting thread, or in a new one if none waits. The returned event is set at the job's end."""
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
        """End the waiting threads; a busy thread ends after its job."""
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
                torch.ones(1).add_(1)  # libraries allocate what they keep for a thread at its first call
            ready.wait()
        except threading.BrokenBarrierError:
            return  # another thread could not begin
        except BaseException as error:
            self._fault = error
            ready.abort()
            return
        if (wanted := self._jobs.get()) is not None:
            job, ended = wanted
            try:
                job()
            finally:
                ended.set()


class Record(Protocol):
    """Records ops that have ended, such as :class:`executor.recording.trace.Recorder`."""

    def add(self, now: Now, op_id: int, issued: Any, ended: Any, sent: Sent, started: Any = None) -> None:
        """Record an op. ``issued``, ``ended``: marks of :func:`executor.rank.interpreter.clock_of`; ``started``: when
        its turn came, if it waited for one among the ranks of its host."""


@dataclass(eq=False, slots=True)
class Running:
    """A turn (a step of training or of an evaluation) that runs. ``uses``: by slot, how many ops have yet to use its
    tensor before it is freed. ``ends``: by op, the CUDA events at the ends of the ops that it waits for."""

    template: CompiledTemplate
    now: Now
    uses: Counter[int]
    ends: dict[int, list[Any]] = field(default_factory=dict)


class Lanes:
    """Runs turns in threads of ``workers``, which it occupies until :meth:`close`."""

    def __init__(
        self,
        context: RankContext,
        templates: Mapping[str, CompiledTemplate],
        clock: Callable[[], Any],
        record: Record,
        schedule: Picks | None,
        workers: Workers,
    ) -> None:
        program = context.program
        self.context, self.clock, self.record = context, clock, record
        self.window = 1 + max(
            [0]
            + [back for template in templates.values() for _, back, _ in template.order.earlier]
            + [buffer.depth - 1 for buffer in program.buffers.values()]
        )
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._coming: Iterator[Coming] = iter(())
        self._next_turn: Coming | None = None
        self._ended, self._every = 0, sys.maxsize
        self._active: dict[int, OpenTurn[Running]] = {}
        self._dispatcher = Dispatcher[Running](
            context.rank,
            {name: Lane(stream) for name, stream in program.streams.items()},
            schedule,
            lambda turn, name: context.decisions.get(name),
        )
        lanes = self._dispatcher.lanes
        on_gpu = context.device.type == "cuda"
        self._cuda = {name: torch.cuda.Stream() for name in lanes} if on_gpu else {}
        self._main = next((lane for lane in lanes.values() if not lane.ordered), None)
        self._served = [
            workers.run(f"stream-{name}", partial(self._serve, lane))
            for name, lane in lanes.items()
            for _ in range(lane.stream.servers - (1 if lane is self._main else 0))
        ]

    def run(self, work: Iterator[Coming], between: Callable[[], None] | None = None, every: int = sys.maxsize) -> None:
        """Run the turns that ``work`` yields. Return when all their ops have ended, or raise the first error of any
        stream. ``between`` is called after every ``every`` turns; only the stream of this thread waits for it."""
        if self.context.device.type == "cuda":
            torch.cuda.synchronize()
        with self._changed:
            self._coming, self._next_turn = work, next(work, None)
            self._ended, self._every = 0, sys.maxsize if between is None else every
            self._open_turns()
            self._changed.notify_all()
        with torch.no_grad():
            try:
                while self._take_and_run(self._main, until_idle=True):
                    if between is not None and self._ended >= self._every:
                        with self._changed:
                            self._ended -= self._every
                        between()
            except BaseException as error:
                self._fail(error)
        if self.context.device.type == "cuda":
            torch.cuda.synchronize()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the threads; a thread inside a collective ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for ended in self._served:
            ended.wait(timeout=1.0)

    def _serve(self, lane: Lane[Running]) -> None:
        with torch.no_grad():
            try:
                while self._take_and_run(lane, until_idle=False):
                    pass
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End all streams, so that :meth:`run` raises the first error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _take_and_run(self, lane: Lane[Running] | None, until_idle: bool) -> bool:
        """Wait for an op of a stream and run it; return True. The main thread (``until_idle``) also returns True
        without an op, when ``between`` is due. Return False if no ops remain (main thread), or if the run is over."""
        with self._changed:
            while True:
                if self._closed or self._error is not None:
                    return False
                if until_idle and self._ended >= self._every:
                    return True
                job = None if lane is None else self._take(lane)
                if job is not None:
                    break
                if until_idle and not self._active and self._next_turn is None:
                    return False
                self._changed.wait()
        try:
            self._execute(job)
        except BaseException as error:
            raise_at(f"rank {self.context.rank}, epoch {job.turn.epoch + 1}, op '{job.ready.name}'", error)
        return True

    def _take(self, lane: Lane[Running]) -> Job[Running] | None:
        """Take the op that a stream runs next, which the schedule may pick."""
        try:
            return self._dispatcher.take(lane)
        except BaseException as error:
            epoch, stream = lane.ready[0].turn.epoch + 1, lane.stream.name
            raise_at(f"rank {self.context.rank}, epoch {epoch}, stream '{stream}'", error, passes=KeyboardInterrupt)

    def _execute(self, job: Job[Running]) -> None:
        running = job.turn.what
        step, context = running.template.steps[job.position], self.context
        turns = context.turns.get(job.turn.order.ops[job.position].stream)
        runs = step.guard is None or bool(context.decisions.get(step.guard))
        end: Any = None
        if runs:
            cuda = self._cuda.get(job.turn.order.ops[job.position].stream)
            if cuda is None:
                self._timed(step, running.now, turns)
            else:
                with torch.cuda.stream(cuda):
                    for event in running.ends.pop(job.position, ()):
                        cuda.wait_event(event)
                    for slot in step.replaced:
                        value = context.store.values[slot]
                        for part in value if isinstance(value, tuple) else (value,):
                            if part is not None and part.is_cuda:
                                part.record_stream(cuda)
                    end = self._timed(step, running.now, turns)
        with self._changed:
            self._finish(job, runs, end)
            self._changed.notify_all()

    def _timed(self, step: Step, now: Now, turns: Turns | None) -> Any:
        clock = self.clock
        if turns is None:
            issued = clock()
            sent = step.run(now)
            ended = clock()
            self.record.add(now, step.op_id, issued, ended, sent or NOTHING)
            return ended
        issued = turns.arrive(clock)
        try:
            turns.wait()
            started = clock()
            sent = step.run(now)
            ended = clock()
        finally:
            turns.leave()
        self.record.add(now, step.op_id, issued, ended, sent or NOTHING, started)
        return ended

    def _finish(self, job: Job[Running], ran: bool, end: Any) -> None:
        """Mark an op as ended. ``end``: the CUDA event at its end; None on a CPU, or if a guard skipped the op."""
        turn, running = job.turn, job.turn.what
        for slot in running.template.steps[job.position].touched:
            running.uses[slot] -= 1
            if not running.uses[slot]:
                self.context.store.values[slot] = None
        if end is not None:
            for follower in self._dispatcher.followers(turn, job.position):
                follower.turn.what.ends.setdefault(follower.position, []).append(end)
        self._dispatcher.finish(turn, job.position, ran)
        if not turn.left:
            self._ended += 1
            del self._active[job.number]
            self._open_turns()

    def _open_turns(self) -> None:
        while self._next_turn is not None:
            template, now = self._next_turn
            if self._active and now.count - min(self._active) >= self.window:
                return
            self._next_turn = next(self._coming, None)
            uses = Counter(slot for step in template.steps for slot in step.touched)
            turn = OpenTurn(
                self._dispatcher, now.count, now.epoch, now.step, template.order, Running(template, now, uses)
            )
            if turn.left:
                self._active[now.count] = turn
            self._dispatcher.open(turn, lambda at, _, back, name: filter(None, [self._active.get(at.number - back)]))
