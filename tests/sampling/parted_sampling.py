"""Sampling over a structure in parts by all ranks at once in one process: what travels is handed over as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.partition.local.serving import Serving
from simgnn.sampling.batches.sizes import DEGREE_BYTES, ID_BYTES, NEIGHBOUR_BYTES, SampleRequests
from simgnn.sampling.draw.parted import HostStructure, Requester
from simgnn.sampling.draw.sampler import Batch


@dataclass(frozen=True)
class Together:
    """What the ranks got; ``asked``, ``returned`` int64 [hops, P, P]: ids sent by a rank (first P) to another, and
    neighbours that it was sent back."""

    batches: list[Batch]
    asked: NDArray[np.int64]
    returned: NDArray[np.int64]


def structures(csr: CSR, owner: NDArray[np.int32], serving: Serving) -> list[HostStructure]:
    """Of every host."""
    return [HostStructure.of(csr, owner, serving, host) for host in range(serving.parts)]


def sample_together(
    held: Sequence[HostStructure],
    serving: Serving,
    fanouts: tuple[int, ...],
    seeds: Sequence[NDArray[np.int64]],
    batch_seeds: Sequence[int],
) -> Together:
    """One batch of every rank, hop by hop."""
    ranks = range(serving.ranks)
    requesters = [Requester(held[serving.hosts[rank]], serving.servers[rank], serving.ranks, fanouts) for rank in ranks]
    for requester, mine, seed in zip(requesters, seeds, batch_seeds, strict=True):
        requester.begin(mine, seed)
    shape = len(fanouts), serving.ranks, serving.ranks
    asked_of, returned = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for hop, fanout in enumerate(fanouts, start=1):
        asked = [requester.ask() for requester in requesters]
        answers: dict[tuple[int, int], tuple[NDArray[np.int32], NDArray[np.int64]]] = {}
        for server in ranks:
            counts = [int(one.counts[server]) for one in asked]
            firsts = [int(one.counts[:server].sum()) for one in asked]
            ids = [one.wanted[first : first + n] for one, first, n in zip(asked, firsts, counts, strict=True)]
            reply = held[serving.hosts[server]].serve(np.concatenate(ids), counts, batch_seeds, hop, fanout)
            degrees = np.split(reply.degrees, np.cumsum(counts)[:-1])
            neighbours = np.split(reply.neighbours, np.cumsum(reply.lengths)[:-1])
            for rank in ranks:
                answers[rank, server] = degrees[rank], neighbours[rank]
                asked_of[hop - 1, rank, server], returned[hop - 1, rank, server] = counts[rank], reply.lengths[rank]
        for rank, requester in enumerate(requesters):
            came = [answers[rank, server] for server in ranks]
            requester.stitch(
                asked[rank],
                requester.draw(asked[rank]),
                np.concatenate([degrees for degrees, _ in came]),
                np.concatenate([ids for _, ids in came]),
            )
    return Together([requester.batch() for requester in requesters], asked_of, returned)


def assert_equal_batches(found: Batch, expected: Batch) -> None:
    """Bit by bit, types included."""
    pairs = [(found.vertices, expected.vertices), (found.sizes, expected.sizes)]
    for mine, whole in zip(found.blocks, expected.blocks, strict=True):
        pairs += [(mine.indptr, whole.indptr), (mine.sources, whole.sources)]
    for one, other in pairs:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def payload_bytes(requests: SampleRequests) -> NDArray[np.int64]:
    """Bytes from each rank (row) to each other in each step, int64 [P, P, epochs, steps].

    Source: docs/systems/distdgl.md, its sampling part. Counts go ahead beside them: 8 bytes a pair and hop, as control.
    """
    ids, replies = ID_BYTES * requests.asked, DEGREE_BYTES * requests.asked + NEIGHBOUR_BYTES * requests.returned
    total: NDArray[np.int64] = (ids + np.swapaxes(replies, 1, 2)).sum(axis=0)
    ranks = np.arange(total.shape[0])
    total[ranks, ranks] = 0
    return total


def size_bytes(structure: HostStructure) -> int:
    """Bytes of all arrays of a host's structure."""
    return sum(array.nbytes for array in structure.arrays().values())
