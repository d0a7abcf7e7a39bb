"""Training chunk by chunk, with rows on hosts, is training on one process: whatever ranks, chunks, transfers, models.

The grid is drawn by a committed seed, with all pairs of values among its cases; the reference is full-graph DGL."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

from tests.equality.cases import Case
from tests.equality.conftest import Bench

SEED, CASES, EPOCHS = 26, 200, 5
LIMITS = {"float64-adam": 1e-12, "float32-sgd": 1e-5}
AXES: dict[str, tuple[Any, ...]] = {
    "ranks": (1, 2, 3, 4),
    "chunks": (1, 2, 3, 8),
    "dedup": ("p2p", "p2p+reuse"),
    "intermediates": ("hybrid", "recompute"),
    "model": ("gcn", "sage", "gin", "gat"),
    "layers": (2, 3),
    "dropout": (0.0, 0.3),
    "training": tuple(LIMITS),
}
KEPT_ORDER = 'partition.candidates=["initial"]'
Values = tuple[Any, ...]


def drawn_cases(count: int) -> list[Values]:
    """Draw different combinations, each the one of some random ones that adds most pairs of values not yet there."""
    random, found = np.random.default_rng(SEED), list[Values]()
    every = [one for one in product(*AXES.values()) if (one[3], one[4]) != ("hybrid", "gat")]
    seen: set[Any] = set()
    while len(found) < count:
        some = [every[place] for place in random.choice(len(every), 40, replace=False)]
        best = max(some, key=lambda one: len(_pairs(one) - seen))
        if best not in found:
            found.append(best)
            seen |= _pairs(best)
    return found


def _pairs(values: Values) -> set[Any]:
    return set(combinations(enumerate(values), 2))


def case_of(values: Values) -> Case:
    ranks, chunks, dedup, intermediates, model, layers, dropout, training = values
    extra = (
        f"train.epochs={EPOCHS}", f"partition.chunks={chunks}", f"communication.dedup={dedup}",
        f"placement.intermediates={intermediates}", f"model.layers={layers}", f"model.dropout={dropout}", KEPT_ORDER,
    )  # fmt: skip
    return Case("small", model, "metis-chunks", ranks, training, extra, system="hongtu")


def in_memory(values: Values) -> Case:
    """Return the case of the same training in one process, in memory."""
    *_, model, layers, dropout, training = values
    extra = (f"train.epochs={EPOCHS}", f"model.layers={layers}", f"model.dropout={dropout}")
    return Case("small", model, "metis", 1, training, extra)


CASES_DRAWN = drawn_cases(CASES)
QUICK = 12


def test_the_grid_has_all_pairs_of_values() -> None:
    wanted = {pair for one in product(*AXES.values()) for pair in _pairs(one)}
    names = list(AXES)
    never = ((names.index("intermediates"), "hybrid"), (names.index("model"), "gat"))
    assert set().union(*map(_pairs, CASES_DRAWN)) == wanted - {never}
    assert len(set(CASES_DRAWN)) == CASES


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(values, id="-".join(map(str, values)), marks=[pytest.mark.slow] if place >= QUICK else [])
        for place, values in enumerate(CASES_DRAWN)
    ],
)
def test_chunks_train_as_one_process(bench: Bench, values: Values) -> None:
    case = case_of(values)
    found = bench.errors(case)
    judged = ["losses", "first gradients", "parameters"]
    if case.training.startswith("float64"):
        judged.append("last gradients")
    limit = LIMITS[case.training]
    wrong = {name: found[name] for name in judged if not found[name] <= limit}
    if not wrong.keys() <= {"parameters"}:
        pytest.fail(f"{case.name}: {wrong}")
    if wrong:  # Adam divides gradients that are nothing but rounding by themselves: as much in one process, in memory
        alone = bench.errors(in_memory(values))["parameters"]
        assert wrong["parameters"] <= 2 * alone, f"{case.name}: {wrong}, in memory {alone}"


VARIANTS = [
    ("sparse features", "small-sparse", "gcn", ()),
    ("centred features", "small-centred", "sage", ()),
    ("several labels", "communities-multilabel", "gin", ("train.learning_rate=0.001",)),
    ("two heads of two widths", "small", "gat", ("model.layers=3", "model.hidden=[20,6]", "model.heads=2")),
    ("momentum and decay", "small", "sage", ("train.optimizer=sgd", "train.momentum=0.9", "train.weight_decay=0.01")),
    ("one layer", "small", "gcn", ("model.layers=1",)),
]


@pytest.mark.parametrize(
    ("graph", "model", "extra"),
    [
        pytest.param(*rest, id=name, marks=[pytest.mark.slow] if place > 1 else [])
        for place, (name, *rest) in enumerate(VARIANTS)
    ],
)
def test_other_inputs_losses_and_rules(bench: Bench, graph: str, model: str, extra: tuple[str, ...]) -> None:
    settings = (f"train.epochs={EPOCHS}", "partition.chunks=3", KEPT_ORDER, *extra)
    found = bench.errors(Case(graph, model, "metis-chunks", 3, "float64-adam", settings, system="hongtu"))
    assert all(error <= LIMITS["float64-adam"] for error in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_ranks_of_two_hosts(bench: Bench, model: str) -> None:
    settings = (f"train.epochs={EPOCHS}", "partition.chunks=3", KEPT_ORDER)
    found = bench.errors(Case("small", model, "metis-chunks", 4, "float64-adam", settings, hosts=2, system="hongtu"))
    assert all(error <= LIMITS["float64-adam"] for error in found.values()), found


def test_a_layer_of_the_users_own(bench: Bench) -> None:
    shared = (f"train.epochs={EPOCHS}", "model.layers=3", "model.kind=tests.executor.layers.own_layers:Plain")
    settings = (*shared, "partition.chunks=3", KEPT_ORDER)
    chunked = outcome(bench, Case("small", "gcn", "metis-chunks", 2, "float64-adam", settings, system="hongtu"))
    whole = outcome(bench, Case("small", "gcn", "metis", 1, "float64-adam", shared))
    assert chunked["losses"] == pytest.approx(whole["losses"], rel=1e-12)
    off = (chunked["parameters"] - whole["parameters"]).abs().max()
    assert off <= 1e-12 * whole["parameters"].abs().max()


def test_a_layer_that_draws_is_refused(bench: Bench) -> None:
    settings = ("train.epochs=1", "model.kind=tests.executor.layers.own_layers:Drop", "partition.chunks=2", KEPT_ORDER)
    with pytest.raises(AssertionError, match=r"model\.kind: got .* gives other rows"):
        bench.run(Case("small", "gcn", "metis-chunks", 1, "float64-adam", settings, system="hongtu"))


def outcome(bench: Bench, case: Case) -> dict[str, Any]:
    return bench.run(case).ranks[0]


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    gradients = zip(one["gradients"], other["gradients"], strict=True)
    return (
        one["losses"] == other["losses"]
        and torch.equal(one["parameters"], other["parameters"])
        and all(torch.equal(first, second) for first, second in gradients)
    )


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_one_chunk_of_one_rank_is_vanilla_bit_for_bit(bench: Bench, model: str) -> None:
    shared = (f"train.epochs={EPOCHS}", "model.dropout=0.2", "partition.reorder=none")
    chunked = Case(
        "small", model, "metis-chunks", 1, "float32-sgd", (*shared, "partition.chunks=1", KEPT_ORDER), system="hongtu"
    )
    order = () if model in ("gin", "gat") else ("model.order=aggregate-first",)
    whole = Case("small", model, "metis", 1, "float32-sgd", (*shared, *order))
    assert same_bits(outcome(bench, chunked), outcome(bench, whole))


@pytest.mark.parametrize(("model", "ranks", "chunks"), [("gcn", 3, 4), ("sage", 2, 3), ("gin", 2, 3)])
def test_kept_sums_and_whole_layers_computed_again_are_alike(bench: Bench, model: str, ranks: int, chunks: int) -> None:
    def case(intermediates: str) -> Case:
        extra = (
            f"train.epochs={EPOCHS}", f"partition.chunks={chunks}", "model.layers=3", "model.dropout=0.2", KEPT_ORDER,
            f"placement.intermediates={intermediates}",
        )  # fmt: skip
        return Case("small", model, "metis-chunks", ranks, "float32-sgd", extra, system="hongtu")

    assert same_bits(outcome(bench, case("hybrid")), outcome(bench, case("recompute")))
