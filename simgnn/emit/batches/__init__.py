"""How mini-batches become ops: drawing them, and bringing their rows to a rank."""
