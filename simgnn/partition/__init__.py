"""Partitions of a graph: algorithms, storage on disk, statistics, and the local graph of each rank."""
