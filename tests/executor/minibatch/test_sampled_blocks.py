"""Layers over sampled blocks: against matrices, against the kernels for a rank's own graph, and reversed on a tape."""

import numpy as np
import pytest
import torch
from layer_cases import layer, randn

from executor.handlers.segments import run_on_tape
from executor.layers import LocalAdjacency, sampled
from executor.layers.sampled import SCALINGS, SampledBlock
from executor.state.model import SampledNetwork
from simgnn.errors import BackendError, ConfigError
from simgnn.graph.csr import CSR
from simgnn.model.spec import LayerSpec
from simgnn.program.kinds import Segment

SIZES = {"some": (5, 12), "no sources beside": (6, 6), "one row": (1, 4), "nothing": (0, 0)}


def _edges(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pointers and sources of a block in the order of a draw, not ascending; the last row has none."""
    draw = np.random.default_rng([seed, rows, columns])
    lists = [draw.permutation(columns)[: draw.integers(1, columns + 1)] for _ in range(rows)]
    if len(lists) > 1:
        lists[-1] = lists[-1][:0]
    lengths = [len(part) for part in lists]
    sources = np.concatenate([np.zeros(0, np.int32), *lists]).astype(np.int32)
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32), sources


def _block(case: str) -> SampledBlock:
    rows, columns = SIZES[case]
    indptr, sources = _edges(rows, columns)
    return SampledBlock(torch.from_numpy(indptr), torch.from_numpy(sources), columns)


def _value(block: SampledBlock) -> tuple[torch.Tensor, torch.Tensor]:
    return block.structure.indptr.to(torch.int32), block.structure.indices


def _matrix(block: SampledBlock, scaling: str) -> torch.Tensor:
    """The weights [n, m], written down from the definition."""
    rows, columns = block.rows, block.structure.columns
    counts = torch.zeros(rows, columns, dtype=torch.float64)
    pointers = block.structure.indptr.tolist()
    for row in range(rows):
        for place in range(pointers[row], pointers[row + 1]):
            counts[row, block.structure.indices[place]] += 1
    if scaling == "gcn":
        return (counts + torch.eye(rows, columns, dtype=torch.float64)) / (counts.sum(1, keepdim=True) + 1)
    return counts / counts.sum(1, keepdim=True).clamp(min=1) if scaling == "mean" else counts


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_sums_and_their_gradients_are_those_of_the_weights(
    scaling: str, case: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(sampled, "compiled_for", lambda rows: False)
    block = _block(case)
    rows, gradient = randn(block.structure.columns, 7), randn(block.rows, 7, seed=1)
    weights, scales = _matrix(block, scaling), block.scaling(scaling, torch.float64)
    torch.testing.assert_close(block.sum(rows, scales), weights @ rows)
    torch.testing.assert_close(block.sum_backward(gradient, scales), weights.T @ gradient)


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of gcn, mean, sum"):
        _block("some").scaling("symmetric", torch.float32)


@pytest.mark.parametrize("case", SIZES)
def test_attention_is_that_of_a_rank_with_halo_rows(case: str) -> None:
    block, made = _block(case), layer("gat", 9, 6, "transform-first", prepared_width=6, heads=2)
    rows, columns = SIZES[case]
    csr = CSR(block.structure.indptr.numpy(), block.structure.indices.numpy(), columns)
    local = LocalAdjacency(csr, np.ones(columns, np.int64), dtype=torch.float64)
    prepared = randn(columns, 6)
    own, halo = prepared[:rows], prepared[rows:] if columns > rows else None
    maximum = made.maximum(local, own, halo)
    assert torch.equal(made.maximum_sampled(block, prepared), maximum)
    parts = [own.clone().requires_grad_(), *([] if halo is None else [halo.clone().requires_grad_()])]
    expected = made.aggregate(local, *parts, maximum)
    weights = randn(rows, 8, seed=3)
    parameters = [made.attention_source, made.attention_target]
    theirs = torch.autograd.grad((expected * weights).sum(), [*parts, *parameters])
    whole = prepared.clone().requires_grad_()
    found = made.aggregate_sampled(block, whole, maximum)
    ours = torch.autograd.grad((found * weights).sum(), [whole, *parameters])
    assert torch.equal(found, expected)
    assert made.update(found).shape == (rows, 6)
    assert torch.equal(ours[0], torch.cat(theirs[: len(parts)]))
    for one, other in zip(ours[1:], theirs[len(parts) :], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["sage", "gin"])
def test_an_update_learns_through_the_first_rows_of_its_sources(kind: str) -> None:
    """The gradient of a layer's own rows has a row for each destination; the rest would be zero."""
    block = _block("some")
    rows, columns = SIZES["some"]
    spec = LayerSpec(1, kind, 4, 3, hidden=3, prepared_width=4)
    network = SampledNetwork([spec], 0, torch.float64, torch.device("cpu"))
    update, inputs = network.segment(1, Segment.UPDATE), randn(columns, 4)
    summed = network.segment(1, Segment.AGGREGATE)(_value(block), inputs)
    (output,), tape = run_on_tape(update, [summed, inputs], [True, True])
    weights = randn(rows, 3, seed=2)
    _, own = tape.backward([weights])
    leaf = inputs.clone().requires_grad_()
    expected = network.layers[0].update(summed, leaf[:rows])
    (gradient,) = torch.autograd.grad((expected * weights).sum(), [leaf])
    assert torch.equal(output, expected)
    assert own is not None
    assert own.shape == (rows, 4)
    torch.testing.assert_close(own, gradient[:rows])
    assert not gradient[rows:].any()


def test_a_segment_that_is_none_is_refused() -> None:
    network = SampledNetwork([LayerSpec(1, "gcn", 4, 3)], 0, torch.float64, torch.device("cpu"))
    with pytest.raises(BackendError, match=r"layer 1 has no segment 'maximum'"):
        network.segment(1, Segment.MAXIMUM)
