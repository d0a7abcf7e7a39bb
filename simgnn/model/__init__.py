"""A graph neural network as layers, shapes and costs, without torch."""
