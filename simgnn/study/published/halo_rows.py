"""Lists the halo rows of a partition that is given by totals: what caches hold, and what is dropped, are single rows.

Which halo rows are of the same vertex, how many edges come from each, and in which order they are dropped, is assumed
to be as on a graph that is available.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log
from typing import Annotated, Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictFloat, StrictInt, StrictStr, model_validator

from simgnn.errors import ConfigError
from simgnn.hardware.profile.quantities import Strict
from simgnn.partition.statistics.halo_rows import HALO_VERTICES, ROW_EDGES, ROW_ORDER
from simgnn.program.sizes import IntArray

Share = Annotated[StrictFloat, Field(ge=0.0, le=1.0)]
Positive = Annotated[StrictFloat, Field(gt=0.0)]
SEED = 0
"""Of the vertices that ranks need, and of the order in which rows are dropped."""


class OfDegree(Protocol):
    """What was counted on a graph with ``degree`` in-edges per vertex."""

    @property
    def degree(self) -> float: ...


Like = TypeVar("Like", bound=OfDegree)


def nearest_degree(counted: Sequence[Like], degree: float) -> Like:
    """Return what was counted on the graph whose in-edges per vertex are nearest to ``degree``, by ratio."""
    return min(counted, key=lambda one: abs(log(one.degree / degree)))


class GraphHalo(Strict):
    """Halo rows counted on the parts of a graph: ``degree``, in-edges per vertex; ``halo``, halo rows of all ranks over
    vertices; ``cut``, the share of edges that come from halo rows; ``sharing``, halo rows over the vertices that they
    are of; ``edges``, for each of :attr:`HaloLike.shares` of a rank's halo rows, those that are dropped first, the
    share of the edges from them, one edge of each row left out."""

    graph: StrictStr
    degree: Positive
    halo: Annotated[StrictFloat, Field(ge=0.0)]
    cut: Share
    sharing: Annotated[StrictFloat, Field(ge=1.0)]
    edges: Annotated[tuple[Share, ...], Field(min_length=2)]


class HaloLike(Strict):
    """Halo rows of parts for ``ranks``, counted on graphs that are available. A graph that is not available is taken to
    be like the graph in ``of`` with the nearest number of in-edges per vertex."""

    ranks: Annotated[StrictInt, Field(ge=2)]
    shares: Annotated[tuple[Positive, ...], Field(min_length=2)]
    of: Annotated[tuple[GraphHalo, ...], Field(min_length=1)]
    assumed: Annotated[StrictStr, Field(pattern=r"\S")]

    @model_validator(mode="after")
    def _grow(self) -> Self:
        if self.shares[-1] != 1.0 or any(b <= a for a, b in pairwise(self.shares)):
            raise ValueError("shares: expected increasing numbers that end with 1.0")
        for one in self.of:
            if len(one.edges) != len(self.shares) or one.edges[-1] != 1.0 or any(b < a for a, b in pairwise(one.edges)):
                raise ValueError(f"of.edges ({one.graph}): expected one for each share, none falling, the last 1.0")
        return self

    def like(self, degree: float, ranks: int) -> GraphHalo:
        """Return the counted graph that is nearest in degree. Raises :class:`ConfigError` for another rank count."""
        if ranks != self.ranks:
            raise ConfigError(f"halo_rows.ranks: got {self.ranks}, but a table needs {ranks}; count these, too")
        return nearest_degree(self.of, degree)


def listed(
    like: HaloLike, counted: GraphHalo, cut: float, halo: IntArray, rows: IntArray, edges: IntArray
) -> dict[str, NDArray[Any]]:
    """Return the tables of halo rows of parts with ``rows``, ``edges`` [P] and ``halo`` [owner, rank] rows.

    ``cut``: share of a rank's edges that come from halo rows, at least one of each. Each rank needs its number of an
    owner's vertices, drawn so that ``counted.sharing`` rows are of one vertex on average; the order in which its rows
    are dropped is drawn, too, and the edges from each row follow from its place in that order."""
    ranks, draw = len(rows), np.random.default_rng(SEED)
    drawn_from = [_drawn_from(int(rows[owner]), halo[owner], counted.sharing) for owner in range(ranks)]
    first = np.cumsum([0, *drawn_from])
    vertices, row_edges, places = list[IntArray](), list[IntArray](), list[IntArray]()
    blocks = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        for owner in np.flatnonzero(halo[:, rank]).tolist():
            drawn = draw.choice(drawn_from[owner], int(halo[owner, rank]), replace=False, shuffle=False)
            vertices.append(first[owner] + np.sort(drawn))
        received = int(halo[:, rank].sum())
        total = min(max(round(cut * int(edges[rank])), received), int(edges[rank]))
        place = draw.permutation(received)
        weights = _edges_by_place(like, counted, received, total)[place]
        blocks[rank] = np.bincount(np.repeat(np.arange(ranks), halo[:, rank]), weights, minlength=ranks)
        blocks[rank, rank] = edges[rank] - blocks[rank].sum()
        row_edges.append(weights)
        places.append(place)
    return {
        HALO_VERTICES: np.concatenate(vertices).astype(np.int32),
        ROW_EDGES: np.concatenate(row_edges),
        ROW_ORDER: np.concatenate(places).astype(np.int32),
        "block_edges": blocks,
        "cut_edges": edges - np.diag(blocks),
    }


def _drawn_from(rows: int, sent: IntArray, sharing: float) -> int:
    """Return of how many of an owner's ``rows`` each rank draws the ``sent`` [P] rows that it needs, so that on average
    ``sharing`` rows are of one vertex; of all, where even these are too few to share less."""

    def shared(drawn_from: int) -> float:
        """Return the rows over the vertices that any rank draws."""
        return int(sent.sum()) / float(drawn_from * (1.0 - np.prod(1.0 - sent / drawn_from)))

    low, high = int(sent.max()), rows
    if low == 0 or shared(low) <= sharing:
        return low
    while high - low > 1:  # more rows to draw from are shared less
        middle = (low + high) // 2
        low, high = (low, middle) if shared(middle) <= sharing else (middle, high)
    return high


def _edges_by_place(like: HaloLike, counted: GraphHalo, rows: int, edges: int) -> IntArray:
    """Return the edges from each of ``rows`` halo rows, int64 [rows], in the order in which they are dropped: one of
    each, and what is left of ``edges`` as on the counted graph."""
    share = np.arange(rows + 1) / max(rows, 1)
    beyond = np.interp(share, (0.0, *like.shares), (0.0, *counted.edges))
    ends: IntArray = np.round(beyond * (edges - rows)).astype(np.int64)
    return 1 + ends[1:] - ends[:-1]
