"""Neighbour sampling: which rows and edges a mini-batch holds, decided by the experiment's seed alone.

This room lies between ``partition`` and ``emit``: it reads graphs and owners of vertices, and knows no system. ``draw``
makes one batch, ``batches`` those of a whole run, on disk or as sizes alone, and ``fetches`` says which rows of other
hosts they need. A batch is a pure function of (seed, worker, epoch, batch); which process, thread or rank computes it
cannot be seen in it.
"""
