"""The points at which a run waits until all ops have ended: between epochs, before an evaluation or a checkpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simgnn.program.ops import Op
from simgnn.program.program import Program, Template


@dataclass(frozen=True)
class Stops:
    """The epochs after which each rank ends all its ops before it begins the next epoch: the first trained epoch (the
    end of warm-up; ``start`` in a resumed run), each with an evaluation or a checkpoint, and the last.

    ``evaluate_every``, ``checkpoint_every``: epochs between two; 0: never. Nothing is staged ahead over a stop."""

    epochs: int
    evaluate_every: int = 0
    checkpoint_every: int = 0
    start: int = 0

    def after(self, done: int) -> bool:
        """Whether there is a stop after ``done`` trained epochs."""
        often = (self.evaluate_every, self.checkpoint_every)
        return done in (self.start + 1, self.epochs) or any(every and done % every == 0 for every in often)

    def spans(self) -> Iterator[range]:
        """Yield the range of epochs between each two consecutive stops, to the end of the run."""
        begin = self.start
        for done in range(self.start + 1, self.epochs + 1):
            if self.after(done):
                yield range(begin, done)
                begin = done


def ranks_in_turn(program: Program) -> tuple[bool, ...]:
    """Whether each rank runs its training turns one after the other in one thread, so that stops change nothing."""
    return _in_turn(program, [one for name, one in program.templates.items() if not program.evaluates(name)])


def evaluations_in_turn(program: Program) -> tuple[bool, ...]:
    """Whether each rank runs the steps of an evaluation one after the other in one thread."""
    return _in_turn(program, [program.templates[name] for name in dict.fromkeys(program.sweep)])


def _in_turn(program: Program, templates: Sequence[Template]) -> tuple[bool, ...]:
    different = any(op.ranks is not None for _, op in program.ops)
    found = [
        all(in_one_thread(program, template, rank) for template in templates)
        for rank in range(program.ranks if different else 1)
    ]
    return tuple(found) if different else tuple(found * program.ranks)


def in_one_thread(program: Program, template: Template, rank: int) -> bool:
    """Whether a rank runs its ops of a template in one thread in program order: each op and the next one, also the last
    and the first of any turn that may come next, share a stream with one server, or the second depends on the first. On
    a stream that does not communicate the second would overtake the first if that waits for an op for which the second
    does not. An op that waits for its turn among ranks has a thread of its own."""
    ops = [op for op in template.ops if program.has(op, rank)]
    if any(program.streams[op.stream].in_turn for op in ops):
        return False
    awaited: dict[str, set[str]] = {}
    for op in ops:
        here = [d.op for d in op.after if not d.steps_back and not d.epochs_back]
        awaited[op.name] = set(here).union(*(awaited.get(name, set()) for name in here))

    def follows(first: Op, second: Op, back: int) -> bool:
        stream, steps = program.streams[first.stream], program.calendar.steps
        if second.stream == first.stream and stream.servers == 1:
            elsewhere = {other.name for other in ops if other.stream != first.stream} & awaited[first.name]
            return stream.group is not None or back > 0 or elsewhere <= awaited[second.name]
        return any(d.op == first.name and d.steps_back + d.epochs_back * steps == back for d in second.after)

    if not ops:
        return True
    later = (program.templates[name].ops for name in program.calendar.followers.get(template.name, (template.name,)))
    heads = [next((op for op in coming if program.has(op, rank)), None) for coming in later]
    within = all(follows(first, second, 0) for first, second in pairwise(ops))
    return within and all(follows(ops[-1], head, 1) for head in heads if head is not None)
