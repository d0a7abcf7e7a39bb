"""What one rank does in each batch: rows that it holds and their slots, what it loads, reads, keeps and evicts, and its
chunk's edges by slot."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.partition.chunks.kernels import count_members, list_members, place_rows
from simgnn.partition.chunks.needed_rows import ChunkedGraph, Masks
from simgnn.partition.edges import index_array
from simgnn.partition.local.edge_cut_kernels import gathered_rows
from simgnn.program.sizes import IntArray

Places = NDArray[np.int32]
DTYPES: Mapping[str, tuple[str, ...]] = {
    "vertices": ("i8",), "rows": ("i8",), "held": ("i4", "i8"), "held_starts": ("i8",), "owner_starts": ("i8",),
    "slots": ("i4",), "own_needed": ("i4",), "own_needed_starts": ("i8",), "loaded": ("i4",), "loaded_starts": ("i8",),
    "evicted": ("i4",), "evicted_starts": ("i8",), "remote_new": ("b1",), "needed_new": ("i8",), "indptr": ("i8",),
    "indices": ("i4",), "at_owner": ("i4",),
}  # fmt: skip
"""Arrays of a rank, by name, with the types that each may have."""
WEIGHTS: Mapping[str, tuple[str, ...]] = {"weights": ("f8",)}
"""The array that is there where edges have weights."""


@dataclass(frozen=True)
class RankBatch:
    """A batch of one rank: its chunk, and the merged buffer while the chunk is computed.

    ``rows``: the chunk's rows among the rank's own, in the order of its vertices. ``held`` [D]: gids of the rows in the
    merged buffer, ascending, and ``slots`` int32 [D], where each lies. ``own``: the slice of ``held`` with the own
    vertices that any rank needs, T. ``loaded``, ``evicted`` int32: places in T of rows that come from the
    host before the batch, and of rows whose gradients go there after it. ``own_needed`` int32: places in T of own rows
    that the chunk needs; it also needs all rows of others. ``remote``: for each owner, the slice of its rows among the
    R rows of others, ascending by gid. ``at_owner`` int32 [R]: their slots at their owners; ``remote_new`` bool [R]:
    rows that the batch before did not leave in the buffer. ``csr``: in-edges of the chunk's rows; indices are slots, in
    the order of the graph (ascending by the sources' ids).
    """

    rows: slice
    held: NDArray[np.integer[Any]]
    slots: Places
    own: slice
    loaded: Places
    evicted: Places
    own_needed: Places
    remote: Mapping[int, slice]
    at_owner: Places
    remote_new: NDArray[np.bool_]
    csr: CSR

    @property
    def transition(self) -> NDArray[np.integer[Any]]:
        """Gids of T: own rows that any rank needs in this batch."""
        return self.held[self.own]

    @property
    def remote_rows(self) -> NDArray[np.integer[Any]]:
        """Gids of R: rows of others that the chunk needs, ascending."""
        return self._without_own(self.held)

    @property
    def remote_slots(self) -> Places:
        """Slots of the rows of others, here, int32 [R]."""
        return self._without_own(self.slots)

    @property
    def reused(self) -> Places:
        """Places in T of rows that lie in their slots since the batch before."""
        return _others(self.loaded, self.own.stop - self.own.start)

    @property
    def kept(self) -> Places:
        """Places in T of rows that stay for the next batch."""
        return _others(self.evicted, self.own.stop - self.own.start)

    @property
    def needed(self) -> NDArray[np.integer[Any]]:
        """Gids of N: all rows that the chunk needs, ascending."""
        own = self.transition[self.own_needed]
        return np.concatenate((self.held[: self.own.start], own, self.held[self.own.stop :]))

    def forward(self, owner: int) -> tuple[Places, Places]:
        """The rows that are read from ``owner`` for the forward pass: slots there, and slots here."""
        part = self.remote.get(owner, slice(0, 0))
        new = self.remote_new[part]
        return self.at_owner[part][new], self.remote_slots[part][new]

    def backward(self, owner: int) -> tuple[Places, Places]:
        """The rows whose gradients are added to those of ``owner``: slots there, and slots here."""
        part = self.remote.get(owner, slice(0, 0))
        return self.at_owner[part], self.remote_slots[part]

    def _without_own(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((array[: self.own.start], array[self.own.stop :]))


@dataclass(frozen=True)
class RankChunks:
    """All batches of one rank, in named arrays (:data:`DTYPES`), which may be memory-mapped.

    ``vertices`` int64 [n]: ids of the rank's own vertices, ascending. ``rows`` int64 [C, 2]: first row and end of the
    chunk of each batch. Flat arrays hold one batch after another; ``..._starts`` [C + 1] are the first places of each.
    ``owner_starts`` int64 [C, P + 1]: in ``held`` of each batch, the first place of each owner's rows, and the end.
    ``needed_new`` int64 [C]: rows that a chunk needs and the one before does not.
    """

    rank: int
    arrays: Mapping[str, NDArray[Any]]

    @property
    def chunks(self) -> int:
        """Number of batches C."""
        return len(self.arrays["rows"])

    @property
    def vertices(self) -> NDArray[np.int64]:
        """Ids of the rank's own vertices."""
        return self.arrays["vertices"]

    @property
    def buffer_rows(self) -> int:
        """Rows of the merged buffer: those of the largest batch."""
        return int(np.diff(self.arrays["held_starts"]).max())

    def batch(self, position: int) -> RankBatch:
        """Return a batch; its arrays are views."""
        arrays = self.arrays
        bounds = arrays["owner_starts"][position]
        own = slice(int(bounds[self.rank]), int(bounds[self.rank + 1]))
        held = self._piece("held", position)
        remote = slice(*self.remote_starts[position : position + 2].tolist())
        # places among the rows of others: those behind the own ones move forward
        starts = np.where(np.arange(len(bounds)) > self.rank, bounds - (own.stop - own.start), bounds).tolist()
        owners = np.flatnonzero(np.diff(starts)).tolist()
        first, end = arrays["rows"][position].tolist()
        before = int(np.diff(arrays["rows"][:position], axis=1).sum())
        indptr = arrays["indptr"][before : before + end - first + 1]
        edges = slice(int(indptr[0]), int(indptr[-1]))
        weights = arrays["weights"][edges] if "weights" in arrays else None
        return RankBatch(
            rows=slice(first, end),
            held=held,
            slots=arrays["slots"][arrays["held_starts"][position] : arrays["held_starts"][position + 1]],
            own=own,
            loaded=self._piece("loaded", position),
            evicted=self._piece("evicted", position),
            own_needed=self._piece("own_needed", position),
            remote={owner: slice(starts[owner], starts[owner + 1]) for owner in owners},
            at_owner=arrays["at_owner"][remote],
            remote_new=arrays["remote_new"][remote],
            csr=CSR(indptr - indptr[0], arrays["indices"][edges], self.buffer_rows, weights),
        )

    def batches(self) -> Iterator[RankBatch]:
        """Yield all batches in turn."""
        return map(self.batch, range(self.chunks))

    @property
    def remote_starts(self) -> IntArray:
        """First place of each batch among the rows of others, and the end, int64 [C + 1]."""
        return remote_starts(self.rank, self.arrays["owner_starts"])

    def _piece(self, name: str, position: int) -> NDArray[Any]:
        starts = self.arrays[f"{name}_starts"]
        return self.arrays[name][starts[position] : starts[position + 1]]


def remote_starts(rank: int, owner_starts: IntArray) -> IntArray:
    """Compute the first place of each batch among the rows of others, and the end, int64 [C + 1]."""
    remote = owner_starts[:, -1] - (owner_starts[:, rank + 1] - owner_starts[:, rank])
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(remote)))


