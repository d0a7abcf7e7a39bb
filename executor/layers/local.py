"""The edges of one rank's rows, and sums over them with a hand-written backward."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse

from executor.kernels.edges.aggregation import Aggregation, kernel_named
from executor.kernels.edges.attention import Attention
from executor.kernels.edges.sparse import diagonal, from_scipy, to_scipy
from executor.kernels.edges.structure import Scaling, Structure
from executor.layers.tape import Call, autograd
from simgnn.errors import ConfigError
from simgnn.graph.build import is_symmetric
from simgnn.graph.csr import CSR
from simgnn.graph.weights import transposed_weights
from simgnn.partition.local.edge_cut import LocalGraph
from simgnn.partition.local.vertex_cut import RankGraph


class Degrees(NamedTuple):
    """In-degrees without self loops, or sums of weights of in-edges, float64: of all rows in the ``full`` graph
    [n + h], and of own rows [n] by the edges that are ``kept``. ``renormalised``: a GCN scales rows by one over the
    other."""

    full: torch.Tensor
    kept: torch.Tensor
    renormalised: bool


def _gcn(degrees: Degrees, looped: int) -> Scaling:
    root = (degrees.full + 1).rsqrt()
    destination = root[: len(degrees.kept)]
    own = destination.clone()
    own[looped:] = 0
    if degrees.renormalised:
        destination = destination * (degrees.full[: len(own)] + 1) / (degrees.kept + 1)
    return Scaling(root, destination, own)


def _mean(degrees: Degrees, looped: int) -> Scaling:
    return Scaling(destination=1 / torch.where(degrees.kept != 0, degrees.kept, 1))


def _sum(degrees: Degrees, looped: int) -> Scaling:
    return Scaling()


def _looped_mean(degrees: Degrees, looped: int) -> Scaling:
    own = torch.ones_like(degrees.kept)
    own[looped:] = 0
    return Scaling(destination=1 / (degrees.kept + 1), own=own)


LOOPED_MEAN = "looped mean"
SCALINGS: Mapping[str, Callable[[Degrees, int], Scaling]] = {
    "gcn": _gcn, "mean": _mean, "sum": _sum, LOOPED_MEAN: _looped_mean,
}  # fmt: skip
"""Named scalings of rows, from :class:`Degrees` of n rows, of which the first ``looped`` have a self loop here
(masters, of a vertex-cut). A is the matrix of edge weights, of ones if there are none. Means divide by the degrees of
the edges that are kept:

