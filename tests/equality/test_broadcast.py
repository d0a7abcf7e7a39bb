"""Training by broadcasts of whole blocks is training on one process, and sends what docs/systems/cagnet.md says."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from simgnn.program.kinds import OpKind
from tests.equality.block_runs import (
    FIRST,
    agrees_with_one_process,
    block_case,
    broadcast_bytes,
    example,
    nothing_is_lost,
    parameters,
)
from tests.equality.cases import Case
from tests.equality.conftest import Bench

WAYS: Mapping[str, tuple[str, ...]] = {
    "faithful": (FIRST,),
    "narrow": ("communication.resend_inputs=false",),
    "saved sum": (FIRST, "communication.weight_gradient=saved-sum"),
    "transform first": ("model.order=transform-first",),
    "sent once": (FIRST, "communication.resend_inputs=false"),
    "kept blocks": (FIRST, "communication.resend_inputs=false", "model.hoist=never"),
    "one block ahead": (FIRST, "communication.blocks_ahead=1"),
}
QUICK = [
    ("gcn", 1, "faithful"), ("gcn", 2, "faithful"), ("sage", 3, "faithful"), ("gin", 4, "faithful"),
    ("sage", 4, "narrow"), ("gcn", 2, "saved sum"), ("gin", 2, "sent once"), ("gat", 1, "narrow"),
    ("gat", 4, "transform first"),
]  # fmt: skip
WHOLE = [
    (model, ranks, way)
    for model, ranks, way in itertools.product(("gcn", "sage", "gin", "gat"), (1, 2, 3, 4), WAYS)
    if (model, way) not in (("gin", "transform first"), ("gin", "saved sum"))
    and not (model == "gat" and FIRST in WAYS[way])
    and (model, ranks, way) not in QUICK
]


@pytest.mark.parametrize(("model", "ranks", "way"), QUICK)
def test_some_ways_agree_with_one_process(model: str, ranks: int, way: str, bench: Bench) -> None:
    agrees_with_one_process(bench, block_case(model, ranks, *WAYS[way]))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks", "way"), WHOLE)
def test_every_way_agrees_with_one_process(model: str, ranks: int, way: str, bench: Bench) -> None:
    agrees_with_one_process(bench, block_case(model, ranks, *WAYS[way]))


@pytest.mark.slow
@pytest.mark.parametrize("permutation", ["identity", "random", "degree-balanced"])
def test_any_order_of_vertices_agrees_with_one_process(permutation: str, bench: Bench) -> None:
    chosen = f"partition.permutation={permutation}"
    agrees_with_one_process(bench, block_case("gcn", 3, "model.layers=3", chosen))
    agrees_with_one_process(bench, block_case("gcn", 3, FIRST, chosen, graph="communities-multilabel"))


@pytest.mark.slow
def test_blocks_of_any_sizes_agree_with_one_process(bench: Bench) -> None:
    agrees_with_one_process(bench, block_case("sage", 3, FIRST, "model.layers=3", partition="metis"))


@pytest.mark.realdata
@pytest.mark.slow
@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_sparse_features_count_as_dense(model: str, bench: Bench, data_dir: Path) -> None:
    agrees_with_one_process(bench, block_case(model, 2, FIRST, graph="cora"))


def test_a_block_ahead_changes_no_bit(bench: Bench) -> None:
    bulk = bench.run(block_case("sage", 3, *WAYS["faithful"]))
    ahead = bench.run(block_case("sage", 3, *WAYS["one block ahead"]))
    assert torch.equal(parameters(ahead), parameters(bulk)), "the order of sums is the same"
    assert all(rank["serial"] for rank in bulk.ranks), "one op after another"
    assert not any(rank["serial"] for rank in ahead.ranks)


@pytest.mark.parametrize("model", ["sage", "gin"])
def test_one_rank_broadcasts_nothing_and_changes_no_bit(model: str, bench: Bench) -> None:
    """docs/systems/cagnet.md: the plain sum over one block, in the same order of additions."""
    saved = () if model == "gin" else ("communication.weight_gradient=saved-sum",)
    alone = bench.run(block_case(model, 1, FIRST, *saved))
    assert not any(op.kind is OpKind.BROADCAST for _, op in alone.plan.program.ops)
    plain = bench.run(Case("communities", model, "block-row", 1, extra=(FIRST, "model.hoist=never")))
    assert torch.equal(parameters(alone), parameters(plain))


def test_gradients_are_those_of_finite_differences(bench: Bench) -> None:
    """docs/systems/cagnet.md: the loss of a dense model, written in NumPy."""
    finished = bench.run(block_case("gcn", 2, FIRST, graph="small"))
    graph, first = bench.graph("small"), finished.ranks[0]
    degree = graph.csr.degrees()
    whole = np.zeros((graph.vertices,) * 2)
    whole[np.repeat(np.arange(graph.vertices), degree), graph.csr.indices] = 1
    root = 1 / np.sqrt(degree + 1)
    whole = root[:, None] * (whole + np.eye(graph.vertices)) * root
    shapes = [(12, 16), (16,), (16, 5), (5,)]
    assert graph.train_mask is not None
    rows, labels = np.flatnonzero(graph.train_mask), np.asarray(graph.labels)[graph.train_mask]

    def loss(flat: np.ndarray) -> float:
        parts = np.split(flat, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
        weights = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        hidden = np.maximum(whole @ np.asarray(graph.features, dtype=np.float64) @ weights[0] + weights[1], 0)
        scores = (whole @ hidden @ weights[2] + weights[3])[rows]
        scores = scores - scores.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(rows)), labels]))

    start, gradient = first["initial"].numpy(), first["gradients"][0].numpy()
    step = 1e-6
    for place in np.random.default_rng(0).choice(len(start), 60, replace=False):
        move = np.zeros_like(start)
        move[place] = step
        slope = (loss(start + move) - loss(start - move)) / (2 * step)
        assert gradient[place] == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_the_example_of_the_text(bench: Bench) -> None:
    assert broadcast_bytes(bench.run(example())).tolist() == [276_000] * 4, "each rank receives 207 000"
    once = broadcast_bytes(bench.run(example("communication.resend_inputs=false")))
    assert once.tolist() == [4 * 1000 * (32 + 16 + 5), *[4 * 1000 * (16 + 5)] * 3]
    saved = broadcast_bytes(bench.run(example("communication.weight_gradient=saved-sum")))
    assert saved.tolist() == [4 * 1000 * (32 + 16 + 16)] * 4


@pytest.mark.parametrize(
    "wanted",
    [
        block_case("gcn", 2, FIRST),
        block_case("gin", 4, FIRST, graph="small"),
        block_case("sage", 4, *WAYS["narrow"]),
        block_case("gcn", 3, *WAYS["kept blocks"], graph="small"),
        block_case("gat", 3, "communication.blocks_ahead=1", "model.heads=2", graph="small"),
    ],
    ids=lambda one: one.name,
)
def test_nothing_is_lost_on_the_way(wanted: Case, bench: Bench) -> None:
    nothing_is_lost(bench.run(wanted), {})
