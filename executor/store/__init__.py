"""The feature store: rows of all vertices, each host holding those of its partition once, in shared memory.

A rank reads rows of its own host in place; rows of other hosts come by request and reply, or by an exchange whose sizes
both sides know. After DistDGL's key-value store (Zheng et al., IA3 2020, section 5.4), with collectives in a fixed
order in place of servers: an SPMD program has none.
"""
