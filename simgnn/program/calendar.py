"""The calendar of a run: which template holds the ops of a turn, and epochs that differ from the others.

Steps of an epoch are alike (mini-batches) or unlike. Unlike steps are stated as stretches, each a run of equal steps:
for training in chunks, one stretch for each layer and direction, and stretches of one step where the first or last
chunk of a layer does something else. So an epoch of a thousand steps is stated in a few lines, and its program is as
small as one step of each kind.

How an op names an op of another kind of step: a dependency counts steps back over all kinds, as they follow one
another. A step that has no op of that name is no dependency, so that "loaded, one step back" holds inside a layer and
across its ends, wherever both steps have the op. The backward step of chunk j needs what the forward step of chunk j
wrote hundreds of steps earlier. No dependency reaches that far: a rank keeps as many turns open as its farthest
dependency spans. Instead one buffer holds the rows of all chunks, each step reads and writes its own part of it
(:class:`simgnn.program.ops.Part`), and the end of the layer, which waits for all parts, orders the two. (A ring of
copies by chunk would need as many copies as there are steps between the two; a buffer for each chunk would need a
template for each chunk.)

An evaluation is one turn of the template "evaluate", or likewise a sweep of unlike steps. It begins when all ops of
training have ended, and the next epoch begins when its own have. Its E steps are numbered from -E to -1, so that a
negative step is one of an evaluation, and the last is always -1. Columns by step hold their numbers behind those of the
epoch, where negative numbers count from the end. A dependency counts steps back within the sweep alone."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from math import gcd, lcm
from types import MappingProxyType

FIRST, STEADY, EVALUATE = "first", "steady", "evaluate"
"""Templates: the first epoch of a full-graph run, its later epochs, and evaluations."""
JOIN = "+"
"""Between the names of epochs in the name of a template: "first+refresh"."""
MOST_SPECIAL = 64
"""Largest number of special epochs in a period: the orders of their ops are proved one by one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One run through a template: a training step (epoch, step), or with a negative step one of the evaluation after an
    epoch."""

    epoch: int
    step: int
    template: str


@dataclass(frozen=True, slots=True)
class Cycle:
    """Special epochs: those called ``name`` are epoch ``position`` and every ``period``-th after it, from 0."""

    name: str
    period: int
    position: int = 0

    def holds(self, epoch: int) -> bool:
        return epoch % self.period == self.position

    def meets(self, other: "Cycle") -> bool:
        """Whether some epoch is special in both ways."""
        return (self.position - other.position) % gcd(self.period, other.period) == 0


@dataclass(frozen=True)
class Epochs:
    """The epochs in which a policy does something else than usual, whatever training computes.

    ``special``: the name of such an epoch -> its position in every ``period`` epochs, from 0. ``first``: whether the
    first epoch of a run needs ops of its own; it is then called "first"."""

    period: int = 1
    special: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    first: bool = False

    def faults(self) -> Iterator[str]:
        """Describe what is wrong with these values."""
        if not _whole(self.period, 1):
            yield f"a period of {self.period!r} epochs, expected a whole number from 1"
        for name, position in self.special.items():
            if not isinstance(name, str) or not name.isidentifier() or name in (FIRST, STEADY, EVALUATE):
                taken = ", ".join((FIRST, STEADY, EVALUATE))
                yield f"an epoch called {name!r}, expected a word of letters, digits and '_' other than {taken}"
            elif _whole(self.period, 1) and not (_whole(position, 0) and position < self.period):
                yield f"epoch '{name}' at position {position!r}, expected 0 to {self.period - 1}: the period - 1"

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        """The special epochs, in the order in which they were named."""
        return tuple(Cycle(name, self.period, position) for name, position in self.special.items())

    def names(self, epoch: int) -> tuple[str, ...]:
        """Return the names of an epoch of a run, from 0; empty if it is not special."""
        return tuple(cycle.name for cycle in self.cycles if cycle.holds(epoch))


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def epoch_names(template: str) -> tuple[str, ...]:
    """Return the names of the epochs that a template is for, such as ("first", "refresh")."""
    return tuple(template.split(JOIN))


def templates_of(templates: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the templates of epochs with a name, such as those of all "refresh" epochs."""
    return tuple(template for template in templates if name in epoch_names(template))


