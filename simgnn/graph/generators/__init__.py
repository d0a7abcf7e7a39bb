"""Generated graphs, in memory or streamed to disk."""
