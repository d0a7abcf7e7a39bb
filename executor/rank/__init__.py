"""One rank of a run: load data, compile the program and run it."""
