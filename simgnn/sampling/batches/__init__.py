"""The mini-batches of a run: which worker samples which batch, batch sizes, and files."""
