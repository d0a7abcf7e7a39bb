"""The remote rows that batches need: which rank sends them, and which of them a cache keeps."""
