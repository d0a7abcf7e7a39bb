"""Compute kernels over the edges of a graph: weighted sums, attention, sparse matrices times dense ones."""
