"""A graph neural network as layers, shapes and costs; no torch."""
