"""The algorithms by which partitioners divide a graph."""