def remote_rows(rank: int, owner_starts: IntArray, chosen: NDArray[np.bool_]) -> IntArray:
    """Count the ``chosen`` bool [R] rows of others in each batch by owner, int64 [C, P]."""
    sizes = np.diff(owner_starts, axis=1)
    sizes[:, rank] = 0
    ends = np.cumsum(sizes.reshape(-1))
    totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(chosen)))
    return np.asarray(totals[ends] - totals[ends - sizes.reshape(-1)], dtype=np.int64).reshape(sizes.shape)


def rank_arrays(graph: ChunkedGraph, rank: int, transition: Masks) -> dict[str, NDArray[Any]]:
    """Compute the arrays of one rank of :class:`RankChunks`, except ``at_owner``, which needs those of all ranks.

    ``transition``: masks of the batches in which any rank needs each row, in the order of ``graph``."""
    own, chunks = graph.owned(rank), graph.chunks
    needed = graph.needed(rank)
    own_needed = needed[own].copy()
    masks = graph.held(needed, transition, rank)
    held_starts = _totals(count_members(masks, chunks))
    held = index_array(int(held_starts[-1]), graph.csr.rows)
    list_members(masks, held_starts, held)
    sets = [held[held_starts[j] : held_starts[j + 1]] for j in range(chunks)]
    owner_starts = np.array([np.searchsorted(ids, graph.ids.node_map) for ids in sets]).reshape(chunks, -1)
    loaded, evicted, needs, new = ([] for _ in range(4))
    needed_new = np.zeros(chunks, dtype=np.int64)
    for j, (ids, bounds) in enumerate(zip(sets, owner_starts, strict=True)):
        mine = ids[bounds[rank] : bounds[rank + 1]]
        others = np.concatenate((ids[: bounds[rank]], ids[bounds[rank + 1] :]))
        loaded.append(np.flatnonzero(~_has(masks, mine, j - 1)))
        evicted.append(np.flatnonzero(~_has(masks, mine, j + 1 if j + 1 < chunks else -1)))
        needs.append(np.flatnonzero(_has(own_needed, mine - own.start, j)))
        new.append(~_has(masks, others, j - 1))
        first_needed = ~_has(own_needed, mine[needs[j]] - own.start, j - 1)
        needed_new[j] = np.count_nonzero(first_needed) + np.count_nonzero(new[j])
    arrays = {
        "vertices": graph.ids.core(rank),
        "held": held,
        "held_starts": held_starts,
        "owner_starts": owner_starts,
        "remote_new": np.concatenate(new),
        "needed_new": needed_new,
        **_flat("loaded", loaded),
        **_flat("evicted", evicted),
        **_flat("own_needed", needs),
    }
    return arrays | _slots_and_edges(graph, rank, masks, sets)


