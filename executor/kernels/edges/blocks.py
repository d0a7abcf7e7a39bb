"""Products of one block of the adjacency with the rows of its source rank, added to the sums so far."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from executor.kernels.edges.sparse import diagonal, from_scipy
from executor.kernels.edges.spmm import spmm
from executor.kernels.launch import array, balanced_rows, default_threads
from simgnn.graph.csr import CSR

Floats = NDArray[Any]


class Block(Protocol):
    """One block of the adjacency: the edges from the m rows of one rank into the n rows of this rank."""

    def add(self, rows: torch.Tensor, total: torch.Tensor | None, finish: bool) -> torch.Tensor:
        """Return ``total`` [n, F] (None: zeros) plus the scaled sums of ``rows`` [m, F] as a new tensor [n, F], times
        the scaling of the destinations if ``finish`` is true; no autograd."""


class BlockEdges:
    """The edges of a block in the layout of our own kernel; forward and backward share them in an undirected graph.

    The kernel reads source rows from two arrays. The previous sums are the first, so the ids of the block's rows start
    at n. ``first``: this is the first block that is summed, so there are no previous sums and ids start at 0. ``like``:
    a block with the same edges and other weights, whose arrays are shared.
    """

    def __init__(self, csr: CSR, first: bool, like: "BlockEdges | None" = None) -> None:
        self.weights = csr.weights
        self.rows, self.columns, self.first = csr.rows, csr.columns, first
        self.shift = 0 if first else csr.rows
        kind = np.int32 if self.shift + csr.columns <= np.iinfo(np.int32).max else np.int64
        self.indptr: NDArray[np.int64] = np.asarray(csr.indptr, dtype=np.int64) if like is None else like.indptr
        self.indices: NDArray[np.integer] = (
            np.asarray(csr.indices).astype(kind) + np.asarray(self.shift, kind) if like is None else like.indices
        )
        self._bounds: dict[int, NDArray[np.int64]] = {}

    def bounds(self, threads: int) -> NDArray[np.int64]:
        """Return the first row of each thread's part, int64 [threads + 1]; computed once for each number of threads."""
        if threads not in self._bounds:
            self._bounds[threads] = balanced_rows(self.indptr, threads)
        return self._bounds[threads]


class NumbaBlock:
    """Our own kernel on the CPU: one pass sums edges, adds the previous sums and scales the destinations.

    ``source`` [m], ``destination`` [n]: scalings in the rows' dtype; None: ones.
    """

    def __init__(
        self, edges: BlockEdges, source: Floats | None, destination: Floats | None, threads: int | None
    ) -> None:
        self._edges, self._threads = edges, threads
        self._source = None if source is None else np.concatenate((np.zeros(edges.shift, source.dtype), source))
        self._destination = destination

    def add(self, rows: torch.Tensor, total: torch.Tensor | None, finish: bool) -> torch.Tensor:
        edges = self._edges
        assert (total is None) == edges.first, "the first block starts the sums, all others add to them"
        block = array(rows.contiguous())
        out = rows.new_empty((edges.rows, rows.shape[1]))
        spmm(
            edges.indptr, edges.indices, block if total is None else array(total), array(out),
            edges.bounds(self._threads or default_threads()),
            halo=None if total is None else block,
            values=edges.weights,
            source_scale=self._source,
            destination_scale=self._destination if finish else None,
            own_scale=None if total is None else np.ones(edges.rows, block.dtype),
        )  # fmt: skip
        return out


class TorchBlock:
    """torch's sparse CSR product (MKL on the CPU, cuSPARSE on CUDA); the scaling of sources multiplies edge weights."""

    def __init__(self, csr: CSR, source: Floats | None, destination: Floats | None, device: torch.device) -> None:
        given = csr.weights
        if given is None:
            given = np.ones(csr.edges, np.float64 if source is None else source.dtype)
        weights = sparse.csr_array((given, np.asarray(csr.indices), np.asarray(csr.indptr)), (csr.rows, csr.columns))
        if source is not None:
            weights = sparse.csr_array(weights @ diagonal(source, csr.columns, csr.columns))
        self._weights, self._device = weights, device
        self._made: dict[torch.dtype, torch.Tensor] = {}
        self._destination = None if destination is None else torch.from_numpy(destination[:, None]).to(device)

    def add(self, rows: torch.Tensor, total: torch.Tensor | None, finish: bool) -> torch.Tensor:
        if rows.dtype not in self._made:
            self._made[rows.dtype] = from_scipy(self._weights, rows.dtype).to(self._device)
        weights = self._made[rows.dtype]
        out = torch.mm(weights, rows) if total is None else torch.addmm(total, weights, rows)
        return out.mul_(self._destination) if finish and self._destination is not None else out


Scale = Callable[[NDArray[Any]], Floats]


def _root(degree: NDArray[Any]) -> Floats:
    return np.asarray(1 / np.sqrt(degree.astype(np.float64) + 1))


def _share(degree: NDArray[Any]) -> Floats:
    return np.asarray(1 / np.where(degree != 0, degree, 1).astype(np.float64))


VERTEX_SCALINGS: Mapping[str, tuple[Scale | None, Scale | None, bool]] = {
    "gcn": (_root, _root, True),
    "mean": (None, _share, False),
    "sum": (None, None, False),
}
"""Name of a sum -> scaling of sources and of destinations by in-degree (or sum of weights of in-edges) in the full
graph, and whether every vertex counts among its own sources. The same sums as those of
:data:`executor.layers.local.SCALINGS`."""
