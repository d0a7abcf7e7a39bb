"""Where a run waits for all its ops: between epochs, where something else happens. Both backends ask here."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from simgnn.program.ops import Op
from simgnn.program.program import EVALUATE, Program, Template


@dataclass(frozen=True)
class Stops:
    """Each rank ends all its ops of the epochs so far before it begins one of the next: after the first epoch that is
    trained (the end of warm-up; from ``start`` on, in a run that goes on), each evaluation, each checkpoint, the last.

    ``evaluate_every``, ``checkpoint_every``: after each so many epochs; 0: never. Nothing is staged ahead over a stop,
    so that there are no more of them than have to be.
    """

    epochs: int
    evaluate_every: int = 0
    checkpoint_every: int = 0
    start: int = 0

    def after(self, done: int) -> bool:
        """Whether there is a stop when so many epochs have been trained."""
        often = (self.evaluate_every, self.checkpoint_every)
        return done in (self.start + 1, self.epochs) or any(every and done % every == 0 for every in often)

    def spans(self) -> Iterator[range]:
        """Epochs from one stop to the next, to the end of the run."""
        begin = self.start
        for done in range(self.start + 1, self.epochs + 1):
            if self.after(done):
                yield range(begin, done)
                begin = done


def ranks_in_turn(program: Program) -> tuple[bool, ...]:
    """:func:`in_turn` of each rank; of one for all where they have the same ops."""
    if all(op.ranks is None for _, op in program.ops):
        return (in_turn(program, 0),) * program.ranks
    return tuple(in_turn(program, rank) for rank in range(program.ranks))


def in_turn(program: Program, rank: int) -> bool:
    """Whether a rank runs the turns of training one after the other in one thread: each template is
    :func:`in_one_thread`. No turn begins before the one before it has ended, and stops change nothing."""
    return all(in_one_thread(program, each, rank) for name, each in program.templates.items() if name != EVALUATE)


def in_one_thread(program: Program, template: Template, rank: int) -> bool:
    """Whether the ops of a template that a rank has are run in one thread in program order: each op and the next, the
    last and the first of the next turn too, share a stream with one server or depend on one another."""
    ops = [op for op in template.ops if program.has(op, rank)]

    def follows(first: Op, second: Op, back: int) -> bool:
        if second.stream == first.stream and program.streams[first.stream].servers == 1:
            return True
        steps = program.calendar.steps
        return any(d.op == first.name and d.steps_back + d.epochs_back * steps == back for d in second.after)

    return not ops or (all(follows(a, b, 0) for a, b in pairwise(ops)) and follows(ops[-1], ops[0], 1))
