"""Attention: kernels against one another, parts against the whole, gradients against differences and DGL."""

import math

import numpy as np
import pytest
import torch
from layer_cases import adjacency, graph, layer, randn, split

from executor.kernels.edges.attention import SLOPE, Attention, Scores, quotient, quotient_backward, scores_of
from executor.kernels.edges.structure import Structure
from executor.layers import LocalAdjacency
from executor.layers.attention import GAT
from simgnn.graph.csr import CSR

HEADS, PART = 3, 2
WIDTH = HEADS * PART


def made(width_in: int = 7, activation: bool = True) -> GAT:
    found = layer("gat", width_in, WIDTH, "transform-first", heads=HEADS, prepared_width=WIDTH, activation=activation)
    assert isinstance(found, GAT)
    return found


def run(module: GAT, over: LocalAdjacency, rows: torch.Tensor, halo: torch.Tensor | None = None) -> torch.Tensor:
    prepared = [module.prepare(part) for part in (rows, halo) if part is not None]
    return module.update(module.aggregate(over, *prepared, module.maximum(over, *prepared)))


def inputs(csr: CSR, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None, Scores]:
    rows = randn(csr.columns, WIDTH).to(dtype)
    scores = Scores(randn(csr.columns, HEADS, seed=1).to(dtype), randn(csr.rows, HEADS, seed=2).to(dtype))
    return rows[: csr.rows], rows[csr.rows :] if csr.columns > csr.rows else None, scores


def by_definition(csr: CSR, looped: int, rows: torch.Tensor, scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima and [N | D], edge by edge."""
    maximum = torch.full((csr.rows, HEADS), -torch.inf, dtype=rows.dtype)
    out = torch.zeros(csr.rows, WIDTH + HEADS, dtype=rows.dtype)
    for i in range(csr.rows):
        sources = csr.indices[csr.indptr[i] : csr.indptr[i + 1]].tolist() + ([i] if i < looped else [])
        found = [torch.nn.functional.leaky_relu(scores.source[j] + scores.target[i], SLOPE) for j in sources]
        if found:
            maximum[i] = torch.stack(found).amax(0)
        for j, score in zip(sources, found, strict=True):
            weight = torch.exp(score - maximum[i])
            out[i, :WIDTH] += (rows[j].view(HEADS, PART) * weight[:, None]).flatten()
            out[i, WIDTH:] += weight
    return maximum, out


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("looped", [0, 8, 20])
def test_kernels_compute_what_they_say(looped: int, dtype: torch.dtype, threads: int) -> None:
    csr, _ = split(graph(symmetric=False), 20)
    inner, halo, scores = inputs(csr, dtype)
    structure = Structure.from_csr(csr)
    kernel = Attention(structure, structure.transposed(), looped, threads)
    assert halo is not None
    maximum, expected = by_definition(csr, looped, torch.cat((inner, halo)), scores)
    torch.testing.assert_close(kernel.maximum(scores), maximum)
    torch.testing.assert_close(kernel.forward(inner, halo, scores, maximum), expected)


@pytest.mark.parametrize("ceiling", [math.inf, 0.0])
def test_the_form_for_other_devices_agrees(ceiling: float, monkeypatch: pytest.MonkeyPatch) -> None:
    csr, _ = split(graph(symmetric=False), 20)
    inner, halo, scores = inputs(csr, torch.float64)
    structure = Structure.from_csr(csr)
    kernel = Attention(structure, structure.transposed(), 12, ceiling=ceiling)
    gradient = randn(20, WIDTH + HEADS, seed=5)
    finite = kernel.maximum(scores).nan_to_num(neginf=0.0) - 0.5  # some scores are above

    def everything() -> list[torch.Tensor | None]:
        of_inner, of_halo, of_scores = kernel.backward(gradient, inner, halo, scores, finite)
        forward = kernel.forward(inner, halo, scores, finite)
        return [kernel.maximum(scores), forward, of_inner, of_halo, of_scores.source, of_scores.target]

    compiled = everything()
    monkeypatch.setattr("executor.kernels.edges.attention.compiled_for", lambda rows: False)
    for ours, theirs in zip(compiled, everything(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("compiled", [True, False])
def test_weights_relative_to_older_maxima_stay_those_of_a_softmax(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a ceiling of 0 a score far above the maximum counts as the maximum: a weight of one; others are as ever."""
    csr, _ = split(graph(symmetric=False), 20)
    inner, halo, scores = inputs(csr, torch.float64)
    assert halo is not None
    structure = Structure.from_csr(csr)
    free, kept = (Attention(structure, structure.transposed(), 12, ceiling=most) for most in (math.inf, 0.0))
    gradient = randn(20, WIDTH + HEADS, seed=5)
    if not compiled:
        monkeypatch.setattr("executor.kernels.edges.attention.compiled_for", lambda rows: False)
    true = free.maximum(scores).nan_to_num(neginf=0.0)
    for ours, theirs in zip(_parts(kept, gradient, inner, halo, scores, true),
                            _parts(free, gradient, inner, halo, scores, true), strict=True):  # fmt: skip
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    old = torch.full_like(true, -300.0)
    of_inner, of_halo, *_ = _parts(kept, gradient, inner, halo, scores, old)
    edges = torch.zeros(20, csr.columns, dtype=torch.float64)
    edges[torch.repeat_interleave(torch.arange(20), torch.from_numpy(np.diff(csr.indptr))), csr.indices.astype(int)] = 1
    edges[:12, :12] += torch.eye(12, dtype=torch.float64)
    torch.testing.assert_close(torch.cat((of_inner, of_halo)), edges.T @ gradient[:, :WIDTH])
    assert _parts(free, gradient, inner, halo, scores, old)[0].abs().max() > 1e100


def _parts(
    kernel: Attention, gradient: torch.Tensor, inner: torch.Tensor, halo: torch.Tensor, scores: Scores,
    maximum: torch.Tensor,
) -> list[torch.Tensor]:  # fmt: skip
    of_inner, of_halo, of_scores = kernel.backward(gradient, inner, halo, scores, maximum)
    assert of_halo is not None
    return [of_inner, of_halo, of_scores.source, of_scores.target]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("heads", "part"), [(1, 1), (1, 40), (3, 5), (4, 16), (2, 71)])
