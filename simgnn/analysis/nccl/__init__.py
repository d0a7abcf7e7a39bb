"""Fit NCCL all-reduce times from measured tables, and score the fits on held-out measurements."""