- ``gcn``: D^-1/2 (A + I) D^-1/2 with D = degree + 1 (Kipf and Welling, ICLR 2017);
- ``mean``: weighted mean over the in-edges, 0 where there are none (GraphSAGE, NeurIPS 2017);
- ``sum``: weighted sum (GIN, ICLR 2019);
- ``looped mean``: weighted mean over the row itself and its in-edges, as a GCN takes it on mini-batches.
"""


class LocalAdjacency:
    """The in-edges of a rank's n rows from n own and h halo rows, with its kernels and scalings.

    ``csr`` may have weights of edges; then ``weighted_degree`` float64 [n + h] are the sums of those of all in-edges in
    the full graph. ``structure`` and ``transpose`` share their arrays of edges if there are no halo rows and edges are
    symmetric, and weights if these are. ``kernel``:
    "numba" or "torch", None for the default of ``device``. ``threads`` None: as many as torch uses. ``looped``: that
    many first rows have their self loop on this rank (None: all). ``complete``: whether this rank has all in-edges of
    its rows. If not, :func:`aggregate` makes sums of sparse rows dense, so that other ranks' sums can be added.
    ``kept_degree`` [n], ``renormalised``: see :class:`~simgnn.partition.local.edge_cut.LocalGraph`.
    """

    def __init__(
        self,
        csr: CSR,
        degree: np.ndarray[Any, Any],
        *,
        kernel: str | None = None,
        threads: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        looped: int | None = None,
        complete: bool = True,
        weighted_degree: np.ndarray[Any, Any] | None = None,
        kept_degree: np.ndarray[Any, Any] | None = None,
        renormalised: bool = False,
    ) -> None:
        assert (csr.weights is None) == (weighted_degree is None), "sums of weights come with weights"
        assert csr.rows <= csr.columns == len(degree), "columns are own rows, then halo rows"
        self.structure = Structure.from_csr(csr, device, dtype)
        self.transpose = _transposed(self.structure, is_symmetric(csr))
        self.weighted_degree = None if weighted_degree is None else torch.from_numpy(np.array(weighted_degree))
        self.degree = torch.from_numpy(np.array(degree, dtype=np.int64)).to(device)
        kept = None if kept_degree is None else torch.from_numpy(np.array(kept_degree, dtype=np.float64))
        self.kept_degree, self.renormalised = None if kept is None else kept.to(device), renormalised
        self.dtype, self.device, self.threads = dtype, torch.device(device), threads
        self.looped, self.complete = csr.rows if looped is None else looped, complete
        self._kernel = kernel_named(kernel, self.device)
        self._scalings: dict[str, Scaling] = {}
        self._aggregations: dict[str, Aggregation] = {}

    @classmethod
    def from_local_graph(cls, local: RankGraph, **options: Any) -> "LocalAdjacency":
        """Build the adjacency from a rank's graph; ``options`` are further arguments of the constructor."""
        given: dict[str, Any] = {"looped": local.masters, "complete": local.complete}
        given["weighted_degree"] = local.weighted_degree
        if isinstance(local, LocalGraph):
            given |= {"kept_degree": local.kept_degree, "renormalised": local.renormalised}
        return cls(local.csr, local.degree, **given, **options)

    @property
    def rows(self) -> int:
        """n, the rows that this rank owns."""
        return self.structure.rows

    @property
    def halo_rows(self) -> int:
        """h, the halo rows that it needs."""
        return self.structure.columns - self.structure.rows

    def scaling(self, name: str) -> Scaling:
        """A scaling of :data:`SCALINGS` in this adjacency's dtype."""
        if name not in SCALINGS:
            raise ConfigError(f"scaling of a sum: got '{name}', expected one of {', '.join(SCALINGS)}")
        if name not in self._scalings:
            # degrees are exact in float64; the root of a large one is then rounded once
            degree = self.degree if self.weighted_degree is None else self.weighted_degree
            full = degree.to(torch.float64)
            kept = full[: self.rows] if self.kept_degree is None else self.kept_degree.to(full.device)
            made = SCALINGS[name](Degrees(full, kept, self.renormalised), self.looped)
            parts = (
                None if part is None else part.to(self.device, self.dtype)
                for part in (made.source, made.destination, made.own)
            )  # fmt: skip
            self._scalings[name] = Scaling(*parts)
        return self._scalings[name]

    def aggregation(self, name: str) -> Aggregation:
        """The kernel for one scaling, made on first use."""
        if name not in self._aggregations:
            scaling = self.scaling(name)
            self._aggregations[name] = self._kernel(self.structure, self.transpose, scaling, self.threads)
        return self._aggregations[name]

    @cached_property
    def attention(self) -> Attention:
        """Attention over the same edges, with self loops."""
        return Attention(self.structure, self.transpose, self.looped, self.threads)

    @cached_property
    def own_attention(self) -> Attention:
        """Attention over the edges from own rows, with self loops."""
        own = self.structure.part(of_halo=False)
        return Attention(own, own.transposed(), self.looped, self.threads)

    @cached_property
    def halo_attention(self) -> Attention:
        """Attention over the edges from halo rows."""
        halo = self.structure.part(of_halo=True)
        return Attention(halo, halo.transposed(), 0, self.threads)

    def neighbourhood(self) -> "Neighbourhood":
        """Return this adjacency as the object that a user's layer gets as ``csr``."""
        return Neighbourhood(self)


def _transposed(structure: Structure, symmetric: bool) -> Structure:
    """Return the edges by source. If edges are ``symmetric``, they are those of ``structure``; if weights are, too, it
    is ``structure`` itself."""
    if not symmetric:
        return structure.transposed()
    if structure.weights is None:
        return structure
    csr = structure.on_cpu().csr
    weights = torch.from_numpy(transposed_weights(csr, csr.indptr)).to(structure.weights.device)
    return structure if torch.equal(structure.weights, weights) else replace(structure, weights=weights)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Aggregation, inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
        ctx.kernel = kernel
        return kernel.forward(inner, halo)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _, inner, halo = ctx.needs_input_grad
        return (None, *ctx.kernel.backward(gradient, inner, halo))


class _SumOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Aggregation, inner: torch.Tensor) -> torch.Tensor:
        ctx.kernel = kernel
        return kernel.sum_own(inner)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, ctx.kernel.backward(gradient, True, False)[0]


class _AddHalo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Aggregation, halo: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        ctx.kernel = kernel
        return kernel.add_halo(total, halo)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, ctx.kernel.backward(gradient, False, True)[1], gradient


def sum_own(
    adjacency: LocalAdjacency, inner: torch.Tensor, scaling: str = "sum", call: Call = autograd
) -> torch.Tensor:
    """The part of :func:`aggregate` without halo rows, [n, F], from ``inner`` [n, F]; :func:`add_halo` completes it."""
    return call(_SumOwn, adjacency.aggregation(scaling), inner)


def add_halo(
    adjacency: LocalAdjacency, halo: torch.Tensor, total: torch.Tensor, scaling: str = "sum", call: Call = autograd
) -> torch.Tensor:
    """The result of :func:`aggregate`, to the last bit, from the result of :func:`sum_own` and ``halo`` [h, F]."""
    return call(_AddHalo, adjacency.aggregation(scaling), halo, total)


