"""Clipping of a rank's gradient rows: never longer than the limit, never turned, nothing else touched."""

import pytest
import torch

from executor.layers import build_layers
from executor.layers.affine import NORM_ELEMENTS, affine, clip_factor
from simgnn.experiment.sections import TrainSection
from simgnn.model.spec import LayerSpec


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_long_gradient_is_shortened(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for limit in (1e-3, 0.5, 10.0, 1e6):
        gradient = torch.randn(50, 7, dtype=dtype)
        clipped = gradient * clip_factor(gradient, limit)
        assert float(clipped.norm()) <= limit * (1 + 1e-6)
        if float(gradient.norm()) <= limit:
            assert torch.equal(clipped, gradient), "a short one is left alone"
        else:
            assert float(clipped.norm()) == pytest.approx(limit, rel=1e-5)
            cosine = torch.nn.functional.cosine_similarity(clipped.flatten(), gradient.flatten(), dim=0)
            assert float(cosine) == pytest.approx(1, rel=1e-5)
    zero = torch.zeros(4, 3, dtype=dtype)
    assert torch.equal(zero * clip_factor(zero, 1.0), zero)


def test_each_rank_clips_its_share() -> None:
    options = TrainSection(clip_norm=2.0)
    assert options.gradient_limit(1) == 2.0
    assert options.gradient_limit(4) == 1.0
    assert TrainSection(clip_norm=2.0, clip_scale="sqrt").gradient_limit(4) == 4.0
    assert TrainSection().gradient_limit(4) == 0.0


@pytest.mark.parametrize("relu", [False, True])
def test_the_gradient_before_the_activation_is_clipped(relu: bool) -> None:
    """Weights, bias and rows learn from the clipped gradient, and from nothing else."""
    torch.manual_seed(1)
    rows, weight, bias, up = (torch.randn(s, dtype=torch.float64) for s in ((9, 4), (4, 3), (3,), (9, 3)))
    leaves = [part.requires_grad_() for part in (rows, weight, bias)]
    limit = 0.25
    affine([(rows, weight)], bias, None, "relu" if relu else "none", limit=limit).backward(up)
    gradient = up * (rows @ weight + bias > 0) if relu else up
    gradient = gradient * (limit / gradient.norm())
    for leaf, expected in zip(leaves, (gradient @ weight.T, rows.T @ gradient, gradient.sum(0)), strict=True):
        assert torch.allclose(leaf.grad, expected.detach(), rtol=1e-12)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
@pytest.mark.parametrize("order", ["aggregate-first", "transform-first"])
def test_every_layer_passes_its_limit_on(kind: str, order: str) -> None:
    if (kind, order) in (("gin", "transform-first"), ("gat", "aggregate-first")):
        return
    found = []
    for limit in (0.0, 0.01, 1e9):
        heads = 1 if kind == "gat" else 0
        spec = LayerSpec(1, kind, 4, 3, order, hidden=3, prepared_width=3, heads=heads, gradient_limit=limit)  # type: ignore[arg-type]
        [layer] = build_layers([spec], 0, torch.float64)
        torch.manual_seed(2)
        width = 3 + heads if order == "transform-first" else 4
        aggregated, own = torch.randn(9, width, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
        layer.update(aggregated, own).backward(torch.randn(9, 3, dtype=torch.float64))
        found.append(torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None]))
    assert torch.equal(found[0], found[2]), "a limit that is never reached changes no bit"
    ratio = found[1][found[0] != 0] / found[0][found[0] != 0]
    assert torch.allclose(ratio, ratio[0].expand_as(ratio), rtol=1e-9)
    assert 0 < float(ratio[0]) < 1


def test_a_norm_is_summed_up_in_pieces_that_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes a float64 copy of what it sums on a CPU: of the gradient, that would be twice its memory."""
    gradient, whole = torch.randn(1000, 200), torch.linalg.vector_norm
    sizes: list[int] = []

    def noted(part: torch.Tensor, **options: object) -> torch.Tensor:
        sizes.append(part.numel())
        return whole(part, **options)

    monkeypatch.setattr(torch.linalg, "vector_norm", noted)
    factor = clip_factor(gradient, 1.0)
    assert max(sizes) <= NORM_ELEMENTS
    assert sum(sizes[:-1]) == gradient.numel()
    assert float(factor) == pytest.approx(1 / float(whole(gradient.double())), rel=1e-6)
