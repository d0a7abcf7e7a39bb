"""Text for exported modules of models that were trained on weighted edges: edges, layers, and what own layers get."""

NORMALISED = ("gcn", "sage")
"""Layers that divide by sums of weights, which must not be negative."""


def weighted_edges(symmetrised: bool, normalised: bool, averaged: bool) -> str:
    """Return the function that prepares edges and their weights. ``normalised``: the layers divide by sums of weights;
    ``averaged``: they add up, and get weights that make the sums means."""
    what = "with its reverse" if symmetrised else "in its direction"
    rules = "An edge that is listed several times has the sum of its weights."
    if symmetrised:
        rules += " An edge whose reverse is not listed lends it its\n    weight."
    parts = [EDGES_BEGIN.format(what=what, rules=rules), NOT_NEGATIVE if normalised else FINITE, EDGES_MERGE]
    if symmetrised:
        parts.append(EDGES_REVERSE)
    parts.append(EDGES_SHARES if averaged else EDGES_END)
    return "".join(parts)


EDGES_BEGIN = '''\
def prepare_edges(
    edge_index: torch.Tensor, edge_weight: torch.Tensor | None, vertices: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges as training had them and their weights, float64: each once and {what}, without self-loops.

    {rules}
    """
    edges = edge_index.shape[1]
    if edge_weight is None or tuple(edge_weight.shape) not in ((edges,), (edges, 1)):
        got = "none" if edge_weight is None else f"shape {{list(edge_weight.shape)}}"
        raise ValueError(f"the model was trained with weights of edges: expected edge_weight [{{edges}}], got {{got}}")
    weight = edge_weight.reshape(-1).to(torch.float64)
'''

NOT_NEGATIVE = """\
    if not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ValueError("edge_weight must be finite and not negative: the layers divide by sums of weights")
"""

FINITE = """\
    if not bool(weight.isfinite().all()):
        raise ValueError("edge_weight must be finite")
"""

EDGES_MERGE = """\
    source, target = edge_index
    kept = source != target
    keys, place = torch.unique((target * vertices + source)[kept], return_inverse=True)
    weight = weight.new_zeros(len(keys)).index_add(0, place, weight[kept])
"""

EDGES_REVERSE = """\
    reverse = (keys % vertices) * vertices + keys // vertices
    added = ~torch.isin(reverse, keys)
    keys, order = torch.cat((keys, reverse[added])).sort()
    weight = torch.cat((weight, weight[added]))[order]
"""

EDGES_END = """\
    return torch.stack((keys % vertices, keys // vertices)), weight
"""

EDGES_SHARES = """\
    source, target = keys % vertices, keys // vertices
    # GraphConv adds up: with weights divided by their sum at the target, this is the mean by weights
    total = weight.new_zeros(vertices).index_add(0, target, weight)
    return torch.stack((source, target)), weight / torch.where(total != 0, total, 1)[target]
"""

WEIGHTED_GCN = '''\
class GCNLayer(nn.Module):
    """D^-1/2 (A + I) D^-1/2 x W + b, where A holds the weights of edges and D the sums of those of in-edges, + 1
    (Kipf and Welling, ICLR 2017)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        degree = edge_weight.new_zeros(len(x)).index_add(0, target, edge_weight) + 1
        scale = degree.rsqrt().to(x.dtype)[:, None]
        rows = scale * (x @ self.weight)
        weighted = edge_weight.to(x.dtype)[:, None] * rows[source]
        return scale * rows.index_add(0, target, weighted) + self.bias
'''

WEIGHTED_SAGE = '''\
class SAGELayer(nn.Module):
    """x W_self + (mean of x over in-neighbours, by the weights of edges) W_neighbor + b (Hamilton et al., NeurIPS
    2017); no mean is 0."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight_self = nn.Parameter(torch.empty(inputs, outputs))
        self.weight_neighbor = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        degree = edge_weight.new_zeros(len(x)).index_add(0, target, edge_weight)
        degree = torch.where(degree != 0, degree, 1).to(x.dtype)
        weighted = edge_weight.to(x.dtype)[:, None] * x[source]
        mean = torch.zeros_like(x).index_add(0, target, weighted) / degree[:, None]
        return x @ self.weight_self + mean @ self.weight_neighbor + self.bias
'''

WEIGHTED_GIN = '''\
class GINLayer(nn.Module):
    """MLP(x + sum of x over in-neighbours, times the weights of edges) (Xu et al., ICLR 2019, with epsilon = 0)."""

    def __init__(self, inputs: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        source, target = edge_index
        return self.mlp(x.index_add(0, target, edge_weight.to(x.dtype)[:, None] * x[source]))
'''

PYG_WEIGHTED_GIN = '''\
class GINLayer(nn.Module):
    """MLP(x + sum of x over in-neighbours, times the weights of edges); GINConv of PyTorch Geometric takes no
    weights."""

    def __init__(self, inputs: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.sum = SimpleConv(aggr="sum", combine_root="sum")
        self.mlp = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.sum(x, edge_index, edge_weight))
'''

WEIGHTED_NEIGHBOURHOOD = '''\
class Neighbourhood:
    """The in-edges of all vertices, which the layers get as ``csr``.

    ``indptr`` int64 [vertices + 1] and ``indices`` int64 [edges]: the in-neighbours of vertex v are
    ``indices[indptr[v]:indptr[v + 1]]``, ascending. ``degrees`` int64 [vertices]: in-degrees. ``rows`` and ``columns``:
    the number of vertices. ``weights`` [edges]: the weights of edges. ``weighted_degrees`` float64 [vertices], on the
    CPU: the sums of the weights of in-edges.
    """

    def __init__(self, edge_index: torch.Tensor, vertices: int, edge_weight: torch.Tensor, dtype: torch.dtype) -> None:
        self.indices, self._target = edge_index
        self.degrees = torch.bincount(self._target, minlength=vertices)
        self.indptr = functional.pad(self.degrees.cumsum(0), (1, 0))
        self.rows = self.columns = vertices
        self.weights = edge_weight.to(dtype)
        total = edge_weight.new_zeros(vertices).index_add(0, self._target, edge_weight)
        self.weighted_degrees = total.cpu()
        self._divisor = torch.where(total != 0, total, 1).to(dtype)[:, None]

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of the rows of each vertex's in-neighbours, times the weights of the edges."""
        return torch.zeros_like(rows).index_add(0, self._target, self.weights[:, None] * rows[self.indices])

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean of the rows of each vertex's in-neighbours by the weights of edges, 0 where there are
        none."""
        return self.sum(rows) / self._divisor
'''
