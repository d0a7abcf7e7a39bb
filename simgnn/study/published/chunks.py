"""Chunks of a published graph that is not here: how many of their rows are shared, taken from a graph that is."""

from math import log
from typing import Annotated

from pydantic import Field, StrictFloat, StrictInt, StrictStr, StringConstraints

from simgnn.errors import ConfigError
from simgnn.hardware.profile.quantities import Strict
from simgnn.tomlfile import Table

Share = Annotated[StrictFloat, Field(gt=0.0, le=1.0)]
Factor = Annotated[StrictFloat, Field(ge=1.0)]
Count = Annotated[StrictInt, Field(ge=1)]


class Replicated(Strict):
    """Chunks of each rank, and how many rows they need, over vertices (V_ori / V), as a paper prints it."""

    chunks: Count
    rho: Factor


class CountedChunks(Strict):
    """Rows that the chunks of a graph that is here move with ``ranks`` ranks and ``chunks`` chunks of each: ``rho`` is
    V_ori / V, ``phi`` is V_p2p / V_ori, ``psi`` is V_ru / V_ori, in the order of chunks that was chosen."""

    graph: StrictStr
    ranks: Count
    chunks: Count
    rho: Factor
    phi: Share
    psi: Share


class ChunksLike(Strict):
    """Counted chunks. A graph that is not here is taken to share rows as that in ``of`` does whose chunks, as many on
    as many ranks, need nearest as many rows for each vertex, by their ratio."""

    of: Annotated[tuple[CountedChunks, ...], Field(min_length=1)]
    assumed: Annotated[str, StringConstraints(strict=True, pattern=r"\S")]

    def like(self, ranks: int, one: Replicated) -> CountedChunks:
        """Return the counted chunks that are like ``one``. Raises :class:`ConfigError` if none are as many."""
        found = [other for other in self.of if (other.ranks, other.chunks) == (ranks, one.chunks)]
        if not found:
            raise ConfigError(
                f"chunks.of: has no graph in {one.chunks} chunks on each of {ranks} ranks, which a table needs; add it"
            )
        return min(found, key=lambda other: abs(log(other.rho / one.rho)))


def chunk_totals(like: ChunksLike | None, ranks: int, stated: Replicated | None, whole: float, sharing: float) -> Table:
    """Build the table ``[partition.chunks]`` of a statistics file. ``stated``: None for one chunk of each rank, whose
    rows are those that ranks hold: ``whole``, over vertices. ``sharing``: factor on the rows that cross the host's
    link, between the bounds that any partition has. Raises :class:`ConfigError` if nothing is counted."""
    if stated is None or stated.chunks == 1:
        return {"chunks": 1, "rho": whole, "phi": 1 / whole, "psi": 1 / whole}
    if like is None:
        raise ConfigError("chunks: missing, and a table needs rows that chunks share; add it")
    counted, rho = like.like(ranks, stated), max(stated.rho, whole)
    phi = min(max(counted.phi, 1 / ranks, 1 / rho), 1.0, stated.chunks / rho)
    psi = min(max(counted.psi * sharing, 1 / rho, phi / stated.chunks), phi)
    return {"chunks": stated.chunks, "rho": rho, "phi": phi, "psi": psi}
