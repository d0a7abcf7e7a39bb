"""A batch drawn by many small tasks, of which several threads run several at once.

The batch equals that of the one-shot sampler bit by bit, whatever the size of chunks, the number of threads and the
order in which tasks end: a neighbour choice depends on (batch seed, vertex, hop) alone, and the last task sorts.
Source: ByteGNN (Zheng et al., PVLDB 15(6), 2022, sections 4 and 5).
"""
