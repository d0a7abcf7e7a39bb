"""Memory of devices before a run: budgets, and numbers of chunks that fit."""
