"""Settings in which late rows (``pipegcn``) and codes (``adaqp``) change nothing: what one process learns, and what
vanilla learns to the last bit. The reference is full-graph DGL in one process (``tests.reference``)."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from simgnn.policies.freshness.one_epoch_stale import UseLate
from tests.equality.cases import Case
from tests.equality.conftest import Bench, Finished

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

LIMITS = {"float64": 1e-12, "float32": 1e-5}
JUDGED = ("losses", "first gradients", "parameters")
MODELS = {
    "gcn": ("model.order=aggregate-first",), "sage": ("model.order=aggregate-first",), "gin": ("model.order=auto",),
    "gat": ("model.order=auto", "model.heads=2"),
}  # fmt: skip
STILL = {"one layer": ("model.layers=1",), "rate 0": ("model.layers=3", "train.learning_rate=0")}
"""Settings in which rows of the epoch before are those of this one, or none of them is late."""


def grid(*settings: Iterable[str], quick: tuple[str, ...]) -> list[Any]:
    """All combinations with models, partitions, numbers of ranks and types; those not ``quick`` are slow."""
    found = []
    for one in product(*settings, MODELS, ("metis", "random"), (1, 2, 3, 4), LIMITS):
        name = "-".join(map(str, one))
        found.append(pytest.param(*one, id=name, marks=[] if name in quick else [pytest.mark.slow]))
    assert {param.id for param in found if not param.marks} == {*quick}
    return found


def case(system: str, model: str, cut: str, ranks: int, dtype: str, *extra: str) -> Case:
    """A run of a shipped system, without its dropout, with SGD."""
    common = ("model.dropout=0", "communication.rows=input", f"train.dtype={dtype}", *MODELS[model])
    return Case("communities", model, cut, ranks, "float32-sgd", (*common, *extra), system=system)


def check_same_bits(ours: Finished, theirs: Finished) -> None:
    """Losses, gradients of all epochs and parameters are equal."""
    for mine, other in zip(ours.ranks, theirs.ranks, strict=True):
        assert mine["losses"] == other["losses"]
        assert torch.equal(mine["parameters"], other["parameters"])
        for one, another in zip(mine["gradients"], other["gradients"], strict=True):
            assert torch.equal(one, another)


def check_one_process(bench: Bench, ours: Case, dtype: str) -> None:
    """Losses, first gradients and parameters are those of one process. Float32 gradients of attention vectors are small
    differences of large numbers: the reference's own are up to 3e-5 off its float64, and no closer need ours be."""
    errors = bench.errors(ours)
    rounding = bench.rounding(ours) if dtype == "float32" else dict.fromkeys(JUDGED, 0.0)
    assert errors["initial"] == 0
    assert max(rounding[name] for name in JUDGED) < 5e-5
    limits = {name: max(LIMITS[dtype], 2 * rounding[name]) for name in JUDGED}
    assert {name: errors[name] for name in JUDGED if not errors[name] <= limits[name]} == {}


@pytest.mark.parametrize(
    ("setting", "model", "cut", "ranks", "dtype"),
    grid(STILL, quick=("rate 0-sage-metis-2-float64", "rate 0-gat-random-3-float32", "one layer-gcn-random-2-float32")),
)
def test_late_rows_that_do_not_move(bench: Bench, setting: str, model: str, cut: str, ranks: int, dtype: str) -> None:
    ours = case("pipegcn", model, cut, ranks, dtype, *STILL[setting])
    finished = bench.run(ours)
    late = any(op.action == UseLate.label for _, op in finished.plan.program.ops)
    assert late == (setting == "rate 0" and ranks > 1)
    check_same_bits(finished, bench.run(replace(ours, system="vanilla")))
    check_one_process(bench, ours, dtype)


@pytest.mark.parametrize(
    ("model", "cut", "ranks", "dtype"), grid(quick=("gcn-metis-2-float32", "gat-random-2-float64"))
)
def test_adaqp_without_codes(bench: Bench, model: str, cut: str, ranks: int, dtype: str) -> None:
    """Vanilla that sums own rows first."""
    ours = case("adaqp", model, cut, ranks, dtype, "codec.kind=none", "model.layers=3")
    theirs = case("vanilla", model, cut, ranks, dtype, "schedule.kind=pipelined", "model.layers=3")
    check_same_bits(bench.run(ours), bench.run(theirs))
    check_one_process(bench, ours, dtype)
