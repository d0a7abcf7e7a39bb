"""Studies over many experiments."""
