"""Tables of chunks from totals, for a graph that nobody here can load: sizes by rank and batch from rho, phi and psi.

Source: HongTu's volumes; that they spread evenly over batches, and over pairs of ranks as halo rows do, is our own.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simgnn.partition.chunks.tables import (
    EDGES,
    EVICTED,
    HELD,
    LOADED,
    NEEDED,
    NEEDED_NEW,
    REMOTE,
    REMOTE_NEW,
    ROWS,
    TRANSITION,
)
from simgnn.program.sizes import IntArray, Route

MOST_CHUNKS = 2**16
"""As many as partitioners make."""
SPREAD = (
    "rows that chunks need, load and read from peers are estimated from rho, phi and psi, which hold for {chunks} "
    "chunks of each rank only, and are spread evenly over batches; rows read from peers are {read} (the least that "
    "fits), and as many of them stay from batch to batch as of rows from the host"
)


class ChunkTotals(BaseModel):
    """Rows that move in one pass over a layer with ``chunks`` chunks of each rank, as shares. ``rho``: rows that chunks
    need, over vertices (V_ori / V, own rows included); ``phi``: of these, if every row of a batch is copied from the
    host once (V_p2p / V_ori); ``psi``: of these, without rows that are in place since the batch before (V_ru / V_ori).
    None has a default: all three depend on the graph, the number of ranks and the number of chunks."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    chunks: int = Field(ge=1, le=MOST_CHUNKS, strict=True)
    rho: float = Field(ge=1.0)
    phi: float = Field(gt=0.0, le=1.0)
    psi: float = Field(gt=0.0, le=1.0)

    def faults(self, vertices: int, rows: IntArray, halo: Route) -> Iterator[tuple[str, str]]:
        """Yield (key, problem) of totals that no partition with ``rows`` [P] and these halo rows can have."""
        ranks, C = len(rows), self.chunks
        if self.psi > self.phi:
            yield "psi", f"got {self.psi:g}, expected at most phi = {self.phi:g}: rows in place save copies"
            return
        if int(rows.min()) < C:
            yield "chunks", f"got {C}, expected at most {rows.min()}, the vertices of rank {rows.argmin()}"
        if not _at_least(self.phi * ranks, 1.0):
            yield (
                "phi",
                f"got {self.phi:g}, expected at least 1 / {ranks}: a row of a batch serves at most {ranks} ranks",
            )
        once = self.rho * self.psi
        if not _at_least(once, 1.0):
            yield "psi", f"got {self.psi:g}, expected at least 1 / rho = {1 / self.rho:.4g}: every row is loaded once"
        if not _at_least(float(C), self.rho * self.phi):
            yield "phi", f"got {self.phi:g}, expected at most chunks / rho = {C / self.rho:.4g}: rows of a batch differ"
        if not _at_least(self.psi * C, self.phi):
            yield "psi", f"got {self.psi:g}, expected at least phi / chunks = {self.phi / C:.4g}: batch 0 finds no row"
        whole = 1 + int(halo.rows.sum()) / vertices
        if not _at_least(self.rho, whole):
            yield (
                "rho",
                f"got {self.rho:g}, expected at least {whole:.4g}, the rows that ranks hold with one chunk each",
            )
        if ranks > 1 and not halo.rows.any() and not _at_least(self.phi, 1.0):
            yield "phi", f"got {self.phi:g}, expected 1.0: no rank has halo rows, so none reads rows of another"
        if ranks == 1 and not _at_least(self.phi, 1.0):
            yield "phi", f"got {self.phi:g}, expected 1.0: a rank alone shares no rows"

    def tables(self, vertices: int, rows: IntArray, edges: IntArray, halo: Route) -> dict[str, IntArray]:
        """Build the tables of :mod:`simgnn.partition.chunks.tables` for a partition with ``rows`` and ``edges`` [P].

        Rows of a batch lie on ranks as their vertices do, rows that are read from peers as halo rows do. A rank's own
        rows are all that its chunks need beside those."""
        ranks, C = len(rows), self.chunks
        v_ori, v_p2p, v_ru = (round(self.rho * share * vertices) for share in (1.0, self.phi, self.psi))
        # a chunk's own rows are among those of its batch
        transition = np.minimum(_spread(np.maximum(_shares(v_p2p, rows), rows), C), rows[:, None])
        first = transition[:, :1]
        # batch 0 loads all its rows; later ones at most theirs, so that as many leave as come
        fresh = np.maximum(_shares(v_ru, transition.sum(axis=1)) - first[:, 0], 0)
        loaded = np.minimum(np.concatenate((first, _spread(fresh, C - 1)), axis=1), transition)
        evicted = np.concatenate((transition[:, :-1] - transition[:, 1:] + loaded[:, 1:], transition[:, -1:]), axis=1)
        pairs = _shares(self.read_rows(vertices, halo), halo.rows)
        remote = _spread(pairs, C)
        stay = 1 - loaded.sum() / max(1, int(transition.sum()))
        remote_new = remote.copy()
        remote_new[:, 1:] = np.round(remote[:, 1:] * (1 - _of_later(stay, C))).astype(np.int64)
        read, new = (_by_rank(table, halo, ranks) for table in (remote, remote_new))
        own = np.maximum(_shares(max(v_ori - int(pairs.sum()), 0), transition.sum(axis=1)), rows)
        own = np.minimum(_spread(own, C), transition)
        needed_new = np.concatenate(
            (own[:, :1], np.round(own[:, 1:] * (1 - _of_later(stay, C))).astype(np.int64)), axis=1
        )
        return {
            ROWS: _spread(rows, C),
            EDGES: _spread(edges, C),
            NEEDED: own + read,
            NEEDED_NEW: needed_new + new,
            TRANSITION: transition,
            LOADED: loaded,
            EVICTED: evicted,
            HELD: transition + read,
            REMOTE: _listed(remote, halo),
            REMOTE_NEW: _listed(remote_new, halo),
        }

    def read_rows(self, vertices: int, halo: Route) -> int:
        """Rows read from peers: as many as chunks need beyond those of their batches (equation 4), or each halo row
        once if that is more. Loaders that do not need a row themselves make it more still, by an unknown number."""
        return max(round(self.rho * (1 - self.phi) * vertices), int(halo.rows.sum()))


