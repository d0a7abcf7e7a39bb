"""Training on P ranks is training on one process, whatever the partition, model, graph and order of operations.

The reference is full-graph DGL in one process (``tests.reference``), started from the same parameters.
float64 must agree in losses of all epochs, gradients and parameters; float32 in losses, first gradients and, with SGD,
parameters: Adam divides small gradients by themselves, so that rounding decides the sign of a step.
"""

import itertools

import pytest

from executor.state.plan import RunPlan
from tests.equality.cases import REAL, TRAININGS, Case
from tests.equality.conftest import Bench

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

LIMITS = {"float64": 1e-5, "float32": 1e-3}
RANKS = (1, 2, 4)
PARTITIONS = ("random", "metis", "block-row")
MODELS = ("gcn", "sage", "gin", "gat")
EVERYWHERE = ("losses", "first gradients", "last gradients", "parameters")
JUDGED = {
    "float64-adam": EVERYWHERE,
    "float32-adam": ("losses", "first gradients"),
    "float32-sgd": ("losses", "first gradients", "parameters"),
}

QUICK = [
    Case("communities", "gcn", "random", 1),
    Case("communities", "gcn", "metis", 2),
    Case("communities", "sage", "block-row", 2),
    Case("communities", "gin", "random", 4),
    Case("communities", "gcn", "metis", 4, "float32-adam"),
    Case("communities", "sage", "random", 2, "float32-sgd"),
    Case("cora", "gcn", "metis", 2),
    Case("cora", "gin", "metis", 2),
    Case("communities", "gat", "metis", 3),
]
WHOLE = [
    Case(graph, model, partition, ranks, training)
    for graph, model, training, ranks, partition in itertools.product(
        ("communities", *REAL), MODELS, TRAININGS, RANKS, PARTITIONS
    )
]
VARIANTS = [
    ("three layers", "communities", ("gcn", "sage", "gin", "gat"), ("model.layers=3",)),
    ("two heads of two widths", "communities", ("gat",), ("model.layers=3", "model.hidden=[20,6]", "model.heads=2")),
    ("aggregate first", "communities", ("gcn", "sage"), ("model.order=aggregate-first", "model.layers=3")),
    ("transform first", "communities", ("gcn", "sage"), ("model.order=transform-first", "model.layers=3")),
    ("inputs travel", "communities", ("gcn", "sage", "gin"), ("communication.rows=input",)),
    ("transformed rows travel", "communities", ("gcn", "sage", "gat"), ("communication.rows=transformed",)),
    ("sparse inputs travel", "cora", ("gcn", "sage", "gin", "gat"), ("communication.rows=input",)),
    ("transformed sparse rows travel", "cora", ("gcn", "sage"), ("communication.rows=transformed",)),
    ("sparse sums hoisted", "cora", ("gcn", "sage"), ("model.order=aggregate-first",)),
    ("nothing hoisted", "communities", ("gcn", "sage", "gin"), ("model.hoist=never", "model.order=aggregate-first")),
    ("inputs sent again", "communities", ("gcn", "sage", "gin"), ("communication.resend_inputs=true",)),
    ("several labels", "communities-multilabel", ("gcn", "sage", "gin", "gat"), ()),
    ("several labels, three layers", "communities-multilabel", ("gcn",), ("model.layers=3", "model.hidden=[20,9]")),
    ("momentum and decay", "communities", ("sage",), (
        "train.optimizer=sgd", "train.momentum=0.9", "train.weight_decay=0.01", "train.learning_rate=0.1",
    )),
    ("one layer", "cora", ("gcn", "sage", "gin"), ("model.layers=1",)),
    ("local rows as they come", "communities", ("gcn",), ("partition.reorder=none",)),
]  # fmt: skip


def _parameters(cases: list[Case]) -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.realdata] if case.graph in REAL else []) for case in cases
    ]


def _judge(bench: Bench, case: Case) -> None:
    found = bench.errors(case)
    limit = LIMITS[case.training.split("-")[0]]
    assert found["initial"] == 0, f"{case.name}: the two did not start alike"
    wrong = {name: found[name] for name in JUDGED[case.training] if not found[name] <= limit}
    if wrong:
        plan = RunPlan.open(bench.root / case.name)
        own = bench.references.rounding(case.graph, bench.graph(case.graph), plan)
        told = ", ".join(f"{name} {value:.2e}" for name, value in wrong.items())
        pytest.fail(f"{case.name}: above {limit:g}: {told}; the reference's own losses are {own:.2e} from its float64")


def _need(case: Case, request: pytest.FixtureRequest) -> None:
    if case.graph in REAL:
        request.getfixturevalue("data_dir")


@pytest.mark.parametrize("case", _parameters(QUICK))
def test_some_of_the_matrix(case: Case, bench: Bench, request: pytest.FixtureRequest) -> None:
    _need(case, request)
    _judge(bench, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", _parameters(WHOLE))
def test_the_whole_matrix(case: Case, bench: Bench, request: pytest.FixtureRequest) -> None:
    _need(case, request)
    _judge(bench, case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    _parameters(
        [
            Case(graph, model, partition, ranks, extra=extra)
            for _, graph, models, extra in VARIANTS
            for model in models
            for ranks, partition in ((2, "metis"), (4, "random"))
        ]
    ),
)
def test_every_way_to_compute_a_layer(case: Case, bench: Bench, request: pytest.FixtureRequest) -> None:
    _need(case, request)
    _judge(bench, case)
