"""The simulator's engine: it interprets a program on a clock of integer picoseconds."""
