"""Connects the ranks of a run: devices, hosts, process groups and one clock."""
