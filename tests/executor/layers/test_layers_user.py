"""A user's own layer: with segments, with forward only, and with faults."""

import pytest
import torch
from layer_cases import adjacency, dense, graph, randn, split
from torch import nn

from executor.layers import Neighbourhood, build_layers, segments
from simgnn.errors import ConfigError
from simgnn.model.spec import LayerSpec


class Segmented(nn.Module):
    """relu(mean of x W): a layer as a user writes it."""

    def __init__(self, width_in: int, width_out: int, activation: bool) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(width_in, width_out), activation

    def prepare(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(rows)

    def aggregate(self, csr: Neighbourhood, prepared: torch.Tensor) -> torch.Tensor:
        return csr.mean(prepared)

    def update(self, aggregated: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return aggregated.relu() if self.activation else aggregated


class ForwardOnly(nn.Module):
    """The same from the arrays of the adjacency, in plain torch."""

    def __init__(self, width_in: int, width_out: int, activation: bool) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(width_in, width_out), activation

    def forward(self, csr: Neighbourhood, rows: torch.Tensor) -> torch.Tensor:
        prepared = self.linear(rows)
        assert len(prepared) == csr.columns
        target = torch.repeat_interleave(torch.arange(csr.rows), csr.indptr.diff())
        out = prepared.new_zeros(csr.rows, prepared.shape[1]).index_add(0, target, prepared[csr.indices.long()])
        out = out / csr.degrees[: csr.rows].clamp(min=1)[:, None]
        return out.relu() if self.activation else out


class Incomplete(nn.Module):
    def prepare(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


class Stubborn(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, csr: Neighbourhood, rows: torch.Tensor) -> torch.Tensor:
        return rows


def spec(name: str) -> LayerSpec:
    return LayerSpec(2, f"{__name__}:{name}", 6, 4, "transform-first", activation=True)


def test_both_forms_give_the_same_rows_and_gradients():
    local, degree = split(graph(), 18)
    over = adjacency(local, degree)
    x = randn(30, 6).requires_grad_()
    (one,) = build_layers([spec("Segmented")], 0, torch.float64)
    (other,) = build_layers([spec("ForwardOnly")], 0, torch.float64)
    first = one.update(one.aggregate(over, one.prepare(x[:18]), one.prepare(x[18:])), x[:18])
    second = other(over, x[:18], x[18:])
    torch.testing.assert_close(first, second)
    weights = randn(18, 4, seed=3)
    for a, b in zip(
        torch.autograd.grad((first * weights).sum(), [x, *one.parameters()]),
        torch.autograd.grad((second * weights).sum(), [x, *other.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    assert one.reduction == "sum"


def test_segments_of_a_module():
    assert segments(Segmented) == ("prepare", "aggregate", "update")
    assert segments(ForwardOnly(2, 2, True)) == ("forward",)
    with pytest.raises(ConfigError, match=r"model\.kind.*aggregate, update$"):
        segments(Incomplete)


def test_sums_over_the_neighbourhood_and_its_facts():
    csr = graph()
    seen = adjacency(csr).neighbourhood()
    x = randn(30, 3)
    torch.testing.assert_close(seen.sum(x), dense(csr) @ x)
    assert (seen.rows, seen.columns) == (30, 30)
    assert seen.degrees.tolist() == csr.degrees().tolist()


def test_the_global_generator_is_left_alone_and_ranks_start_alike():
    torch.manual_seed(5)
    first = build_layers([spec("Segmented")], 1)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    second = build_layers([spec("Segmented")], 1)
    assert torch.equal(first[0].module.linear.weight, second[0].module.linear.weight)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gat2", "expected one of gcn, sage, gin, gat or 'package.module:Class'"),
        ("no.such.module:Layer", "PYTHONPATH"),
        (f"{__name__}:Missing", "not a torch.nn.Module class"),
        (f"{__name__}:Stubborn", "activation=bool"),
        (f"{__name__}:Incomplete", "aggregate, update"),
    ],
)
def test_faults_name_the_key_and_what_was_expected(kind, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build_layers([LayerSpec(1, kind, 2, 2)], 0)
    assert "model.kind" in str(caught.value)
