"""How the ranks of a run are started on this host, and what a process does before it works."""
