"""Layers as modules with the segments prepare, aggregate and update, over a rank's local adjacency."""

from executor.layers.build import build_layers, segments
from executor.layers.local import LocalAdjacency, Neighbourhood, aggregate

__all__ = ["LocalAdjacency", "Neighbourhood", "aggregate", "build_layers", "segments"]
