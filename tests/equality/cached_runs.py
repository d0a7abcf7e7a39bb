"""Runs whose caches decide what is sent: their settings, and what they decided."""

from dataclasses import dataclass
from functools import lru_cache

from simgnn.program.program import Program
from simgnn.record.activity import decisions_of, read_activity
from simgnn.record.rundir import RunDirectory
from tests.equality.cases import Case
from tests.equality.conftest import Bench, Finished
from tests.equality.counting import Decided

FIXED = ("freshness.kind=adaptive-vertex", "freshness.epsilon=0", "freshness.adapt=false")
CACHE = ("freshness.kind=adaptive-vertex", "freshness.epsilon=0.03")
EIGHT_BITS = ("codec.kind=linear",)
TRANSFORMED = ("communication.rows=transformed",)


@dataclass(frozen=True)
class Recorded:
    """A run, its program and what it decided."""

    finished: Finished
    program: Program
    decided: Decided


class Runs:
    """Each case is carried out once."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.of = lru_cache(None)(self._of)

    def _of(self, case: Case) -> Recorded:
        finished = self.bench.run(case)
        path = RunDirectory(finished.folder).activity
        decided = decisions_of(read_activity(path), case.ranks) if path.is_file() else {}
        return Recorded(finished, finished.plan.program, decided)


def case(*extra: str, ranks: int = 2, model: str = "gcn", graph: str = "communities") -> Case:
    """A run on a METIS edge-cut."""
    return Case(graph, model, "metis", ranks, extra=extra)
