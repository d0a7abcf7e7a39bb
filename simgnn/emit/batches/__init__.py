"""Ops of mini-batches: drawing a batch, and bringing its rows to a rank."""