def _at_least(found: float, least: float) -> bool:
    """Whether a number is at least another one, but for the rounding of printed digits."""
    return found >= least * (1 - 1e-6)


def _of_later(stay: float, chunks: int) -> float:
    """The share of rows in place in batches behind the first, from their share in all batches."""
    return min(stay * chunks / (chunks - 1), 1.0) if chunks > 1 else 0.0


def _spread(totals: IntArray, parts: int) -> IntArray:
    """Divide each total [n] into whole parts that differ by one at most, larger ones first, int64 [n, parts]."""
    size, larger = np.divmod(totals[:, None], max(parts, 1))
    return np.asarray(size + (np.arange(parts) < larger), dtype=np.int64)


def _shares(total: int, weights: NDArray[np.int64]) -> IntArray:
    """Divide a total in proportion to weights, as whole numbers that add up, int64 [n]."""
    ends = np.cumsum(weights, dtype=np.int64)
    whole = int(ends[-1]) if len(ends) else 0
    marks = np.array([total * int(end) // max(1, whole) for end in ends], dtype=np.int64)
    return np.diff(marks, prepend=0)


def _by_rank(pairs: IntArray, halo: Route, ranks: int) -> IntArray:
    """Sum rows of pairs [n, C] over the ranks that read them, int64 [P, C]."""
    found = np.zeros((ranks, pairs.shape[1]), dtype=np.int64)
    np.add.at(found, np.asarray(halo.target), pairs)
    return found


def _listed(pairs: IntArray, halo: Route) -> IntArray:
    """List rows of pairs [n, C] as (rank, batch, owner, rows), int64 [k, 4], sorted, without zeros."""
    pair, batch = np.nonzero(pairs)
    found = np.stack((halo.target[pair], batch, halo.source[pair], pairs[pair, batch]), axis=1).astype(np.int64)
    return found[np.lexsort((found[:, 2], found[:, 1], found[:, 0]))]
