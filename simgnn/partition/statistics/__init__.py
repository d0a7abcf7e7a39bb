"""Statistics of a partition, for planning: counted from its graph, or read from a file."""
