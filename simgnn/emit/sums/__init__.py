"""How the sum of a layer over all in-edges becomes ops, one file for each way of dividing the edges."""
