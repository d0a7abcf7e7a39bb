"""Small graphs and layers that the tests of layers share."""

import numpy as np
import torch
from scipy import sparse

from executor.layers import LocalAdjacency, build_layers
from executor.layers.builtin import Layer
from simgnn.graph.csr import CSR
from simgnn.model.spec import LayerSpec


def graph(vertices: int = 30, seed: int = 0, symmetric: bool = True, density: float = 0.12) -> CSR:
    """A random graph without self loops; some vertices have no edges."""
    pattern = sparse.random(vertices, vertices, density, random_state=seed, format="lil")
    pattern[: vertices // 6] = 0
    pattern[:, : vertices // 6] = 0
    pattern = sparse.csr_array(pattern)
    if symmetric:
        pattern = sparse.csr_array(pattern + pattern.T)
    pattern = sparse.csr_array(pattern - sparse.diags_array(pattern.diagonal()))
    pattern.eliminate_zeros()
    pattern.sort_indices()
    return CSR(pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32), vertices)


def dense(csr: CSR) -> torch.Tensor:
    """The adjacency matrix, float64 [rows, columns], row = destination."""
    matrix = sparse.csr_array((np.ones(csr.edges), csr.indices, csr.indptr), (csr.rows, csr.columns))
    return torch.from_numpy(matrix.toarray())


def split(csr: CSR, rows: int) -> tuple[CSR, np.ndarray]:
    """The local graph of the rank that owns the first ``rows`` vertices; its halo are the other ones."""
    edges = csr.indptr[rows]
    return CSR(csr.indptr[: rows + 1].copy(), csr.indices[:edges].copy(), csr.columns), csr.degrees()


def adjacency(csr: CSR, degree: np.ndarray | None = None, **options: object) -> LocalAdjacency:
    options = {"dtype": torch.float64, **options}
    return LocalAdjacency(csr, csr.degrees() if degree is None else degree, **options)


def layer(kind: str, width_in: int, width_out: int, order: str = "aggregate-first", **options: object) -> Layer:
    spec = LayerSpec(1, kind, width_in, width_out, order, hidden=width_out if kind == "gin" else 0, **options)
    (made,) = build_layers([spec], seed=3, dtype=torch.float64)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, -0.5, 0.5, generator=torch.Generator().manual_seed(len(parameter)))
    return made


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(made: Layer, over: LocalAdjacency, own: torch.Tensor, halo: torch.Tensor | None = None) -> torch.Tensor:
    """The segments of a layer, one after the other."""
    prepared, remote = made.prepare(own), None if halo is None else made.prepare(halo)
    return made.update(made.aggregate(over, prepared, remote), own if made.spec.uses_own_rows else None)


CASES = [
    ("gcn", "aggregate-first"),
    ("gcn", "transform-first"),
    ("sage", "aggregate-first"),
    ("sage", "transform-first"),
    ("gin", "aggregate-first"),
]
