"""How transfers become ops, and what policies share."""
