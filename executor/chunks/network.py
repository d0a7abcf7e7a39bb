"""Layers over the edges of one chunk, which an op of its step chooses first."""

from collections.abc import Callable
from typing import Any

from executor.state.model import Network
from simgnn.program.kinds import Segment


class ChunkNetwork(Network):
    """Built-in layers over the edges of chunks: ops that sum over edges read the chunk's first
    (:class:`~executor.chunks.adjacency.ChunkAdjacency`)."""

    def segment(self, layer: int, segment: Segment, kept: bool = False) -> Callable[..., Any]:
        """Return a part of a layer. ``aggregate`` takes edges, own rows and the merged buffer, ``edge_gradients`` edges
        and the gradient of sums; ``update`` takes the aggregate and, if the layer uses them, own rows."""
        return self._function(layer, segment, self._by_index[layer].functions())
