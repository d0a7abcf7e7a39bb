"""Plans the program of an experiment from the statistics of its partition."""
