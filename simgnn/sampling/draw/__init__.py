"""How one mini-batch is drawn, from a graph that lies in one place or in parts."""
