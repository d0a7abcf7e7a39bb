"""Layers against those of DGL, in one process."""

import pytest
import torch
from layer_cases import CASES, adjacency, graph, layer, randn, run

dgl = pytest.importorskip("dgl", reason="DGL has no wheel for this Python: layers are not compared with it here")


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("activation", [True, False])
def test_layer_equals_that_of_dgl(kind, order, activation):
    from dgl.nn import GINConv, GraphConv, SAGEConv

    csr, made = graph(), layer(kind, 7, 5, order, activation=activation)
    over, x = adjacency(csr), randn(30, 7).requires_grad_()
    edges = (
        torch.from_numpy(csr.indices.copy()),
        torch.repeat_interleave(torch.arange(30), torch.from_numpy(csr.degrees())),
    )
    theirs = dgl.graph((edges[0].long(), edges[1]), num_nodes=30)
    named = {name: parameter.detach() for name, parameter in made.named_parameters()}
    relu = torch.relu if activation else None
    if kind == "gcn":
        theirs = dgl.add_self_loop(theirs)
        other = GraphConv(7, 5, norm="both", activation=relu).double()
        given = {"weight": named["weight"], "bias": named["bias"]}
    elif kind == "sage":
        other = SAGEConv(7, 5, "mean", activation=relu).double()
        given = {
            "fc_self.weight": named["weight_self"].t(),
            "fc_neigh.weight": named["weight_neighbor"].t(),
            "fc_self.bias": named["bias"],
        }
    else:
        mlp = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 5)).double()
        other = GINConv(mlp, "sum", activation=relu).double()
        given = {f"apply_func.{name.removeprefix('mlp.')}": value for name, value in named.items()}
    result = other.load_state_dict(given, strict=False)
    assert not result.unexpected_keys
    assert set(result.missing_keys) <= {"eps"}
    ours, expected = run(made, over, x), other(theirs, x)
    torch.testing.assert_close(ours, expected)
    weights = randn(30, 5, seed=2)
    (one,) = torch.autograd.grad((ours * weights).sum(), [x])
    (two,) = torch.autograd.grad((expected * weights).sum(), [x])
    torch.testing.assert_close(one, two)
