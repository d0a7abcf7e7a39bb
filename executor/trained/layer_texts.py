"""The layers of an exported module as Python text: convolutions of PyTorch Geometric, or plain torch."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from executor.trained.weighted_texts import PYG_WEIGHTED_GIN, WEIGHTED_GCN, WEIGHTED_GIN, WEIGHTED_SAGE
from executor.trained.weights import layer_tensors, weights_of_layer
from simgnn.model.spec import LayerSpec

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class LayerText:
    """How an exported module writes layers of one kind. ``classes``: text of the classes that it defines; ``imports``:
    names from torch_geometric.nn; ``made``: expressions that make the layers, in order; ``state``: their tensors by
    name in the module's ``state_dict``; ``looped``: the module adds self-loops to the edges that all layers get;
    ``averaged``: layers add up rows times weights of edges, which the module divides by their sums."""

    classes: str
    imports: tuple[str, ...]
    made: tuple[str, ...]
    state: Tensors
    looped: bool = False
    averaged: bool = False


def torch_layers(specs: tuple[LayerSpec, ...], weights: Tensors, sampled: bool) -> LayerText:
    """Return built-in layers in plain torch, whose parameters are named as in the run. ``sampled``: of mini-batches."""
    kind, weighted = specs[0].kind, specs[0].weighted
    text, name = {
        "gcn": (WEIGHTED_GCN if weighted else MEAN_GCN if sampled else GCN, "GCNLayer"),
        "sage": (WEIGHTED_SAGE if weighted else SAGE, "SAGELayer"),
        "gin": (WEIGHTED_GIN if weighted else GIN, "GINLayer"),
        "gat": (GAT, "GATLayer"),
    }[kind]
    third = {"gin": "hidden", "gat": "heads"}.get(kind)
    made = []
    for spec in specs:
        more = "" if third is None else f", {third}={getattr(spec, third)}"
        made.append(f"{name}({spec.width_in}, {spec.width_out}{more})")
    return LayerText(text, (), tuple(made), layer_tensors(weights))


def pyg_layers(specs: tuple[LayerSpec, ...], weights: Tensors, sampled: bool) -> LayerText:
    """Return built-in layers as the convolutions of PyTorch Geometric that compute the same sums."""
    made: list[str] = []
    state: dict[str, torch.Tensor] = {}
    kind, weighted = specs[0].kind, specs[0].weighted
    convolution = {"gcn": "GCNConv", "sage": "SAGEConv", "gin": "GINConv", "gat": "GATConv"}[kind]
    if weighted:  # those of SAGE and GIN take no weights
        convolution = {"gcn": "GCNConv", "sage": "GraphConv", "gin": "SimpleConv"}[kind]
    looped = sampled and kind == "gcn"
    for place, spec in enumerate(specs):
        own = weights_of_layer(weights, place)
        if spec.kind == "gcn":
            more = ', normalize=False, add_self_loops=False, aggr="mean"' if looped else ""
            made.append(f"GCNConv({spec.width_in}, {spec.width_out}{more})")
            named = {"lin.weight": own["weight"].t(), "bias": own["bias"]}
        elif spec.kind == "sage":
            made.append(f"{convolution}({spec.width_in}, {spec.width_out})")
            of_mean, of_own = ("lin_rel", "lin_root") if weighted else ("lin_l", "lin_r")
            named = {f"{of_mean}.weight": own["weight_neighbor"].t(), f"{of_mean}.bias": own["bias"]}
            named[f"{of_own}.weight"] = own["weight_self"].t()
        elif spec.kind == "gin" and weighted:
            made.append(f"GINLayer({spec.width_in}, {spec.width_out}, hidden={spec.hidden})")
            named = own
        elif spec.kind == "gin":
            inside = f"nn.Linear({spec.width_in}, {spec.hidden}), nn.ReLU(), nn.Linear({spec.hidden}, {spec.width_out})"
            made.append(f"GINConv(nn.Sequential({inside}))")
            named = {name.replace("mlp.", "nn."): value for name, value in own.items()}
            named["eps"] = own["mlp.0.bias"].new_zeros(1)
        else:
            made.append(f"GATConv({spec.width_in}, {spec.width_out // spec.heads}, heads={spec.heads})")
            named = {"lin.weight": own["weight"].t(), "bias": own["bias"]}
            named |= {"att_src": own["attention_source"][None], "att_dst": own["attention_target"][None]}
        state |= {f"layers.{place}.{name}": value.contiguous() for name, value in named.items()}
    classes = PYG_WEIGHTED_GIN if weighted and kind == "gin" else ""
    return LayerText(classes, (convolution,), tuple(made), state, looped, averaged=weighted and kind == "sage")


GCN = '''\
class GCNLayer(nn.Module):
    """D^-1/2 (A + I) D^-1/2 x W + b, where D holds the in-degrees + 1 (Kipf and Welling, ICLR 2017)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        degree = torch.bincount(target, minlength=len(x)) + 1
        scale = degree.to(x.dtype).rsqrt()[:, None]
        rows = scale * (x @ self.weight)
        return scale * rows.index_add(0, target, rows[source]) + self.bias
