"""The edges of a rank divided by the rank of their source, for systems that broadcast whole blocks of rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.kernels.edges.aggregation import kernel_named
from executor.kernels.edges.attention import Attention
from executor.kernels.edges.blocks import VERTEX_SCALINGS, Block, BlockEdges, NumbaBlock, TorchBlock
from executor.kernels.edges.structure import Structure
from simgnn.errors import BackendError
from simgnn.graph.csr import CSR
from simgnn.partition.local.edge_cut import LocalGraph

Ints = NDArray[np.int64]
Floats = NDArray[Any]


class BlockAdjacency:
    """P blocks of the edges into a rank's n rows (forward), and of the edges out of them (backward).

    ``forward[j]``: rows n, columns m_j, which number the rows of rank j in its local order; ``backward[j]``: the same
    shape, for the edges the other way round. The two are one object where they are equal, as in an undirected graph,
    and share their arrays of edges where only weights differ.
    ``degrees[j]`` [m_j]: in-degrees in the full graph, int64, or if edges have weights the sums of theirs, float64; the
    weights in ``forward`` and ``backward`` are of ``dtype``. Blocks are summed in the order of ranks from ``start``,
    the first rank that has rows. Source: CAGNET, 1D; docs/systems/cagnet.md.
    """

    def __init__(
        self,
        rank: int,
        forward: Sequence[CSR],
        backward: Sequence[CSR],
        degrees: Sequence[Ints | Floats],
        *,
        kernel: str | None = None,
        threads: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.rank, self.forward, self.backward, self.degrees = rank, forward, backward, degrees
        self.start = next((root for root, degree in enumerate(degrees) if len(degree)), 0)
        self._device, self._dtype, self._threads = torch.device(device), dtype, threads
        self._numba = (kernel or ("numba" if self._device.type == "cpu" else "torch")) == "numba"
        kernel_named(kernel, self._device)  # refuses a kernel that does not run there
        self._made: dict[tuple[str, int, bool], Block] = {}
        self._edges: dict[tuple[int, bool], BlockEdges] = {}
        self._structures: dict[int, Structure] = {}
        self._transposes: dict[int, Structure] = {}

    def block(self, scaling: str, root: int, transposed: bool) -> Block:
        """Return the block of source rank ``root`` with a scaling of :data:`VERTEX_SCALINGS`; built once."""
        key = (scaling, root, transposed)
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def attention(self, root: int, transposed: bool) -> Attention:
        """Return the kernels with which own rows attend to the rows of rank ``root``; or, if ``transposed``, the rows
        of ``root`` to own rows. A row attends to itself too."""
        looped = len(self.degrees[self.rank]) if root == self.rank else 0
        csr = (self.backward if transposed else self.forward)[root]
        if id(csr) not in self._structures:
            self._structures[id(csr)] = Structure.sharing(csr, self._device)
            self._transposes[id(csr)] = self._structures[id(csr)].transposed()
        by_own_row, by_other = self._structures[id(csr)], self._transposes[id(csr)]
        both = (by_other, by_own_row) if transposed else (by_own_row, by_other)
        # targets may have attended to older rows than these, so that no score of theirs was as great
        return Attention(*both, looped, self._threads, ceiling=0.0)

    def _make(self, scaling: str, root: int, transposed: bool) -> Block:
        if scaling not in VERTEX_SCALINGS:
            raise BackendError(
                f"sum over blocks: got the scaling '{scaling}', expected one of {', '.join(VERTEX_SCALINGS)}"
            )
        of_source, of_destination, loops = VERTEX_SCALINGS[scaling]
        if transposed:
            of_source, of_destination = of_destination, of_source
        csr = (self.backward if transposed else self.forward)[root]
        looped = loops and root == self.rank
        source = None if of_source is None else self._floats(of_source(self.degrees[root]))
        destination = None if of_destination is None else self._floats(of_destination(self.degrees[self.rank]))
        if not self._numba:
            return TorchBlock(_with_loops(csr) if looped else csr, source, destination, self._device)
        key = (id(csr), looped)
        if key not in self._edges:
            ways = (self.forward[root], self.backward[root])
            made = [self._edges[id(way), looped] for way in ways if (id(way), looped) in self._edges]
            like = made[0] if made and ways[0].indices is ways[1].indices else None
            self._edges[key] = BlockEdges(_with_loops(csr) if looped else csr, root == self.start, like)
        return NumbaBlock(self._edges[key], source, destination, self._threads)

    def _floats(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.astype(np.float64 if self._dtype == torch.float64 else np.float32)


def load_blocks(local: Callable[[int], LocalGraph], rank: int, ranks: int, **options: Any) -> BlockAdjacency:
    """Build the blocks of ``rank`` from the local graphs of all ranks; ``options`` are those of
    :class:`BlockAdjacency`.

    The other ranks' graphs say where remote rows lie in their owner's order, and which edges leave this rank's rows.
    """
    mine, dtype = local(rank), options.get("dtype", torch.float32)
    forward: list[CSR] = []
    backward: list[CSR] = []
    degrees: list[Ints | Floats] = []
    inward = _columns_by_rank(mine, dtype)
    for root in range(ranks):
        there = mine if root == rank else local(root)
        rows = len(there.owned)
        degrees.append(np.array((there.degree if there.weighted_degree is None else there.weighted_degree)[:rows]))
        targets, columns, weights = inward.get(root, _no_edges(mine, dtype))
        places = columns if root == rank else np.asarray(there.send_rows.get(rank, columns))[columns]
        forward.append(_csr(targets, places, len(mine.owned), rows, weights))
        sources, outward, weights = (targets, columns, weights) if root == rank else _columns_of(there, rank, dtype)
        own = outward if root == rank else np.asarray(mine.send_rows.get(root, outward))[outward]
        turned = _csr(own, sources, len(mine.owned), rows, weights)
        backward.append(_shared(turned, forward[root]))
    return BlockAdjacency(rank, forward, backward, degrees, **options)


Edges = tuple[Ints, Ints, Floats | None]
"""Edges as rows, columns and weights (None: they have none), each [edges]."""


def _weights(local: LocalGraph, chosen: Ints, dtype: torch.dtype) -> Floats | None:
    """Return the weights of the edges ``chosen`` of a local graph, of ``dtype``."""
    if local.csr.weights is None:
        return None
    found: Floats = np.asarray(local.csr.weights)[chosen].astype(np.float64 if dtype == torch.float64 else np.float32)
    return found


def _no_edges(local: LocalGraph, dtype: torch.dtype) -> Edges:
    none = np.empty(0, np.int64)
    return none, none, _weights(local, none, dtype)


def _columns_by_rank(local: LocalGraph, dtype: torch.dtype) -> dict[int, Edges]:
    """Return edges by the rank of their source: (own row, column from 0 on that rank, weight), rows ascending."""
    owner = np.full(local.csr.columns, local.rank, dtype=np.int32)
    place = np.arange(local.csr.columns, dtype=np.int64)
    own = len(local.owned)
    for peer, part in local.receive.items():
        owner[own + part.start : own + part.stop] = peer
        place[own + part.start : own + part.stop] = np.arange(part.stop - part.start)
    indices = np.asarray(local.csr.indices)
    rows = np.repeat(np.arange(local.csr.rows, dtype=np.int64), np.diff(local.csr.indptr))
    order = np.argsort(owner[indices], kind="stable")
    by_rank = owner[indices[order]]
    found = {}
    for peer in np.unique(by_rank).tolist():
        edges = order[np.searchsorted(by_rank, peer) : np.searchsorted(by_rank, peer, side="right")]
        found[int(peer)] = rows[edges], place[indices[edges]], _weights(local, edges, dtype)
    return found


def _columns_of(local: LocalGraph, peer: int, dtype: torch.dtype) -> Edges:
    """Return the edges of ``local``, another rank's graph, from rows of ``peer``: (row, column from 0 on that peer,
    weight)."""
    part = local.receive.get(peer, slice(0, 0))
    own = len(local.owned)
    indices = np.asarray(local.csr.indices)
    chosen = np.flatnonzero((indices >= own + part.start) & (indices < own + part.stop))
    rows = np.searchsorted(local.csr.indptr, chosen, side="right") - 1
    return (
        rows.astype(np.int64), indices[chosen].astype(np.int64) - own - part.start, _weights(local, chosen, dtype)
    )  # fmt: skip


def _csr(rows: NDArray[Any], columns: NDArray[Any], height: int, width: int, weights: Floats | None) -> CSR:
    order = np.lexsort((columns, rows))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=height)))).astype(np.int64)
    kind = np.int32 if width <= np.iinfo(np.int32).max else np.int64
    sources: Any = np.asarray(columns)[order].astype(kind)
    return CSR(indptr, sources, width, None if weights is None else weights[order])


def _with_loops(csr: CSR) -> CSR:
    """Return the edges and a self loop, of weight 1, for every row."""
    rows = np.repeat(np.arange(csr.rows, dtype=np.int64), np.diff(csr.indptr))
    own = np.arange(csr.rows, dtype=np.int64)
    weights = None if csr.weights is None else np.concatenate((csr.weights, np.ones(csr.rows, csr.weights.dtype)))
    return _csr(np.concatenate((rows, own)), np.concatenate((csr.indices, own)), csr.rows, csr.columns, weights)


def _shared(one: CSR, other: CSR) -> CSR:
    """Return ``other`` if it is equal to ``one``; ``one`` with the edges of ``other`` if only weights differ."""
    if not (np.array_equal(one.indptr, other.indptr) and np.array_equal(one.indices, other.indices)):
        return one
    if one.weights is None or other.weights is None or np.array_equal(one.weights, other.weights):
        return other
    return replace(other, weights=one.weights)
