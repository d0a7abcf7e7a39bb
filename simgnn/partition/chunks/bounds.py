"""Divides each partition into contiguous chunks of equal work."""

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.program.sizes import IntArray


def chunk_bounds(degrees: NDArray[np.int64], ids: IdMaps, chunks: int, vertex_weight: float) -> IntArray:
    """Compute the first row of each chunk and the end of the last, by row of the rank, int64 [P, C + 1].

    A chunk is a range of the rank's vertices in ascending id. Its weight is the sum of in-degree plus ``vertex_weight``
    over its vertices; chunk k begins at the first row at which the running sum reaches k / C of the total, moved so
    that every chunk has a vertex. ``degrees`` int64 [V]: in-degrees by vertex. Source: HongTu, two-level partition.
    Raises :class:`ConfigError` where a partition has fewer vertices than chunks.
    """
    rows = np.diff(ids.node_map)
    fewest = int(np.argmin(rows))
    if rows[fewest] < chunks:
        raise ConfigError(
            f"partition.chunks: got {chunks}, expected at most {rows[fewest]}, the vertices of rank {fewest}: use "
            "fewer chunks or fewer ranks"
        )
    bounds = np.empty((ids.parts, chunks + 1), dtype=np.int64)
    inner = np.arange(1, chunks)
    for rank in range(ids.parts):
        weights = degrees[ids.core(rank)] + vertex_weight
        sums = np.concatenate(([0.0], np.cumsum(weights)))
        cuts = np.searchsorted(sums, sums[-1] * inner / chunks)
        # each at least one behind the one before it, and with a vertex left for each chunk behind it
        cuts = np.maximum.accumulate(np.maximum(cuts, 1) - inner) + inner
        bounds[rank] = np.concatenate(([0], np.minimum(cuts, rows[rank] - chunks + inner), [rows[rank]]))
    return bounds
