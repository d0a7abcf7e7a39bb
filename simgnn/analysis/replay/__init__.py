"""Replay the decisions of a recorded run in a simulation."""
