"""Schema of a validation suite: which experiments are predicted and run, how cases are drawn, the bars to hold."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations, product
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.communication import LinkKind
from simgnn.hardware.profile.quantities import BytesPerSecond, Strict
from simgnn.hardware.topology.topology import Name
from simgnn.spelling import nearest
from simgnn.study.cases import AXES, Axis, Case
from simgnn.tomlfile import Table

Share = Annotated[StrictFloat, Field(ge=0.0, le=1.0)]
"""A share from 0 to 1: 0.08 is 8 %."""
Settings = dict[StrictStr, Any]
Key = tuple[Hashable, ...]


class Level(Strict):
    """One level of an axis. ``set``: settings that are merged into the experiment."""

    name: Name
    set: Settings = Field(default_factory=dict)


class Topology(Strict):
    """Where ranks run: on this machine directly, or in a testbed of ``hosts`` network namespaces whose links have the
    rate ``link``. ``slow_last``: the share of a CPU that the last rank is limited to."""

    name: Name
    hosts: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    link: BytesPerSecond | None = None
    slow_last: Annotated[StrictFloat, Field(gt=0.0, lt=1.0)] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if (self.hosts > 1) != (self.link is not None):
            raise ValueError("link: expected with two or more hosts, and only then, such as link = '200 Mbit/s'")
        return self

    @property
    def plain(self) -> bool:
        """Whether ranks run on this machine without a testbed."""
        return self.hosts == 1 and self.slow_last is None


class Draw(Strict):
    """Number of cases to draw, and the seed. Levels of an axis are drawn equally often, give or take one."""

    count: Annotated[StrictInt, Field(ge=1, le=10_000)]
    seed: Annotated[StrictInt, Field(ge=0)]


class Calibration(Strict):
    """The calibration before the first run, on one host: rank counts, whether a quick one, number of passes."""

    ranks: Annotated[tuple[Annotated[StrictInt, Field(ge=1)], ...], Field(min_length=1)]
    quick: StrictBool = False
    passes: Annotated[StrictInt, Field(ge=1)] = 1


class Bars(Strict):
    """Bars that scores must meet; a score without a bar is only reported. Errors are shares of the measured median."""

    median_error: Share | None = None
    mean_error: Share | None = None
    p90_error: Share | None = None
    max_error: Share | None = None
    tau: Annotated[StrictFloat, Field(gt=-1.0, le=1.0)] | None = None
    regret: Share | None = None
    coverage: tuple[Share, Share] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.coverage is not None and self.coverage[0] > self.coverage[1]:
            raise ValueError(f"coverage: got {list(self.coverage)}, expected the least first, such as [0.8, 0.97]")
        if self.coverage == (0.0, 1.0):
            raise ValueError(
                "coverage: got [0, 1], which every share meets; expected a smaller range, such as [0.8, 0.97]"
            )
        return self

    def stated(self) -> dict[str, Any]:
        """Return the bars that are set, by name, without the comparison with baselines."""
        return self.model_dump(exclude_none=True, exclude={"better_than_baselines"})


class SuiteBars(Bars):
    """Bars on all cases, including the bar on the comparison with baselines."""

    better_than_baselines: Annotated[StrictFloat, Field(ge=1.0)] | None = None


class GroupBars(Strict):
    """Bars on the cases whose level on ``axis`` is one of ``levels``."""

    name: Name
    axis: Axis
    levels: Annotated[tuple[StrictStr, ...], Field(min_length=1)]
    bars: Bars


class NoiseLimits(Strict):
    """How calm the machine must be: beyond these limits a validation is inconclusive, whatever the bars say.

    ``drift``: how much slower or faster than at calibration the reference work may be beside a run. ``spread``: half
    the range of an experiment's repeats over their median. A quarter of the runs, or experiments, may exceed them.
    """

    drift: Annotated[StrictFloat, Field(gt=0.0, le=10.0)] = 0.3
    spread: Annotated[StrictFloat, Field(gt=0.0, le=10.0)] = 0.25


class Slowed(Strict):
    """A rate to reduce to ``share`` of itself: of the device's ``primitive`` ("*": all), or of one kind of ``link``."""

    primitive: StrictStr | None = None
    link: LinkKind | None = None
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.primitive is None) == (self.link is None):
            raise ValueError("expected either primitive = 'spmm' (or '*') or link = 'ethernet'")
        if self.primitive not in (None, "*", *PRIMITIVES):
            known = ", ".join(PRIMITIVES)
            raise ValueError(f"primitive: got '{self.primitive}', expected '*' or one of {known}")
        return self

    @property
    def label(self) -> str:
        much = "half the" if self.share == 0.5 else f"{self.share:g} of the"
        return f"{much} rate of {self.primitive or self.link}" + (" links" if self.link else "")


