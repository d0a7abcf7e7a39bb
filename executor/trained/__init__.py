"""Uses trained models: exports them as plain PyTorch modules, and computes the scores of all vertices with them."""