def _slots_and_edges(graph: ChunkedGraph, rank: int, masks: Masks, sets: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Give the held rows of each batch their slots, and rewrite the edges of its chunk to slots."""
    csr, members = graph.csr, graph.ids.core(rank)
    indptr, indices = np.asarray(csr.indptr), np.asarray(csr.indices)
    bounds, order = graph.bounds[rank], graph.order[rank]
    sizes = [len(ids) for ids in sets]
    slots = np.empty(sum(sizes), dtype=np.int32)
    slot_of = np.zeros(csr.rows, dtype=np.int32)
    free = np.zeros(max(sizes), dtype=np.bool_)
    edges = int((indptr[members + 1] - indptr[members]).sum())
    sources, pointers = np.empty(edges, dtype=np.int32), np.zeros(len(members) + 1, dtype=np.int64)
    before: NDArray[Any] = np.empty(0, dtype=sets[0].dtype)
    top = row = edge = place = 0
    for j, ids in enumerate(sets):
        part = slots[place : place + len(ids)]
        top = place_rows(before, ids, masks, j, graph.ids.new2old, slot_of, free, top, part)
        chunk = members[bounds[order[j]] : bounds[order[j] + 1]]
        size = int((indptr[chunk + 1] - indptr[chunk]).sum())
        found = gathered_rows(indptr, indices, chunk, slot_of, sources[edge : edge + size])
        pointers[row : row + len(found)] = edge + found
        before, place, row, edge = ids, place + len(ids), row + len(chunk), edge + size
    assert top == max(sizes), "rows of the largest batch take every slot, and no more are needed"
    rows = np.stack((bounds[order], bounds[order + 1]), axis=1)
    arrays: dict[str, NDArray[Any]] = {"slots": slots, "indptr": pointers, "indices": sources, "rows": rows}
    if csr.weights is not None:
        first = indptr[np.concatenate([members[begin:end] for begin, end in rows])]
        arrays["weights"] = csr.weights[np.repeat(first - pointers[:-1], np.diff(pointers)) + np.arange(edges)]
    return arrays


def slots_at_owners(held: Mapping[int, Mapping[str, NDArray[Any]]], rank: int) -> Places:
    """Find the slot at its owner of every row of others that ``rank`` needs, batch after batch, ascending by gid:
    ``at_owner`` of :class:`RankChunks`. ``held``: ``held``, ``held_starts``, ``owner_starts`` and ``slots`` of each
    rank."""
    mine = held[rank]
    found = [np.empty(0, dtype=np.int32)]
    for j, bounds in enumerate(np.asarray(mine["owner_starts"])):
        ids = mine["held"][mine["held_starts"][j] : mine["held_starts"][j + 1]]
        for owner in np.flatnonzero(np.diff(bounds)).tolist():
            if owner == rank:
                continue
            there = held[owner]
            begin, end = (there["held_starts"][j] + there["owner_starts"][j, owner + k] for k in (0, 1))
            places = np.searchsorted(there["held"][begin:end], ids[bounds[owner] : bounds[owner + 1]])
            found.append(there["slots"][begin:end][places])
    return np.concatenate(found)


def _has(masks: Masks, ids: NDArray[Any], position: int) -> NDArray[np.bool_]:
    """Whether each of ``ids`` [n] has a position, bool [n]; none has position -1."""
    if position < 0:
        return np.zeros(len(ids), dtype=np.bool_)
    bits = masks[ids, position >> 6] >> np.uint64(position & 63)
    return np.asarray(bits & np.uint64(1), dtype=np.bool_)


def _others(places: Places, length: int) -> Places:
    """The numbers below ``length`` that are not in ``places``."""
    left = np.ones(length, dtype=np.bool_)
    left[places] = False
    return np.flatnonzero(left).astype(np.int32)


def _flat(name: str, lists: list[NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
    starts = _totals(np.array([len(each) for each in lists]))
    return {name: np.concatenate(lists).astype(np.int32), f"{name}_starts": starts}


def _totals(counts: IntArray) -> IntArray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
