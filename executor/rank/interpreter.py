"""The executor's driver loop: runs a program's turns (training steps and evaluations) on one rank.

Where the ops of every template form one total order (bulk synchronous programs), the main thread runs them one after
another. Otherwise each stream has a thread (:mod:`executor.rank.lanes`); dependencies, the order of communicating
streams and the schedule's choices decide when an op runs. Both paths run the same compiled steps on the same buffers.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from executor.rank.compile import Coming, Step, compile_program
from executor.rank.lanes import Lanes, Record, Workers
from executor.recording.failure import raise_at
from executor.recording.metrics import Observe
from executor.state.buffers import Now
from executor.state.context import NOTHING, RankContext
from simgnn.program.dispatch import Picks
from simgnn.program.program import Program, ahead_of_epoch

SPAN = 512
"""Number of turns after which their records are written to files, to limit the memory of records."""


class Interpreter:
    """One rank's run of a program. ``observers``: by buffer, a function called with its value after its last write in
    a step. ``schedule``: chooses among ready ops, in threads of ``workers``; None: these run in program order."""

    def __init__(
        self,
        program: Program,
        context: RankContext,
        record: Record,
        observers: Mapping[str, Observe] | None = None,
        schedule: Picks | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.program = program
        self.context = context
        self.record = record
        self.clock = clock_of(context.device)
        self.templates = compile_program(program, context, observers or {})
        picks = schedule is not None and schedule.picks
        trained = [made for name, made in self.templates.items() if not program.evaluates(name)]
        self.serial = not picks and all(made.serial for made in trained)
        self._lanes = None
        if not self.serial:
            self._lanes = Lanes(context, self.templates, self.clock, record, schedule, workers or Workers(0))

    def note_in(self, record: Record) -> None:
        """From now on add ops that have ended to ``record``. Call it while no op runs."""
        self.record = record
        if self._lanes is not None:
            self._lanes.record = record

    def train(self, epochs: Iterable[int], between: Callable[[], None] | None = None, every: int = SPAN) -> None:
        """Run all steps of consecutive epochs, and return when all ops have ended. ``between`` is called in this thread
        after every ``every`` steps, also within an epoch; other streams continue meanwhile."""
        work = self._turns(epochs)
        if self._lanes is not None:
            self._lanes.run(work, between, every)
            return
        with torch.no_grad():
            while turns := list(islice(work, every)):
                for turn in turns:
                    self._run(turn)
                if between is not None and len(turns) == every:
                    between()

    def _turns(self, epochs: Iterable[int]) -> Iterator[Coming]:
        calendar = self.program.calendar
        for epoch in epochs:
            for step in range(calendar.steps):
                now = Now(epoch, step, epoch * calendar.steps + step)
                yield Coming(self.templates[calendar.template(epoch, step)], now)

    def evaluate(self, epoch: int) -> bool:
        """Run the evaluation after an epoch, when all training ops have ended; return False if the program has none."""
        begin = (epoch + 1) * self.program.calendar.steps - 1
        turns = [
            Coming(self.templates[turn.template], Now(epoch, turn.step, begin + place))
            for place, turn in enumerate(self.program.evaluation(epoch))
        ]
        if self._lanes is None or all(turn.template.serial for turn in turns):
            with torch.no_grad():
                for turn in turns:
                    self._run(turn)
        else:
            self._lanes.run(iter(turns))
        return bool(turns)

    def fill_next_epoch(self, epoch: int) -> bool:
        """Run the ops of an epoch that prepare the next one, such as filling its caches, without a record of their
        times; return False if there are none. All other ops must have ended."""
        wanted = {name: ahead_of_epoch(template) for name, template in self.program.templates.items()}
        any_ran = False
        with torch.no_grad():
            for template, now in self._turns([epoch]):
                for step in template.steps:
                    if step.name in wanted[template.name]:
                        step.run(now)
                        any_ran = True
        return any_ran

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()

    def _run(self, turn: Coming) -> None:
        """Run one step in program order in this thread: the hot loop, whose overhead every op pays."""
        now = turn.now
        clock, add, values = self.clock, self.record.add, self.context.store.values
        decisions = self.context.decisions
        step: Step | None = None
        try:
            for step in turn.template.steps:
                if step.guard is None or decisions.get(step.guard):
                    issued = clock()
                    sent = step.run(now)
                    add(now, step.op_id, issued, clock(), sent or NOTHING)
                for slot in step.free:
                    values[slot] = None
        except BaseException as error:
            name = step.name if step else ""
            raise_at(f"rank {self.context.rank}, epoch {now.epoch + 1}, op '{name}'", error)  # users count from 1


def clock_of(device: torch.device) -> Callable[[], Any]:
    """Return a function that gives the current time: in monotonic seconds, or as an event on the CUDA stream."""
    if device.type != "cuda":
        return time.perf_counter

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    return mark
