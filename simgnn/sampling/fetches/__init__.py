"""The remote rows that batches need: who sends them, and which of them a cache keeps."""
