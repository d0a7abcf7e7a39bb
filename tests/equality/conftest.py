"""Ranks, graphs and references that cases share."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from executor.state.plan import RunPlan
from simgnn.graph.graph import Graph
from tests.equality.cases import Case, References, errors, make_graph
from tests.equality.largest import note
from tests.equality.pool import RankPool
from tests.executor.runs import prepared_run


@dataclass(frozen=True)
class Finished:
    """A run that has ended: its folder, its plan, what each rank returned."""

    folder: Path
    plan: RunPlan
    ranks: list[dict[str, Any]]


@dataclass
class Bench:
    """Carries out cases; one for the whole session."""

    root: Path
    data: Path
    config: pytest.Config
    references: References = field(default_factory=References)
    pool: RankPool = field(default_factory=RankPool)
    finished: dict[Case, Finished] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph: Callable[[str], Graph] = lru_cache(None)(lambda name: make_graph(name, self.data))

    def run(self, case: Case) -> Finished:
        """Prepare a case and carry it out, once."""
        if case not in self.finished:
            graph, folder = self.graph(case.graph), self.root / case.name
            folder = prepared_run(graph, folder, case.ranks, *case.settings(), hosts=case.hosts, system=case.system)
            self.finished[case] = Finished(folder, RunPlan.open(folder), self.pool.run(folder, case.ranks))
        return self.finished[case]

    def errors(self, case: Case) -> dict[str, float]:
        """A case against the reference; the errors are noted for the table."""
        finished = self.run(case)
        expected = self.references.of(case.graph, self.graph(case.graph), finished.plan)
        still = not finished.plan.train["learning_rate"]
        assert still or expected.losses[-1] < expected.losses[0], f"{case.name}: nothing is learned: {expected.losses}"
        first = finished.ranks[0]
        for other in finished.ranks[1:]:
            assert other["parameters"].equal(first["parameters"]), f"{case.name}: ranks hold different parameters"
            assert other["losses"] == first["losses"], f"{case.name}: ranks tell different losses"
        found = errors(first, expected)
        note(self.config, (case.training, case.model, case.graph), found)
        return found


@pytest.fixture(scope="session")
def bench(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Where cases are carried out; ends its ranks. Tests that read real graphs ask for ``data_dir`` besides."""
    data = Path(os.environ.get("SIMGNN_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
    made = Bench(tmp_path_factory.mktemp("equality"), data, pytestconfig)
    try:
        yield made
    finally:
        made.pool.close()
