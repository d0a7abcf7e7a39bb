"""Small graphs for the tests of sampling, and a slow reading of its definition: sets and lists, no Numba."""

import hashlib
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.sampling.draw.sampler import Batch

MASK = 2**64 - 1
PHI = 0x9E3779B97F4A7C15


def csr_of(rows: list[list[int]], columns: int | None = None) -> CSR:
    """A CSR of the given in-neighbours."""
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    flat = [source for row in rows for source in sorted(row)]
    return CSR(indptr, np.array(flat, np.int32), columns or len(rows)).check()


def hubs(vertices: int = 300, hubs: int = 20, seed: int = 0) -> CSR:
    """Rows of very different lengths: the first ``hubs`` have 30 to 220 neighbours, the others 0 to 12."""
    random = np.random.default_rng(seed)
    long = np.linspace(30, 220, hubs).astype(int)
    lengths = [*long, *random.integers(0, 13, vertices - hubs)]
    return csr_of([random.choice(vertices, length, replace=False).tolist() for length in lengths])


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def literal_hash(tag: str, *numbers: int) -> int:
    raw = b"".join(struct.pack("<Q", number) for number in numbers)
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8, person=tag.encode()).digest(), "little")


def literal_order(vertices: list[int], seed: int, worker: int, epoch: int) -> list[int]:
    start = literal_hash("perm", seed, worker, epoch)
    return sorted(vertices, key=lambda vertex: (mix(start ^ mix(vertex)), vertex))


def literal_choice(row: list[int], seed: int, vertex: int, hop: int, fanout: int) -> list[int]:
    if fanout < 0 or len(row) <= fanout:
        return row
    held: list[int] = []
    stream = mix(mix((seed + PHI) & MASK) ^ ((vertex + PHI) & MASK))
    for last in range(len(row) - fanout, len(row)):
        turn = (hop << 32) | (last - (len(row) - fanout))
        drawn = mix(stream ^ ((turn + PHI) & MASK)) * (last + 1) >> 64
        held.append(last if drawn in held else drawn)
    return [row[place] for place in sorted(held)]


def literal_batch(
    csr: CSR, seeds: list[int], seed: int, fanouts: tuple[int, ...]
) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
    """Vertices, and of every hop its pointers and places of sources."""
    held, blocks = list(seeds), []
    for hop, fanout in enumerate(fanouts, start=1):
        rows = [csr.indices[csr.indptr[v] : csr.indptr[v + 1]].tolist() for v in held]
        drawn = [literal_choice(row, seed, v, hop, fanout) for v, row in zip(held, rows, strict=True)]
        grown = held + sorted({source for row in drawn for source in row} - set(held))
        place = {vertex: k for k, vertex in enumerate(grown)}
        pointers = np.cumsum([0, *map(len, drawn)]).tolist()
        blocks.append((pointers, [place[source] for row in drawn for source in row]))
        held = grown
    return held, blocks


def plain(batch: Batch) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
    """A batch in the form of ``literal_batch``."""
    blocks = [(block.indptr.tolist(), block.sources.tolist()) for block in batch.blocks]
    return batch.vertices.tolist(), blocks


def owners(vertices: int, ranks: int, seed: int = 1) -> NDArray[np.int32]:
    """Random owners."""
    return np.random.default_rng(seed).integers(0, ranks, vertices).astype(np.int32)


def global_sources(batch: Batch, hop: int) -> NDArray[Any]:
    """Ids of the sources of every edge of ``hop`` (from 1)."""
    return np.asarray(batch.vertices[batch.blocks[hop - 1].sources])
