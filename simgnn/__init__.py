"""simgnn: predict and run distributed training of graph neural networks from one experiment file."""

__version__ = "0.1.0"
