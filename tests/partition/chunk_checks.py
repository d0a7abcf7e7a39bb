"""Checks of planned chunks against their graph that are fast enough for large ones."""

from collections.abc import Iterable

import numpy as np

from simgnn.graph.csr import CSR
from simgnn.partition.chunks.needed_rows import ChunkedGraph
from simgnn.partition.chunks.rank_chunks import RankBatch, RankChunks
from simgnn.partition.chunks.volumes import Volumes


def check_chunks(chunked: ChunkedGraph, volumes: Volumes, ranks: Iterable[RankChunks]) -> None:
    """Every edge lies once in the chunk of its destination, at the slots of its source and in the order of the graph;
    rows that stay are not moved; T is disjoint and loaded as often as evicted; sums are the volumes."""
    csr, edges, idle, loaded, transition, largest = chunked.csr, 0, 0, 0, 0, 0
    for rank in ranks:
        before: RankBatch | None = None
        evicted = brought = 0
        seen = np.zeros(len(rank.vertices), dtype=np.int64)
        for batch in rank.batches():
            check_edges(chunked, rank, batch)
            assert len(np.unique(batch.slots)) == len(batch.slots) == len(batch.held)
            own = chunked.owned(rank.rank)
            assert own.start <= batch.transition.min(initial=own.start)
            assert batch.transition.max(initial=own.start) < max(own.stop, own.start + 1)
            if before is not None:
                _, one, other = np.intersect1d(before.held, batch.held, assume_unique=True, return_indices=True)
                assert np.array_equal(before.slots[one], batch.slots[other])
                assert np.array_equal(before.transition[before.kept], batch.transition[batch.reused])
            seen[batch.rows] += 1
            before = batch
            brought, evicted = brought + len(batch.loaded), evicted + len(batch.evicted)
            idle += len(batch.transition) - len(batch.own_needed)
            edges, transition = edges + batch.csr.edges, transition + len(batch.transition)
            largest = max(largest, len(batch.held))
        assert brought == evicted
        assert (seen == 1).all()
        assert rank.buffer_rows == int(rank.arrays["slots"].max()) + 1
        loaded += brought
    assert edges == csr.edges
    assert (loaded, transition) == (volumes.v_ru, volumes.v_p2p)
    assert volumes.v_dd == volumes.v_ori - volumes.v_p2p + idle


def check_edges(chunked: ChunkedGraph, rank: RankChunks, batch: RankBatch) -> None:
    csr: CSR = chunked.csr
    vertex_in = np.full(rank.buffer_rows, -1)
    vertex_in[batch.slots] = chunked.ids.new2old[batch.held]
    starts = csr.indptr[rank.vertices[batch.rows]]
    lengths = np.diff(batch.csr.indptr)
    assert np.array_equal(lengths, csr.indptr[rank.vertices[batch.rows] + 1] - starts)
    places = np.repeat(starts - batch.csr.indptr[:-1], lengths) + np.arange(batch.csr.edges)
    assert np.array_equal(vertex_in[batch.csr.indices], csr.indices[places])
