"""Partitions of a graph: how they are made and kept, and what a rank holds of one."""
