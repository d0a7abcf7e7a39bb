"""With dropout and ELU, too, training on ranks is training on one process: same masks whatever the partition."""

import pytest

from tests.equality.cases import Case
from tests.equality.conftest import Bench

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

LIMIT = 1e-9
DROPPED = ("model.dropout=0.5", "model.layers=3", "model.hidden=[20,8]")
ELU = ("model.activation=elu",)
BLOCKS = ("communication.kind=block-broadcast",)
HOISTED = ("model.layers=2", "model.hidden=16")

QUICK = [
    Case("communities", "gcn", "random", 1, extra=DROPPED),
    Case("communities", "gcn", "metis", 4, extra=DROPPED),
    Case("communities", "sage", "ebv", 3, extra=(*DROPPED, *ELU)),
    Case("communities", "gat", "random", 2, extra=(*DROPPED, *ELU)),
]
WHOLE = [
    *(
        Case("communities", model, partition, ranks, extra=(*DROPPED, *function))
        for model in ("gcn", "sage", "gin", "gat")
        for partition in ("metis", "ebv")
        for ranks in (2, 4)
        for function in ((), ELU)
    ),
    *(Case("communities", model, "random", 2, extra=(*DROPPED, *HOISTED)) for model in ("gcn", "sage", "gin")),
    *(Case("communities", model, "block-row", 4, extra=(*DROPPED, *BLOCKS)) for model in ("gcn", "sage", "gin", "gat")),
    Case("communities", "sage", "ebv", 4, extra=(*DROPPED, "communication.exchange=host-aggregated"), hosts=2),
    Case("communities-multilabel", "gcn", "metis", 3, extra=("model.dropout=0.1", *ELU)),
]


def _judge(case: Case, bench: Bench) -> None:
    wrong = {name: value for name, value in bench.errors(case).items() if not value <= LIMIT}
    assert not wrong, f"{case.name}: above {LIMIT:g}: {wrong}"


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_some_runs_with_dropout(case: Case, bench: Bench) -> None:
    _judge(case, bench)


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_all_runs_with_dropout(case: Case, bench: Bench) -> None:
    _judge(case, bench)


def test_epochs_drop_differently_evaluations_nothing_and_a_share_of_zero_is_no_op(bench: Bench) -> None:
    short = ("train.epochs=3", "train.learning_rate=1e-9")
    cases = [Case("communities", "gcn", "random", 1, extra=(*short, *more)) for more in ((), ("model.dropout=0.0",))]
    none, zero = (bench.run(case) for case in cases)
    assert none.plan.digest == zero.plan.digest
    assert none.ranks[0]["losses"] == zero.ranks[0]["losses"]
    assert "vertices" not in none.plan.program.buffers
    dropped = bench.run(Case("communities", "gcn", "random", 1, extra=(*short, "model.dropout=0.5")))
    losses = dropped.ranks[0]["losses"]
    assert max(losses) - min(losses) > 1e-4, "parameters hardly move, masks do"
    evaluated = [one.ranks[0]["evaluations"][2] for one in (none, dropped)]
    assert evaluated[1] == pytest.approx(evaluated[0], rel=1e-6), "nothing is dropped in an evaluation"
