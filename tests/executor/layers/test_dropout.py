"""Dropout: masks are pure functions that look random, both kernels draw the same ones, gradients go where rows went.

That any ranks, partition, cache and window train alike with it: tests/equality/test_dropped.py, test_mini_batch_oracle.
"""

from itertools import combinations, pairwise

import pytest
import torch
from layer_cases import layer, randn

from executor.kernels.dropout import drop_out, factors
from executor.kernels.epilogue import activation_backward, bias_activation
from executor.layers.tape import Tape
from simgnn.model.spec import STEPS, dropped_steps, kept_share
from simgnn.sampling.draw.seeds import dropout_seed, hash64, layer_key

HALF = STEPS // 2


def kept(vertices: int = 300, width: int = 40, seed: int = 0, epoch: int = 0, index: int = 1, dropped: int = HALF):
    """Which elements of rows 0..vertices stay, bool [vertices, width]."""
    key = layer_key(dropout_seed(seed, epoch), index)
    return factors(torch.arange(vertices), width, key, dropped, torch.float64) > 0


@pytest.mark.parametrize("share", [0.5, 0.1, 0.93, 1 / STEPS, 1 - 1 / STEPS])
def test_the_share_that_is_kept_is_the_one_that_was_asked_for(share: float) -> None:
    """Over a million elements within five standard deviations, and each of them grows so that the mean stays."""
    steps = dropped_steps(share)
    assert kept_share(steps) == 1 - steps / STEPS
    found = kept(5000, 200, dropped=steps)
    expected = found.numel() * kept_share(steps)
    spread = (expected * (1 - kept_share(steps))) ** 0.5
    assert abs(int(found.sum()) - expected) <= 5 * spread
    values = factors(torch.arange(9), 4, 1, steps, torch.float64).unique()
    assert set(values.tolist()) <= {0.0, 1 / kept_share(steps)}


def test_no_row_column_epoch_or_layer_is_dropped_more_than_chance_has_it() -> None:
    """Chi-square of the counts by row and by column, and over 200 seeds that of each mask's total."""
    found = kept(2000, 100).double()
    for counts, trials in ((found.sum(0), 2000), (found.sum(1), 100)):
        chi = float(((counts - trials / 2) ** 2 / (trials / 4)).sum())
        degrees = len(counts)
        assert abs(chi - degrees) <= 5 * (2 * degrees) ** 0.5
    totals = torch.tensor([float(kept(50, 20, seed=seed).sum()) for seed in range(200)])
    chi = float(((totals - 500) ** 2 / 250).sum())
    assert abs(chi - 200) <= 5 * (2 * 200) ** 0.5


def test_masks_of_different_places_have_nothing_in_common() -> None:
    """Of seeds, epochs, layers, batches and workers; of neighbouring rows and columns, all four parts of a number."""
    size = 300, 40
    batches = [
        factors(torch.arange(300), 40, layer_key(dropout_seed(0, 0, at), 1), HALF, torch.float64) > 0
        for at in ((0, 0), (0, 1), (1, 0))
    ]
    masks = [kept(*size), kept(*size, seed=1), kept(*size, epoch=1), kept(*size, index=2), *batches]
    for one, other in combinations(masks, 2):
        assert abs(int((one == other).sum()) - 6000) <= 5 * 3000**0.5
    wide = kept(3000, 12)
    for one, other in (*pairwise(wide.T), (wide[:, 0], wide[:, 4]), (wide[:-1, 0], wide[1:, 0])):
        assert abs(int((one == other).sum()) - len(one) / 2) <= 5 * (len(one) / 4) ** 0.5


def test_seeds_are_those_of_the_specification() -> None:
    assert dropout_seed(7, 3, (2, 5)) == hash64("drop", 7, 2, 3, 5)
    assert dropout_seed(7, 3) == hash64("drop", 7, 3)
    assert layer_key(11, 2) == hash64("layer", 11, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(700, 33), (5, 4), (3, 1), (0, 7), (4, 0)])
