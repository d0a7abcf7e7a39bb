"""Neighbour sampling: which rows and edges a mini-batch holds, decided by the experiment's seed alone.

This room lies between ``partition`` and ``policies``: it reads graphs and owners of vertices, and knows no system. A
choice of slot ``batching`` makes a :class:`~simgnn.sampling.plan.SamplingPlan` of its fields; the same plan is sampled
ahead of time onto disk (``presample``), batch by batch at training time (``sampler``), or dry for the sizes that the
simulator prices. A batch is a pure function of (seed, worker, epoch, batch); which process, thread or rank computes it
cannot be seen in it. Batches that lie on disk decide what moves, too: which rows of other hosts a rank needs most often
(``remote``), what caches of any size save (``curve``, ``forecast``), what each batch gathers and each rank sends
(``gather``, ``serve``, ``fetchplan``), and how large all of it is (``measure``): what a program is planned from. Where
each host holds a part of the graph, hosts draw for one another (``structure``, ``requester``) and give the same
batches, with requests that a dry run counts (``request_counts``).
"""
