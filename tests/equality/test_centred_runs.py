"""Training on sparse features less their mean is training on the dense rows that they stand for."""

from dataclasses import replace

import pytest

from simgnn.program.program import Program
from tests.equality.cases import Case
from tests.equality.conftest import Bench

LIMIT = 1e-10
CACHED = (
    "communication.kind=master-mirror",
    "model.order=transform-first",
    "freshness.kind=adaptive-vertex",
    "freshness.epsilon=0.03",
    "codec.kind=linear",
)
"""What cdfgnn does; of rows, both ways must select and send the same."""
FIRST = ("model.order=aggregate-first",)

QUICK = [
    Case("small-centred", "gcn", "random", 2, extra=FIRST),
    Case("small-centred", "gcn", "ebv", 2, extra=CACHED),
    Case("small-centred", "gin", "ebv", 2),
]
WHOLE = [
    *(Case("small-centred", model, "random", ranks) for model in ("gcn", "sage", "gin", "gat") for ranks in (1, 2)),
    *(
        Case("small-centred", model, "random", 2, extra=("communication.rows=transformed",))
        for model in ("gcn", "sage", "gat")
    ),
    *(Case("small-centred", model, cut, 2, extra=FIRST) for model in ("gcn", "sage") for cut in ("random", "ebv")),
    *(Case("small-centred", model, "ebv", ranks, extra=CACHED) for model in ("gcn", "sage") for ranks in (1, 2)),
    *(Case("small-centred", "gat", "ebv", ranks, extra=CACHED[:-1]) for ranks in (1, 2)),
    *(Case("small-centred", model, "ebv", 2) for model in ("gcn", "sage", "gin", "gat")),
    Case("small-centred", "gcn", "block-row", 2, extra=("communication.kind=block-broadcast",)),
    Case("small-centred", "tests.executor.layers.own_layers:Plain", "random", 2),
]


def _agrees(case: Case, bench: Bench) -> Program:
    """Compare with the same run on dense float64 rows; the program of the sparse one."""
    ours, theirs = bench.run(case), bench.run(replace(case, graph="small-centred-dense"))
    for mine, other in zip(ours.ranks, theirs.ranks, strict=True):
        assert mine["initial"].equal(other["initial"])
        assert mine["losses"] == pytest.approx(other["losses"], rel=LIMIT)
        assert mine["losses"][-1] < mine["losses"][0], "nothing is learned"
        off = (mine["parameters"] - other["parameters"]).norm() / other["parameters"].norm()
        assert float(off) <= LIMIT, f"parameters are off by {off:.1e}"
        counts = zip(sorted(mine["evaluations"].items()), sorted(other["evaluations"].items()), strict=True)
        assert all(one == pytest.approx(two, rel=LIMIT) for (_, one), (_, two) in counts)
    return ours.plan.program


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_some_runs_are_those_of_dense_rows(case: Case, bench: Bench) -> None:
    program = _agrees(case, bench)
    assert program.buffers["features"].dtype == "uint8", "kept sparse"
    assert program.buffers["feature_mean"].width == 12


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_all_runs_are_those_of_dense_rows(case: Case, bench: Bench) -> None:
    program = _agrees(case, bench)
    dense = "block-broadcast" in case.name or ":" in case.model
    assert ("feature_mean" in program.buffers) != dense