class Suite(Strict):
    """A validation suite: experiments x graphs x partitions x ranks x topologies, or cases drawn from them.

    ``repeats``: runs of each case, interleaved, in new processes. ``epochs``: of each run; the first is not counted.
    ``hold_out``: axes; the regression predicts each of their levels after a fit to the other levels. ``choose``: axes
    over which a user would choose, for the regret of picking the predicted best.
    """

    kind: Literal["runs"] = "runs"
    name: Name
    description: StrictStr
    extends: StrictStr = "vanilla"
    set: Settings = Field(default_factory=dict)
    repeats: Annotated[StrictInt, Field(ge=1, le=1000)]
    epochs: Annotated[StrictInt, Field(ge=2, le=10_000)]
    experiments: Annotated[tuple[Level, ...], Field(min_length=1)]
    graphs: Annotated[tuple[Level, ...], Field(min_length=1)]
    partitions: Annotated[tuple[Level, ...], Field(min_length=1)]
    ranks: Annotated[tuple[Annotated[StrictInt, Field(ge=1, le=4096)], ...], Field(min_length=1)]
    topologies: Annotated[tuple[Topology, ...], Field(min_length=1)]
    draw: Draw | None = None
    calibration: Calibration
    hold_out: tuple[Axis, ...] = ("graph",)
    choose: tuple[Axis, ...] = ("partition", "ranks", "topology")
    bars: SuiteBars = SuiteBars()
    group_bars: tuple[GroupBars, ...] = ()
    sensitivity: tuple[Slowed, ...] = ()
    noise: NoiseLimits = NoiseLimits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = []
        for axis in AXES:
            labels = self.levels(axis)
            doubled = sorted({label for label in labels if labels.count(label) > 1})
            faults += [f"{axis}: two levels called '{label}'; expected different names" for label in doubled]
        for at, group in enumerate(self.group_bars):
            faults += [
                f"group_bars.{at}.levels: no {group.axis} is called '{level}'{nearest(level, self.levels(group.axis))}"
                for level in group.levels
                if level not in self.levels(group.axis)
            ]
        faults += [
            f"ranks: {ranks} ranks cannot be spread evenly over the {topology.hosts} hosts of '{topology.name}'"
            for topology, ranks in product(self.topologies, self.ranks)
            if ranks % topology.hosts
        ]
        cases, found = self.every_case(), dict[str, Case]()
        for case in cases:
            if found.setdefault(case.name, case) != case:
                faults.append(
                    f"two cases are called '{case.name}': {found[case.name].levels()} and {case.levels()}; "
                    "expected names of levels that differ when joined"
                )
        total = len(cases)
        if self.draw is not None and self.draw.count > total:
            faults.append(f"draw.count: got {self.draw.count}, expected at most {total}, all the cases that there are")
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def levels(self, axis: Axis) -> tuple[str, ...]:
        """Return the names of the levels of an axis."""
        if axis == "ranks":
            return tuple(map(str, self.ranks))
        return tuple(level.name for level in getattr(self, "topologies" if axis == "topology" else f"{axis}s"))

    def every_case(self) -> tuple[Case, ...]:
        """Return all combinations of levels, in the order of the file."""
        levels: list[Sequence[Any]] = [self.ranks if axis == "ranks" else self.levels(axis) for axis in AXES]
        return tuple(Case(*chosen) for chosen in product(*levels))

    def cases(self) -> tuple[Case, ...]:
        """Return the cases of this suite, drawn or all. They depend only on the file."""
        every = self.every_case()
        if self.draw is None:
            return every
        return tuple(every[at] for at in balanced_draw([case.levels() for case in every], **self.draw.model_dump()))

    def topology(self, case: Case) -> Topology:
        return next(topology for topology in self.topologies if topology.name == case.topology)

    def settings(self, case: Case) -> list[Table]:
        """Return the settings of the levels of a case, least specific first."""
        hosts = self.topology(case).hosts
        own: Table = {
            "name": case.name,
            "cluster": {"hosts": hosts, "ranks_per_host": case.ranks // hosts},
            "train": {"epochs": self.epochs, "eval_every": 0},
        }
        named = {level.name: level.set for level in (*self.graphs, *self.partitions, *self.experiments)}
        return [self.set, named[case.graph], named[case.partition], named[case.experiment], own]

    def to_table(self) -> Table:
        """Return the suite as plain values, as in a TOML file."""
        return self.model_dump(mode="json", exclude_none=True)


def balanced_draw(cases: Sequence[Sequence[Hashable]], count: int, seed: int) -> list[int]:
    """Draw ``count`` of the ``cases`` (one level for each axis) so that all levels are drawn equally often. Returns
    their indices, ascending. Deterministic.

    Each step draws the case whose levels, then whose pairs of levels, were drawn least often; the seed decides between
    equals. Then cases are exchanged as long as that evens out levels, or pairs of levels if levels stay equal.
    """
    order = np.random.default_rng(seed).permutation(len(cases)).tolist()
    keys = {place: _keys(cases[place]) for place in order}
    counts: tuple[Counter[Key], Counter[Key]] = (Counter(), Counter())
    drawn: dict[int, None] = {}
    for _ in range(count):
        left = [place for place in order if place not in drawn]
        chosen = min(left, key=lambda place: _growth(counts, keys[place]))
        drawn[chosen] = None
        _add(counts, keys[chosen], 1)
    improved = True
    while improved:
        improved = False
        for out in list(drawn):
            _add(counts, keys[out], -1)
            before = _growth(counts, keys[out])
            best = min((place for place in order if place not in drawn), default=out,
                       key=lambda place: _growth(counts, keys[place]))  # fmt: skip
            if _growth(counts, keys[best]) < before:
                del drawn[out]
                drawn[best] = None
                out, improved = best, True
            _add(counts, keys[out], 1)
    return sorted(drawn)


def _keys(levels: Sequence[Hashable]) -> tuple[list[Key], list[Key]]:
    """Return the levels of a case, and its pairs of levels, as keys of counters."""
    numbered = list(enumerate(levels))
    return list(numbered), [(i, j, a, b) for (i, a), (j, b) in combinations(numbered, 2)]


def _growth(counts: Sequence[Counter[Key]], keys: Sequence[Sequence[Key]]) -> tuple[int, ...]:
    """Return how much one more case raises the sums of squared counts, of levels and of pairs; lower is more even."""
    return tuple(sum(2 * count[key] + 1 for key in own) for count, own in zip(counts, keys, strict=True))


def _add(counts: Sequence[Counter[Key]], keys: Sequence[Sequence[Key]], sign: int) -> None:
    for count, own in zip(counts, keys, strict=True):
        count.update(dict.fromkeys(own, sign))
