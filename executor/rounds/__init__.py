"""Numbered rounds of requests and replies: in each, a rank asks for what it needs most, and serves what others ask.

Ranks need not come to the same operation: a round carries requests of any tasks of any batches, other ones on each
rank, and none at all where a rank has none. Source: docs/sampling_tasks.md.
"""
