"""The mini-batches of a run: who draws which, their sizes, and their files."""
