"""Lists of the rows that one rank moves in each batch, one batch after the other, and where they lie."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.partition.chunks.rank_chunks import RankBatch, RankChunks
from simgnn.program.sizes import IntArray


def row_lists(chunks: Sequence[RankChunks], rank: int, reuses: bool) -> dict[str, IntArray]:
    """Return the lists of ``rank`` by name, int64 [rows of all batches]: those that
    :mod:`simgnn.emit.chunks.names` describes.

    ``chunks`` [P]: those of all ranks. ``reuses``: rows that the batch before left in the merged buffer do not move."""
    found: dict[str, list[NDArray[Any]]] = {}
    first = sum(len(one.vertices) for one in chunks[:rank])
    others = [other for other in range(len(chunks)) if other != rank]
    for position in range(chunks[rank].chunks):
        batch = chunks[rank].batch(position)
        theirs = {other: chunks[other].batch(position) for other in others}
        slots, transition = batch.slots[batch.own], np.arange(batch.own.stop - batch.own.start)
        loaded, evicted = (batch.loaded, batch.evicted) if reuses else (transition, transition)
        local = batch.transition - first
        own = own_places(batch, first)
        of: dict[str, list[NDArray[Any]]] = {
            "load_from": [local[loaded]],
            "load_to": [slots[loaded]],
            "sent": [_read(theirs[other], rank, reuses)[0] for other in others],
            "received": [_read(batch, other, reuses)[1] for other in others],
            "own": [slots[own]],
            "near": [slots[np.setdiff1d(batch.own_needed, own, assume_unique=True)]],
            "others": [other_rows(batch, first)[1]],
            "collected": [theirs[other].backward(rank)[0] for other in others],
            "evict_from": [slots[evicted]],
            "evict_to": [local[evicted]],
        }
        for name, parts in of.items():
            found.setdefault(name, []).extend(parts)
    return {name: np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64) for name, parts in found.items()}


def _read(batch: RankBatch, owner: int, reuses: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows that a batch reads from an owner: their slots there, and here."""
    return batch.forward(owner) if reuses else batch.backward(owner)


def own_places(batch: RankBatch, first: int) -> NDArray[np.int64]:
    """Return the places of a chunk's own rows in T, int64 [n]. ``first``: the gid of the rank's first row."""
    return np.searchsorted(batch.transition, np.arange(first + batch.rows.start, first + batch.rows.stop))


def other_rows(batch: RankBatch, first: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows that a chunk needs beside its own: gids and slots. Those of its rank come first, ascending, then
    those of others by owner. ``first``: the gid of the rank's first row."""
    near = np.setdiff1d(batch.own_needed, own_places(batch, first), assume_unique=True)
    gids = np.concatenate((batch.transition[near], batch.remote_rows))
    return gids, np.concatenate((batch.slots[batch.own][near], batch.remote_slots))
