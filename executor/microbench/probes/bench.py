"""What measures each primitive, and the inputs that all measurements of a rank share.

A function under :func:`measures` yields the probes of one shape. Adding a primitive means adding such a function, in a
module that :mod:`executor.microbench.suite` imports.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executor.microbench.probes.graphs import GraphSpec, Subject
from executor.microbench.probes.index_streams import StreamSpec
from executor.microbench.probes.inputs import Pool
from executor.microbench.timing import Probe, Who
from executor.microbench.world import World
from simgnn.hardware.primitives import Primitive

Numbered = tuple[int, StreamSpec | GraphSpec]
"""A graph to make, with the seed of its random numbers."""
Shapes = Sequence[tuple[Any, ...]]


class Bench:
    """The inputs of one rank, each built once: a pool of dense rows, and graphs."""

    def __init__(self, world: World, pool_items: int, quick: bool) -> None:
        self.world = world
        self.device = world.device
        self.pool = Pool(pool_items, world.device)
        self.quick = quick
        self._subjects: dict[Numbered, Subject] = {}

    def subject(self, graph: Numbered) -> Subject:
        """A graph, and what is made of it."""
        if graph not in self._subjects:
            seed, spec = graph
            self._subjects[graph] = Subject(spec, seed, self.device)
        return self._subjects[graph]

    def compute_probes(self, who: Who = "all") -> list[Probe]:
        """Probes of all device work at one concurrency level."""
        return [
            replace(probe, who=who)
            for measure in MEASURES
            for shape in measure.shapes(self.quick)
            for probe in measure.probes(self, *shape)
        ]


@dataclass(frozen=True)
class Measure:
    """How ``primitives`` are measured: ``probes(bench, *shape)`` for each shape of a full or of a quick calibration."""

    primitives: tuple[Primitive, ...]
    probes: Callable[..., Iterable[Probe]]
    full: Shapes
    quick: Shapes

    def shapes(self, quick: bool) -> Shapes:
        """The shapes of one calibration."""
        return self.quick if quick else self.full


MEASURES: list[Measure] = []
"""Everything that measures device work, in the order of its registration."""
Probes = Callable[..., Iterator[Probe]]


def measures(*primitives: Primitive, full: Shapes, quick: Shapes) -> Callable[[Probes], Probes]:
    """Register a function as what measures these primitives."""

    def register(probes: Probes) -> Probes:
        MEASURES.append(Measure(primitives, probes, full, quick))
        return probes

    return register


def float32(**sizes: int) -> dict[str, int]:
    """Sizes as programs state them for float32 arrays."""
    return {**sizes, "item_bytes": 4}
