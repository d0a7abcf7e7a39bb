"""Streams as threads: several turns in flight, ordered by dependencies alone.

The main thread runs the first stream that does not communicate (``compute``), every other stream has a thread a server.
A communicating stream issues strictly in program order; of the others ``pick`` chooses among the ready ops.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from executor.buffers import Now
from executor.compile import CompiledTemplate, Step
from executor.failure import op_failure
from executor.handlers.context import NOTHING
from executor.workers import Workers
from simgnn.errors import BackendError
from simgnn.policies.schedule.pick import Observed, Pick, Ready
from simgnn.program.ops import Stream

if TYPE_CHECKING:
    from executor.interpreter import Interpreter


@dataclass
class _TurnState:
    """A turn in flight. ``waiting``: unfinished predecessors of each step. ``followers``: who waits for each step.
    ``uses``: how many steps will still touch a slot that dies with the turn. ``events``: CUDA ends of steps."""

    template: CompiledTemplate
    now: Now
    waiting: list[int]
    followers: list[list[tuple["_TurnState", int]]]
    done: list[bool]
    left: int
    uses: dict[int, int]
    before: list[list[Any]] = field(default_factory=list)


@dataclass
class _Lane:
    """A stream: its queue (program order) or its ready ops, and its CUDA stream where there is one."""

    stream: Stream
    ordered: bool
    queue: deque[tuple[_TurnState, int]] = field(default_factory=deque)
    ready: list[tuple[int, int, _TurnState]] = field(default_factory=list)
    state: Any = None
    ended: int = 0
    cuda: Any = None


class Lanes:
    """Runs turns as they come, in threads of ``workers`` that are kept until :meth:`close`."""

    def __init__(self, interpreter: "Interpreter", pick: Pick, workers: Workers) -> None:
        program = interpreter.program
        self.interpreter = interpreter
        self.pick = pick
        self.window = 1 + max(
            [0]
            + [back for t in interpreter.templates.values() for step in t.steps for back, _ in step.earlier]
            + [buffer.depth - 1 for buffer in program.buffers.values()]
        )
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._coming: Iterator[tuple[CompiledTemplate, Now]] = iter(())
        self._next_turn: tuple[CompiledTemplate, Now] | None = None
        self._ended, self._every = 0, sys.maxsize
        self._active: dict[int, _TurnState] = {}
        cuda = interpreter.context.device.type == "cuda"
        self._lanes = {
            stream.name: _Lane(
                stream, stream.group is not None, state=pick.init(), cuda=_cuda_stream() if cuda else None
            )
            for stream in program.streams.values()
        }
        free = [lane for lane in self._lanes.values() if not lane.ordered]
        self._main = next((lane for lane in free if lane.stream.name == "compute"), free[0] if free else None)
        self._served = [
            workers.run(f"stream-{lane.stream.name}", partial(self._serve, lane))
            for lane in self._lanes.values()
            for _ in range(lane.stream.servers - (1 if lane is self._main else 0))
        ]

    def run(
        self,
        work: Iterator[tuple[CompiledTemplate, Now]],
        between: Callable[[], None] | None = None,
        every: int = sys.maxsize,
    ) -> None:
        """Run turns, each taken from ``work`` when it is opened; returns when all their ops have ended, raises the
        first error of any stream. ``between`` is called whenever ``every`` more turns have ended: nobody but this
        thread's stream waits for it."""
        if self.interpreter.context.device.type == "cuda":
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
                        self._pause(between)
            except BaseException as error:
                self._fail(error)
        if self.interpreter.context.device.type == "cuda":
            torch.cuda.synchronize()
        if self._error is not None:
            raise self._error

    def _pause(self, between: Callable[[], None]) -> None:
        with self._changed:
            self._ended -= self._every
        between()

    def close(self) -> None:
        """End the threads; those inside a collective end with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for ended in self._served:
            ended.wait(timeout=1.0)

    def _serve(self, lane: _Lane) -> None:
        with torch.no_grad():
            try:
                while self._take_and_run(lane, until_idle=False):
                    pass
            except BaseException as error:  # of ``pick``: nobody but this thread knows of it
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End all streams; the first error is what :meth:`run` raises."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _take_and_run(self, lane: _Lane | None, until_idle: bool) -> bool:
        """Wait for an op of a stream and run it; the main thread comes back without one when so many turns have ended.
        False when nothing is left (main thread) or the run is over."""
        with self._changed:
            while True:
                if self._closed or self._error is not None:
                    return False
                if until_idle and self._ended >= self._every:
                    return True
                job = None if lane is None else self._next(lane)
                if job is not None:
                    break
                if until_idle and not self._active and self._next_turn is None:
                    return False
                self._changed.wait()
        assert lane is not None
        state, index = job
        try:
            self._execute(lane, state, index)
        except BaseException as error:
            self._fail(self._failure(state, index, error))
            return False
        return True

    def _next(self, lane: _Lane) -> tuple[_TurnState, int] | None:
        if lane.ordered:
            if lane.queue and not lane.queue[0][0].waiting[lane.queue[0][1]]:
                return lane.queue.popleft()
            return None
        if not lane.ready:
            return None
        lane.ready.sort(key=lambda entry: entry[:2])
        steps = [(s.now, s.template.steps[i]) for _, i, s in lane.ready]
        choices = [Ready(now.epoch, now.step, step.op_id, step.name) for now, step in steps]
        seen = Observed(self.interpreter.context.decisions, {k: v.ended for k, v in self._lanes.items()})
        choice, lane.state = self.pick.pick(choices, seen, lane.state)
        _, index, state = lane.ready.pop(choice)
        return state, index

    def _execute(self, lane: _Lane, state: _TurnState, index: int) -> None:
        step, context = state.template.steps[index], self.interpreter.context
        end: Any = None
        if step.guard is None or context.decisions.get(step.guard):
            if lane.cuda is None:
                end = self._timed(step, state.now)
            else:
                with torch.cuda.stream(lane.cuda):
                    for event in state.before[index]:
                        lane.cuda.wait_event(event)
                    for slot in step.touched:
                        value = context.store.values[slot]
                        for part in value if isinstance(value, tuple) else (value,):
                            if part is not None and part.is_cuda:
                                part.record_stream(lane.cuda)
                    end = self._timed(step, state.now)
        with self._changed:
            self._finish(lane, state, index, end)
            self._changed.notify_all()

    def _timed(self, step: Step, now: Now) -> Any:
        clock = self.interpreter.clock
        issued = clock()
        sent = step.run(now)
        ended = clock()
        self.interpreter.record.add(now, step.op_id, issued, ended, sent or NOTHING)
        return ended

    def _finish(self, lane: _Lane, state: _TurnState, index: int, end: Any) -> None:
        lane.ended += 1
        state.done[index] = True
        state.left -= 1
        for slot in state.template.steps[index].touched:
            state.uses[slot] -= 1
            if not state.uses[slot]:
                self.interpreter.context.store.values[slot] = None
        for follower, position in state.followers[index]:
            if lane.cuda is not None and end is not None:
                follower.before[position].append(end)
            self._release(follower, position)
        if not state.left:
            self._ended += 1
            del self._active[state.now.count]
            self._open_turns()

    def _release(self, state: _TurnState, index: int) -> None:
        state.waiting[index] -= 1
        lane = self._lanes[state.template.steps[index].stream]
        if not state.waiting[index] and not lane.ordered:
            lane.ready.append((state.now.count, index, state))

    def _open_turns(self) -> None:
        """Open turns as long as no older turn than the window is in flight."""
        while self._next_turn is not None:
            template, now = self._next_turn
            if self._active and now.count - min(self._active) >= self.window:
                return
            self._next_turn = next(self._coming, None)
            count = len(template.steps)
            uses: dict[int, int] = {}
            for step in template.steps:
                for slot in step.touched:
                    uses[slot] = uses.get(slot, 0) + 1
            state = _TurnState(
                template, now, [0] * count, [[] for _ in range(count)], [False] * count, count, uses,
                [[] for _ in range(count)],
            )  # fmt: skip
            if count:
                self._active[now.count] = state
            for index, step in enumerate(template.steps):
                self._enter(state, index, step)

    def _enter(self, state: _TurnState, index: int, step: Step) -> None:
        for parent in step.after:
            state.followers[parent].append((state, index))
            state.waiting[index] += 1
        for back, name in step.earlier:
            other = self._active.get(state.now.count - back)
            place = None if other is None else other.template.position.get(name)
            if other is not None and place is not None and not other.done[place]:
                other.followers[place].append((state, index))
                state.waiting[index] += 1
        lane = self._lanes[step.stream]
        if lane.ordered:
            lane.queue.append((state, index))
        elif not state.waiting[index]:
            lane.ready.append((state.now.count, index, state))

    def _failure(self, state: _TurnState, index: int, error: BaseException) -> BaseException:
        if isinstance(error, BackendError) or not isinstance(error, Exception):
            return error
        step, context = state.template.steps[index], self.interpreter.context
        return op_failure(self.interpreter.program, step, state.now, context.rank, error)


def _cuda_stream() -> Any:
    return torch.cuda.Stream()
