"""Slot ``partition``: which rank gets which part of the graph. One file a partitioner."""