def test_the_compiled_kernel_gives_the_bits_of_torch(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    draw = torch.Generator().manual_seed(1)
    vertices = torch.randint(0, 2**40, (shape[0],), generator=draw)
    rows = torch.randn(*shape, generator=draw, dtype=dtype)
    for key in (0, 5, 2**63 + 12345, 2**64 - 1):
        ours = rows.clone()
        assert drop_out(ours, vertices, key, 20_000) is ours
        assert torch.equal(ours, rows * factors(vertices, shape[1], key, 20_000, dtype))


def test_the_number_of_threads_changes_no_bit() -> None:
    rows, before, found = randn(700, 33).float(), torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(drop_out(rows.clone(), torch.arange(700), 3, HALF))
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_rows_that_no_kernel_is_compiled_for_get_the_same_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block; that is what another device does."""
    monkeypatch.setattr("executor.kernels.dropout.BLOCK_ELEMENTS", 100)
    rows, vertices = torch.ones(50, 9, dtype=torch.float16), torch.arange(50) * 3
    assert torch.equal(drop_out(rows, vertices, 4, HALF) > 0, factors(vertices, 9, 4, HALF, torch.float32) > 0)


def test_an_element_depends_on_its_vertex_and_column_alone() -> None:
    """Not on where its row lies, nor on how many there are, nor on the width."""
    whole, some = factors(torch.arange(100), 24, 9, HALF, torch.float64), torch.tensor([41, 3, 99])
    assert torch.equal(factors(some, 10, 9, HALF, torch.float64), whole[some, :10])


def test_nan_stays_nan() -> None:
    assert torch.isnan(drop_out(torch.full((20, 9), float("nan")), torch.arange(20), 3, HALF)).all()


@pytest.mark.parametrize("function", ["relu", "elu"])
@pytest.mark.parametrize(("kind", "order"), [("gcn", "transform-first"), ("sage", "aggregate-first"), ("gat", "")])
def test_gradients_are_those_of_autograd(kind: str, order: str, function: str) -> None:
    """An update on a tape, dropped in place, then reversed from a gradient that was dropped in place, as ops do it."""
    heads = 1 if kind == "gat" else 0
    made = layer(kind, 6, 5, order or "transform-first", prepared_width=5, heads=heads, function=function, dropout=0.4)
    width = 6 if order == "aggregate-first" else 5 + heads
    vertices, key, dropped = torch.arange(40, 52), 77, made.spec.dropped
    inputs = [randn(12, width).abs_() if heads else randn(12, width)]
    inputs += [randn(12, 6, seed=1)] if made.spec.uses_own_rows else []
    incoming = randn(12, 5, seed=2)
    with torch.no_grad():
        tape = Tape(inputs)
        out = made.update(*inputs, call=tape)
        tape.end([out])
        drop_out(out, vertices, key, dropped)
        taped = [out, *tape.backward([drop_out(incoming.clone(), vertices, key, dropped)])]
        taped += [parameter.grad for parameter in made.parameters() if parameter.grad is not None]
    made.zero_grad(set_to_none=True)
    leaves = [rows.clone().requires_grad_() for rows in inputs]
    plain = layer(kind, 6, 5, order or "transform-first", prepared_width=5, heads=heads, function=function)
    again = plain.update(*leaves) * factors(vertices, 5, key, dropped, torch.float64)
    again.backward(incoming)
    wanted = [again.detach(), *(leaf.grad for leaf in leaves)]
    wanted += [parameter.grad for parameter in plain.parameters() if parameter.grad is not None]
    assert len(taped) == len(wanted)
    for got, expected in zip(taped, wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    assert (taped[0] == 0).sum() > 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_elu_backward_is_torchs(dtype: torch.dtype, share: float) -> None:
    """From the output alone, also after dropout kept ``share`` of it; at 0 the derivative is 1."""
    rows = torch.cat((randn(60, 7), torch.zeros(1, 7), torch.full((1, 7), -1e-7))).to(dtype)
    gradient = randn(62, 7, seed=3).to(dtype)
    leaf = rows.double().requires_grad_()
    torch.nn.functional.elu(leaf).backward(gradient.double())
    output = bias_activation(rows, torch.zeros(7, dtype=dtype), "elu") / share
    found, sums = activation_backward(gradient, output, activation="elu", kept=share)
    torch.testing.assert_close(found, leaf.grad.to(dtype), rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=2e-3)
    torch.testing.assert_close(sums, found.sum(0), rtol=1e-2 if dtype == torch.float16 else 1e-5, atol=1e-2)
    if dtype == torch.float64:
        torch.testing.assert_close(found, leaf.grad, rtol=1e-14, atol=1e-15)