def templates_without(templates: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the templates of all other epochs, and of evaluations if they are among ``templates``."""
    return tuple(template for template in templates if name not in epoch_names(template))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps of an epoch that share a template."""

    template: str
    steps: int = 1


@dataclass(frozen=True)
class Calendar:
    """The template of each turn, a pure function of (epoch, step): ``first`` in epoch 0 (step 0), the joined names of
    its ``cycles`` in a special epoch, ``steady`` otherwise. ``opening``, if set, is step 0 of all other epochs.

    With ``unlike`` steps, the stretches of every epoch in order, all epochs are alike: ``steady`` then is only the name
    of their kind, ``steps`` the sum over the stretches, and nothing else but ``evaluation`` is set. With several steps
    an epoch there are no cycles. Columns by step (:class:`simgnn.program.sizes.Column`) count the steps of the epoch
    through, then those of an evaluation.

    ``evaluation``: the stretches of an evaluation, in order, whose templates training does not use. Empty: it is one
    step of the template "evaluate", if the program has that template (:attr:`simgnn.program.program.Program.sweep`).
    ``drained``: every epoch begins when all ops of the one before have ended, as evaluations do."""

    steady: str
    first: str | None = None
    steps: int = 1
    opening: str | None = None
    cycles: tuple[Cycle, ...] = ()
    unlike: tuple[Stretch, ...] = ()
    evaluation: tuple[Stretch, ...] = ()
    drained: bool = False

    @classmethod
    def of_epochs(cls, cycles: tuple[Cycle, ...], first: bool) -> "Calendar":
        """Return the calendar of a full-graph run. ``first``: whether its first epoch has a template of its own."""
        opening = [FIRST, *(cycle.name for cycle in cycles if cycle.holds(0))]
        return cls(STEADY, first=JOIN.join(opening) if first else None, cycles=cycles)

    @classmethod
    def of_steps(cls, stretches: Iterable[Stretch], evaluation: Iterable[Stretch] = ()) -> "Calendar":
        """Return the calendar of epochs of unlike steps, and of their evaluations; stretches without steps are left
        out."""
        unlike, sweep = (tuple(one for one in each if one.steps) for each in (stretches, evaluation))
        return cls(STEADY, steps=sum(stretch.steps for stretch in unlike), unlike=unlike, evaluation=sweep)

    def template(self, epoch: int, step: int = 0) -> str:
        """Return the name of the template that holds the ops of a training step."""
        if self.unlike:
            return self._names[step]
        if self.first is not None and epoch == 0 and step == 0:
            return self.first
        if self.opening is not None and step == 0:
            return self.opening
        return self._of_epoch(epoch) if self.cycles else self.steady

    def turns(self, epochs: int) -> Iterator[Turn]:
        """Yield all training turns of a run in order."""
        for epoch in range(epochs):
            for step in range(self.steps):
                yield Turn(epoch, step, self.template(epoch, step))

    @cached_property
    def period(self) -> int:
        """After how many epochs the templates repeat, apart from those of the first epoch."""
        return lcm(*(cycle.period for cycle in self.cycles))

    @property
    def templates(self) -> tuple[str, ...]:
        """The training templates of a run that lasts long enough, in the order of their first turns."""
        if self.unlike:
            return tuple(dict.fromkeys(stretch.template for stretch in self.unlike))
        if self.steps > 1 or self.opening is not None:
            return tuple(name for name in (self.first, self.opening, self.steady) if name is not None)
        return tuple(dict.fromkeys(self.sequence(1)))

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The steps of an epoch as runs of steps that are alike in every epoch but the first."""
        if self.unlike:
            return self.unlike
        opening = (Stretch(self.opening),) if self.opening is not None and self.steps > 1 else ()
        return (*opening, Stretch(self.steady, self.steps - len(opening)))

    @cached_property
    def stretch_of(self) -> tuple[int, ...]:
        """The position in :attr:`stretches` of each step of an epoch."""
        return tuple(place for place, stretch in enumerate(self.stretches) for _ in range(stretch.steps))

    @cached_property
    def followers(self) -> Mapping[str, tuple[str, ...]]:
        """The templates of the turns that may come right after a turn, by its template; none after the last step of an
        evaluation of stretches."""
        if self.steps == 1:
            names = self.sequence(2)
        elif self.unlike:
            short = [name for stretch in self.unlike for name in [stretch.template] * min(stretch.steps, 2)]
            names = short * 2
        else:
            names = [self.template(epoch, step) for epoch in range(3) for step in range(min(self.steps, 3))]
        found: dict[str, dict[str, None]] = {}
        sweep = [stretch.template for stretch in self.evaluation for _ in range(min(stretch.steps, 2))]
        for name, after in (*pairwise(names), *pairwise(sweep)):
            found.setdefault(name, {})[after] = None
        for name in sweep[-1:]:
            found.setdefault(name, {})
        return {name: tuple(after) for name, after in found.items()}

    def sequence(self, longest: int) -> list[str]:
        """Return the templates of consecutive epochs, from the first epoch until every special epoch has come twice. Of
        a stretch of equal epochs no more than ``longest`` are listed, from which the others do not differ."""
        end = 2 * self.period + longest
        special = sorted({epoch for cycle in self.cycles for epoch in range(cycle.position, end, cycle.period)})
        shown = set(special)
        for before, after in zip([-1, *special], [*special, end], strict=True):
            shown.update(range(before + 1, min(after, before + longest + 2)))  # one more, as epoch 0 may differ
        names = [self.template(epoch) for epoch in sorted(shown)]
        return [name for _, alike in groupby(names) for name in list(alike)[:longest]]

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """The share of epochs that each template takes in a long run: the kinds of its epochs, rarest first."""
        special = {epoch for cycle in self.cycles for epoch in range(cycle.position, self.period, cycle.period)}
        counts: dict[str, int] = {self.steady: self.period - len(special)}
        for epoch in sorted(special):
            name = self._of_epoch(epoch)
            counts[name] = counts.get(name, 0) + 1
        ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]))
        return {name: count / self.period for name, count in ordered if count}

    def typical(self, step: int) -> Mapping[str, float]:
        """Return the templates of a step of a typical epoch, after the first one, and how often each runs in it."""
        return self.shares if self.cycles else {self.template(1, step): 1.0}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(stretch.template for stretch in self.unlike for _ in range(stretch.steps))

    @cached_property
    def sweep(self) -> tuple[str, ...]:
        """The template of each step of an evaluation that is stated in stretches."""
        return tuple(stretch.template for stretch in self.evaluation for _ in range(stretch.steps))

    def of_epoch(self, epoch: int) -> tuple[str, ...]:
        """Return the templates of all steps of an epoch."""
        return self._names if self.unlike else tuple(self.template(epoch, step) for step in range(self.steps))

    def ordinal(self, epoch: int, step: int) -> int:
        """Return how many earlier steps of an epoch have the same template as a step."""
        if self.unlike:
            return self._ordinals[step]
        return step - int(step > 0 and self.template(epoch, 0) != self.template(epoch, step))

    @cached_property
    def _ordinals(self) -> tuple[int, ...]:
        seen: dict[str, int] = {}
        found = []
        for name in self._names:
            found.append(seen.get(name, 0))
            seen[name] = found[-1] + 1
        return tuple(found)

    def kind(self, epoch: int) -> str:
        """Return the kind of an epoch, a key of :attr:`shares`; the first epoch counts as one of those like it."""
        return self._of_epoch(epoch)

    def _of_epoch(self, epoch: int) -> str:
        return JOIN.join(cycle.name for cycle in self.cycles if cycle.holds(epoch)) or self.steady


def special_epochs(cycles: tuple[Cycle, ...]) -> int:
    """Return an upper bound on the special epochs of a period of all ``cycles`` together."""
    together = lcm(*(cycle.period for cycle in cycles))
    return sum(together // cycle.period for cycle in cycles)
