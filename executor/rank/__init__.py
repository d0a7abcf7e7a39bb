"""One rank of a run: it puts together what it needs, compiles its program and carries it out."""
