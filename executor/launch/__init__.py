"""Starts the ranks of a run on this host, and prepares each process before it trains."""
