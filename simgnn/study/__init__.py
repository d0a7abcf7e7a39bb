"""Studies: scores of predictions over many experiments."""
