"""Compute kernels of the executor: aggregation, sparse features, fused epilogues, rows picked and added by index."""
