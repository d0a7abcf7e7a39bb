"""A registry of functions that yield probes of each primitive, and the inputs that all probes of a rank share.

A function decorated with :func:`measures` yields the probes of one shape. To add a primitive, add such a function in a
module that :mod:`executor.microbench.suite` imports.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from executor.microbench.probes.inputs import GraphSpec, Pool, StreamSpec, Subject
from executor.microbench.timing import Make, Probe, Who
from executor.microbench.world import World
from simgnn.hardware.primitives import Primitive

Numbered = tuple[int, StreamSpec | GraphSpec]
"""The seed of a graph's random numbers, and the graph."""
Shapes = Sequence[tuple[Any, ...]]
Probes = Callable[..., Iterator[Probe]]


class Bench:
    """The inputs of one rank, each built once: a pool of dense rows, and graphs."""

    def __init__(self, world: World, pool_items: int, quick: bool) -> None:
        self.world = world
        self.device = world.device
        self.pool = Pool(pool_items, world.device)
        self.quick = quick
        self._subjects: dict[Numbered, Subject] = {}

    def subject(self, graph: Numbered) -> Subject:
        if graph not in self._subjects:
            seed, spec = graph
            self._subjects[graph] = Subject(spec, seed, self.device)
        return self._subjects[graph]

    def calling(self, function: Callable[..., object], *shapes: tuple[int, ...]) -> Make:
        """Return the ``make`` of a :class:`Probe` that calls ``function`` with a matrix of the pool for each shape."""
        return lambda world: partial(function, *(self.pool.matrix(*shape) for shape in shapes))

    def compute_probes(self, who: Who = "all") -> list[Probe]:
        """Probes of all device work at one concurrency level."""
        return [
            replace(probe, who=who)
            for measure in MEASURES
            for shape in (measure.quick if self.quick else measure.full)
            for probe in measure.probes(self, *shape)
        ]


@dataclass(frozen=True)
class Measure:
    """How ``primitives`` are measured: ``probes(bench, *shape)`` for each shape of a full or of a quick calibration."""

    primitives: tuple[Primitive, ...]
    probes: Probes
    full: Shapes
    quick: Shapes


MEASURES: list[Measure] = []
"""Everything that measures device work, in the order of its registration."""


def measures(*primitives: Primitive, full: Shapes, quick: Shapes) -> Callable[[Probes], Probes]:
    """Return a decorator that registers a function which yields probes of these primitives."""

    def register(probes: Probes) -> Probes:
        MEASURES.append(Measure(primitives, probes, full, quick))
        return probes

    return register


def shapes(text: str) -> list[tuple[int, ...]]:
    """Parse a list of shapes: ``"16x16 1_000x64"`` gives [(16, 16), (1000, 64)]."""
    return [tuple(map(int, shape.split("x"))) for shape in text.split()]


def float32(**sizes: int) -> dict[str, int]:
    """Return the sizes with ``item_bytes`` = 4, as programs state the sizes of an op on float32 arrays."""
    return {**sizes, "item_bytes": 4}
