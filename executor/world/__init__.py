"""The ranks of a run among each other: their places, hosts, process groups and one clock."""
