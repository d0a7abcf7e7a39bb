"""Effects of jitter on a simulated run: added waits, and the interval of its epochs."""
