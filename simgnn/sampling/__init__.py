"""Neighbour sampling: which rows and edges a mini-batch holds, decided by the experiment's seed alone.

A batch is a pure function of (seed, worker, epoch, batch): it does not depend on process, thread or rank.
"""
