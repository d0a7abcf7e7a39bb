"""What policies and planner share to train chunk by chunk, with rows in the memory of hosts."""