def test_quotients_and_their_gradients_are_those_of_autograd(
    heads: int, part: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("executor.kernels.edges.attention.compiled_for", lambda rows: False)
    sums = (randn(20, heads * part + heads).abs() + 0.5).requires_grad_()
    expected = (sums[:, : heads * part].view(20, heads, part) / sums[:, heads * part :, None]).flatten(1)
    result = quotient(sums.detach(), heads)
    torch.testing.assert_close(result, expected)
    above = randn(20, heads * part, seed=3)
    (wanted,) = torch.autograd.grad(expected, sums, above)
    torch.testing.assert_close(quotient_backward(above, sums.detach(), result), wanted)


@pytest.mark.parametrize("compiled", [True, False])
def test_scores_are_products_of_each_head_with_its_vector(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr("executor.kernels.edges.attention.compiled_for", lambda rows: False)
    rows, vectors = randn(20, WIDTH), randn(HEADS, PART, seed=1)
    torch.testing.assert_close(scores_of(rows, vectors), (rows.view(20, HEADS, PART) * vectors).sum(2))


@pytest.mark.parametrize("part", [1, 7, 16, 40, 71])
def test_heads_of_any_width_fill_registers(part: int) -> None:
    """Sums and products are made in registers of halved widths: each width against the form for other devices."""
    csr, _ = split(graph(symmetric=False), 20)
    structure, heads = Structure.from_csr(csr), 2
    kernel = Attention(structure, structure.transposed(), 12)
    rows, gradient = randn(csr.columns, heads * part), randn(20, heads * (part + 1), seed=5)
    scores = Scores(randn(csr.columns, heads, seed=1), randn(20, heads, seed=2))
    maximum = kernel.maximum(scores).nan_to_num(neginf=0.0)
    found = [kernel.forward(rows[:20], rows[20:], scores, maximum)]
    found += _parts(kernel, gradient, rows[:20], rows[20:], scores, maximum)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("executor.kernels.edges.attention.compiled_for", lambda rows: False)
        wanted = [kernel.forward(rows[:20], rows[20:], scores, maximum)]
        wanted += _parts(kernel, gradient, rows[:20], rows[20:], scores, maximum)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("symmetric", [True, False])
def test_layer_equals_that_of_dgl(symmetric: bool) -> None:
    dgl = pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    from dgl.nn import GATConv

    csr, module = graph(symmetric=symmetric), made()
    x = randn(30, 7).requires_grad_()
    targets = torch.repeat_interleave(torch.arange(30), torch.from_numpy(csr.degrees()))
    theirs = dgl.add_self_loop(dgl.graph((torch.from_numpy(csr.indices.copy()).long(), targets), num_nodes=30))
    other = GATConv(7, PART, HEADS).double()
    with torch.no_grad():
        other.fc.weight.copy_(module.weight.t())
        other.attn_l.copy_(module.attention_source)
        other.attn_r.copy_(module.attention_target)
        other.bias.copy_(module.bias)
    ours, expected = run(module, adjacency(csr), x), torch.relu(other(theirs, x).flatten(1))
    torch.testing.assert_close(ours, expected)
    weights = randn(30, WIDTH, seed=2)
    mine = [x, module.weight, module.attention_source, module.attention_target, module.bias]
    its = [x, other.fc.weight, other.attn_l, other.attn_r, other.bias]
    found = torch.autograd.grad((ours * weights).sum(), mine)
    wanted = torch.autograd.grad((expected * weights).sum(), its)
    for one, two, shape in zip(found, wanted, mine, strict=True):
        torch.testing.assert_close(one, two.t() if shape is module.weight else two.view_as(shape))


def test_gradients_are_those_of_differences() -> None:
    csr, degree = split(graph(), 20)
    module, over = made(activation=False), adjacency(csr, degree)
    own, halo = randn(20, 7).requires_grad_(), randn(10, 7, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda own, halo: run(module, over, own, halo), (own, halo))


def test_any_common_shift_is_exact_and_parts_add_up() -> None:
    csr, module = graph(), made()
    x = randn(30, 7)
    over = adjacency(csr)
    expected = run(module, over, x)
    prepared = module.prepare(x)
    maximum = module.maximum(over, prepared)
    for shift in (maximum + 3.0, torch.zeros_like(maximum)):
        torch.testing.assert_close(module.update(module.aggregate(over, prepared, shift)), expected)
    # edges divided between two ranks, self loops on the first
    first = np.random.default_rng(0).random(csr.edges) < 0.5
    parts = [_some(csr, first), _some(csr, ~first)]
    overs = [adjacency(parts[0], csr.degrees()), adjacency(parts[1], csr.degrees(), looped=0)]
    greatest = torch.maximum(*(module.maximum(part, prepared) for part in overs))
    assert torch.equal(greatest, maximum)
    total = sum(module.aggregate(part, prepared, greatest) for part in overs)
    torch.testing.assert_close(module.update(total), expected)


def _some(csr: CSR, kept: np.ndarray) -> CSR:
    rows = np.repeat(np.arange(csr.rows), csr.degrees())[kept]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=csr.rows)))).astype(np.int64)
    return CSR(indptr, csr.indices[kept], csr.columns)