def aggregate(
    adjacency: LocalAdjacency,
    inner: torch.Tensor,
    halo: torch.Tensor | None = None,
    scaling: str = "sum",
    call: Call = autograd,
    mean: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scaled sums of source rows, [n, F], from ``inner`` [n, F] and ``halo`` [h, F] (None where h = 0).

    Dense rows have the dtype of the adjacency; their gradients are (d_inner [n, F], d_halo [h, F]). Constant sparse
    rows (torch CSR tensors) give a sparse result (dense where in-edges are not complete), computed by SciPy on the CPU:
    meant for setup. ``mean`` [F]: sparse rows [n, F + 1] stand for their first F columns minus their last column times
    ``mean``; this is subtracted if sums become dense.
    """
    expected = (adjacency.rows, adjacency.halo_rows)
    got = (len(inner), 0 if halo is None else len(halo))
    assert got == expected, f"got own and halo rows {got}, the adjacency has {expected}"
    if inner.layout == torch.sparse_csr:
        return _aggregate_sparse(adjacency, inner, halo, adjacency.scaling(scaling), mean)
    kernel = adjacency.aggregation(scaling)
    return call(_Aggregate, kernel, inner, halo if expected[1] else None)


def _aggregate_sparse(
    adjacency: LocalAdjacency,
    inner: torch.Tensor,
    halo: torch.Tensor | None,
    scaling: Scaling,
    mean: torch.Tensor | None,
) -> torch.Tensor:
    rows = to_scipy(inner) if halo is None or not len(halo) else sparse.vstack((to_scipy(inner), to_scipy(halo)), "csr")
    structure = adjacency.structure
    columns = structure.indices.cpu().numpy()
    weights = np.ones(structure.edges, rows.dtype) if scaling.source is None else scaling.source.cpu().numpy()[columns]
    if structure.weights is not None:
        weights = weights * structure.weights.cpu().numpy()
    shape = (structure.rows, structure.columns)
    pointers = structure.indptr.cpu().numpy()
    if structure.edges < 2**31:
        pointers = pointers.astype(np.int32)  # else the ids of the sums' columns are int64, too
    edges: Any = sparse.csr_array((weights, columns, pointers), shape)
    # all scalings go into the edges: sums have many times as many numbers, and must not be there twice
    if scaling.own is not None:
        edges = edges + diagonal(scaling.own.cpu().numpy(), *shape)
    if scaling.destination is not None:
        edges = diagonal(scaling.destination.cpu().numpy(), structure.rows, structure.rows) @ edges
    total = sparse.csr_array(edges) @ rows
    if not adjacency.complete:
        return _dense(total, mean).to(inner.device, inner.dtype)
    total.sort_indices()
    return from_scipy(total, inner.dtype, copy=False).to(inner.device)


def _dense(rows: Any, mean: torch.Tensor | None) -> torch.Tensor:
    """Convert sparse rows to dense rows [n, F]; with a ``mean``, subtract their last column times ``mean``."""
    if mean is None:
        return torch.from_numpy(rows.toarray())
    often = torch.from_numpy(rows[:, [-1]].toarray().ravel())
    return torch.from_numpy(rows[:, :-1].toarray()).addr_(often, mean.cpu(), alpha=-1)


class Neighbourhood:
    """What a user's layer gets as ``csr``: the in-edges of n rows, from n + h rows of which the first n are the same.

    ``indptr`` int64 [n + 1] and ``indices`` int32 or int64 [edges] are tensors on the rows' device (sources 0..n-1 are
    the rank's own rows in order, the rest halo rows); there are no self loops. ``degrees`` int64 [n + h] are in-degrees
    in the full graph, ``rows`` = n, ``columns`` = n + h. ``weights`` [edges] of the training's dtype and
    ``weighted_degrees`` float64 [n + h], the sums of the weights of in-edges in the full graph, are None where edges
    have no weights (docs/edge_weights.md). :meth:`sum` and :meth:`mean` run the fast kernels.
    """

    def __init__(self, adjacency: LocalAdjacency) -> None:
        self._adjacency = adjacency
        self.indptr, self.indices = adjacency.structure.indptr, adjacency.structure.indices
        self.degrees, self.weights = adjacency.degree, adjacency.structure.weights
        self.weighted_degrees = adjacency.weighted_degree
        self.rows, self.columns = adjacency.rows, adjacency.structure.columns

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum of the source rows of each row, times weights if edges have any: [n, F] from [n + h, F], with
        gradient."""
        return self._apply(rows, "sum")

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        """Mean of the source rows of each row, by weights if edges have any, 0 where there are none: [n, F] from
        [n + h, F], with gradient."""
        return self._apply(rows, "mean")

    def _apply(self, rows: torch.Tensor, scaling: str) -> torch.Tensor:
        halo = rows[self.rows :] if self.columns > self.rows else None
        return aggregate(self._adjacency, rows[: self.rows], halo, scaling)