'''

MEAN_GCN = '''\
class GCNLayer(nn.Module):
    """(D + I)^-1 (A + I) x W + b, where D holds the in-degrees: the mean over a vertex and its in-neighbours.

    Training on mini-batches took this mean, since it does not need the degrees of vertices outside a batch.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        degree = torch.bincount(target, minlength=len(x)) + 1
        rows = x @ self.weight
        return rows.index_add(0, target, rows[source]) / degree[:, None] + self.bias
'''

SAGE = '''\
class SAGELayer(nn.Module):
    """x W_self + (mean of x over in-neighbours) W_neighbor + b (Hamilton et al., NeurIPS 2017); no mean is 0."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight_self = nn.Parameter(torch.empty(inputs, outputs))
        self.weight_neighbor = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        degree = torch.bincount(target, minlength=len(x)).clamp(min=1)
        mean = torch.zeros_like(x).index_add(0, target, x[source]) / degree[:, None]
        return x @ self.weight_self + mean @ self.weight_neighbor + self.bias
'''

GIN = '''\
class GINLayer(nn.Module):
    """MLP(x + sum of x over in-neighbours) (Xu et al., ICLR 2019, with epsilon = 0)."""

    def __init__(self, inputs: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        return self.mlp(x.index_add(0, target, x[source]))
'''

GAT = '''\
class GATLayer(nn.Module):
    """Heads, side by side, of the sum of a_ij x_j W over in-neighbours and the vertex itself, plus b.

    a_ij = softmax over j of leaky ReLU(attention_source . x_j W + attention_target . x_i W), slope 0.2
    (Velickovic et al., ICLR 2018).
    """

    def __init__(self, inputs: int, outputs: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.attention_source = nn.Parameter(torch.empty(heads, outputs // heads))
        self.attention_target = nn.Parameter(torch.empty(heads, outputs // heads))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        own = torch.arange(len(x), device=x.device)
        source, target = torch.cat((edge_index[0], own)), torch.cat((edge_index[1], own))
        heads, width = self.attention_source.shape
        rows = (x @ self.weight).view(len(x), heads, width)
        of_source, of_target = (rows * self.attention_source).sum(2), (rows * self.attention_target).sum(2)
        score = functional.leaky_relu(of_source[source] + of_target[target], 0.2)
        # scores less the greatest of their vertex: exp does not overflow, and the quotient stays the same
        greatest = score.new_full((len(x), heads), -torch.inf)
        greatest = greatest.scatter_reduce(0, target[:, None].expand_as(score), score, "amax")
        part = (score - greatest[target]).exp()
        total = part.new_zeros(len(x), heads).index_add(0, target, part)
        sums = torch.zeros_like(rows).index_add(0, target, part[:, :, None] * rows[source])
        return (sums / total[:, :, None]).flatten(1) + self.bias
'''

NEIGHBOURHOOD = '''\
class Neighbourhood:
    """The in-edges of all vertices, which the layers get as ``csr``.

    ``indptr`` int64 [vertices + 1] and ``indices`` int64 [edges]: the in-neighbours of vertex v are
    ``indices[indptr[v]:indptr[v + 1]]``, ascending. ``degrees`` int64 [vertices]: in-degrees. ``rows`` and ``columns``:
    the number of vertices. Edges have no weights.
    """

    weights = weighted_degrees = None

    def __init__(self, edge_index: torch.Tensor, vertices: int) -> None:
        self.indices, self._target = edge_index
        self.degrees = torch.bincount(self._target, minlength=vertices)
        self.indptr = functional.pad(self.degrees.cumsum(0), (1, 0))
        self.rows = self.columns = vertices

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of the rows of each vertex's in-neighbours."""
        return torch.zeros_like(rows).index_add(0, self._target, rows[self.indices])

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean of the rows of each vertex's in-neighbours, 0 where there are none."""
        return self.sum(rows) / self.degrees.clamp(min=1)[:, None]
'''
