"""The calendar of a run: which template holds the ops of a turn, and epochs that differ from the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
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
    """One run through a template: a training step (epoch, step), or with step -1 the evaluation after an epoch."""

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


@dataclass(frozen=True)
class Calendar:
    """The template of each turn, a pure function of (epoch, step): ``first`` in epoch 0 (step 0), the joined names of
    its ``cycles`` in a special epoch, ``steady`` otherwise. ``opening``, if set, is step 0 of all other epochs.

    With several steps an epoch there are no cycles."""

    steady: str
    first: str | None = None
    steps: int = 1
    opening: str | None = None
    cycles: tuple[Cycle, ...] = ()

    @classmethod
    def of_epochs(cls, cycles: tuple[Cycle, ...], first: bool) -> "Calendar":
        """Return the calendar of a full-graph run. ``first``: whether its first epoch has a template of its own."""
        opening = [FIRST, *(cycle.name for cycle in cycles if cycle.holds(0))]
        return cls(STEADY, first=JOIN.join(opening) if first else None, cycles=cycles)

    def template(self, epoch: int, step: int = 0) -> str:
        """Return the name of the template that holds the ops of a training step."""
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
        if self.steps > 1 or self.opening is not None:
            return tuple(name for name in (self.first, self.opening, self.steady) if name is not None)
        return tuple(dict.fromkeys(self.sequence(1)))

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

    def kind(self, epoch: int) -> str:
        """Return the kind of an epoch, a key of :attr:`shares`; the first epoch counts as one of those like it."""
        return self._of_epoch(epoch)

    def _of_epoch(self, epoch: int) -> str:
        return JOIN.join(cycle.name for cycle in self.cycles if cycle.holds(epoch)) or self.steady


def special_epochs(cycles: tuple[Cycle, ...]) -> int:
    """Return an upper bound on the special epochs of a period of all ``cycles`` together."""
    together = lcm(*(cycle.period for cycle in cycles))
    return sum(together // cycle.period for cycle in cycles)
