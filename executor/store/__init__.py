"""The feature store: rows of all vertices; each host holds the rows of its partition once, in shared memory.

A rank reads rows of its own host in place; other rows arrive by request and reply or by a planned exchange. It follows
DistDGL's key-value store (Zheng et al., IA3 2020, section 5.4), with collectives in a fixed order instead of servers.
"""
