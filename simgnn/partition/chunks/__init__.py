"""Chunks of partitions, for training with one chunk at a time on a device: who needs which rows, and where they lie."""
