"""Slot ``batching``: which vertices one training step covers."""
