"""Layers over the edges of one chunk, which an op of its step chooses first."""

from collections.abc import Callable
from typing import Any

from executor.state.model import Network
from simgnn.program.kinds import Segment


class ChunkNetwork(Network):
    """Layers over the edges of chunks: ops that sum over edges read the chunk's first
    (:class:`~executor.chunks.adjacency.SlotAdjacency`)."""

    def segment(self, layer: int, segment: Segment, kept: bool = False) -> Callable[..., Any]:
        """Return a part of a layer. ``aggregate`` takes edges, own rows and the merged buffer, ``edge_gradients`` edges
        and the gradient of sums; ``prepare`` takes rows and returns as many; ``update`` takes the aggregate and, if the
        layer uses them, own rows."""
        function = self._function(layer, segment, self._by_index[layer].functions())
        if segment is Segment.PREPARE:
            return lambda *rows, **options: tuple(function(part, **options) for part in rows)
        return function
