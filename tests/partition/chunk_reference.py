"""A slow reading of HongTu's sets, slots and greedy orders, with Python sets, straight from their definitions."""

import heapq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.hardware.price.transfer_rates import TransferRates
from simgnn.partition.chunks.volumes import PeerRows

Grid = list[list[set[int]]]
"""A set for each rank and batch."""


@dataclass
class Reference:
    """A graph divided into chunks, in gids: vertices numbered by (owner, id). ``chunk[i][k]``: destinations of chunk k
    of rank i; ``vertex``: id of each gid."""

    csr: CSR
    vertex: list[int]
    first: list[int]
    chunk: list[list[list[int]]]
    with_self: bool

    @classmethod
    def of(
        cls, csr: CSR, owner: NDArray[np.int32], ranks: int, chunks: int, weight: float, with_self: bool
    ) -> "Reference":
        vertex = sorted(range(csr.rows), key=lambda v: (owner[v], v))
        rows = [int((owner == rank).sum()) for rank in range(ranks)]
        first = [sum(rows[:rank]) for rank in range(ranks + 1)]
        divided = []
        for rank in range(ranks):
            own = list(range(first[rank], first[rank + 1]))
            degrees = [int(csr.indptr[vertex[g] + 1] - csr.indptr[vertex[g]]) for g in own]
            sums = [0.0]
            for degree in degrees:
                sums.append(sums[-1] + degree + weight)
            cuts = [0]
            for k in range(1, chunks):
                reached = next(place for place, total in enumerate(sums) if total >= sums[-1] * k / chunks)
                cuts.append(min(max(reached, cuts[-1] + 1), len(own) - (chunks - k)))
            divided.append([own[begin:end] for begin, end in pairwise([*cuts, len(own)])])
        return cls(csr, vertex, first, divided, with_self)

    @property
    def ranks(self) -> int:
        return len(self.chunk)

    @property
    def chunks(self) -> int:
        return len(self.chunk[0])

    def own(self, rank: int) -> set[int]:
        return set(range(self.first[rank], self.first[rank + 1]))

    def sources(self, gid: int) -> list[int]:
        """Sources of a row's edges, in the order of the graph."""
        gid_of = {vertex: place for place, vertex in enumerate(self.vertex)}
        v = self.vertex[gid]
        return [gid_of[int(u)] for u in self.csr.indices[self.csr.indptr[v] : self.csr.indptr[v + 1]]]

    def needs(self) -> Grid:
        """N of each rank and chunk, in the order as divided."""
        gid_of = {vertex: place for place, vertex in enumerate(self.vertex)}
        found: Grid = []
        for chunks in self.chunk:
            found.append([])
            for rows in chunks:
                need = set(rows) if self.with_self else set()
                for gid in rows:
                    v = self.vertex[gid]
                    need |= {gid_of[int(u)] for u in self.csr.indices[self.csr.indptr[v] : self.csr.indptr[v + 1]]}
                found[-1].append(need)
        return found


@dataclass
class Sets:
    """All sets of an order of chunks, [rank][batch]."""

    needed: Grid
    transition: Grid
    reused: Grid
    loaded: Grid
    evicted: Grid
    remote: Grid
    remote_new: Grid
    held: Grid

    @classmethod
    def of(cls, reference: Reference, order: list[list[int]]) -> "Sets":
        ranks, chunks = range(reference.ranks), range(reference.chunks)
        needs = reference.needs()
        N = [[needs[i][order[i][j]] for j in chunks] for i in ranks]
        U = [set().union(*(N[i][j] for i in ranks)) for j in chunks]
        V = [reference.own(i) for i in ranks]
        T = [[U[j] & V[i] for j in chunks] for i in ranks]
        ru = [[T[i][j] & T[i][j - 1] if j else set() for j in chunks] for i in ranks]
        R = [[N[i][j] - V[i] for j in chunks] for i in ranks]
        return cls(
            needed=N,
            transition=T,
            reused=ru,
            loaded=[[T[i][j] - ru[i][j] for j in chunks] for i in ranks],
            evicted=[[T[i][j] - T[i][j + 1] if j + 1 < len(chunks) else T[i][j] for j in chunks] for i in ranks],
            remote=R,
            remote_new=[[R[i][j] - N[i][j - 1] if j else R[i][j] for j in chunks] for i in ranks],
            held=[[T[i][j] | N[i][j] for j in chunks] for i in ranks],
        )

    @property
    def v_ori(self) -> int:
        return total(self.needed)

    @property
    def v_p2p(self) -> int:
        return total(self.transition)

    @property
    def v_ru(self) -> int:
        return total(self.loaded)

    @property
    def v_reuse_only(self) -> int:
        return sum(
            len(batch) if j == 0 else len(batch - batches[j - 1])
            for batches in self.needed
            for j, batch in enumerate(batches)
        )

    def cost(self, rates: TransferRates, peer_rows: PeerRows) -> float:
        """Equation 4, or with the rows that are really read from peers."""
        from_peers = self.v_ori - self.v_p2p if peer_rows == "eq4" else total(self.remote)
        cost = self.v_ru / rates.host_to_device_bytes_per_s + (self.v_p2p - self.v_ru) / rates.reuse_bytes_per_s
        if rates.device_to_device_bytes_per_s is not None:
            cost += from_peers / rates.device_to_device_bytes_per_s
        return cost

    def slots(self, rank: int) -> list[dict[int, int]]:
        """Slot of each row of each batch, with a heap of free slots."""
        free: list[int] = []
        top, before, slot = 0, set[int](), dict[int, int]()
        found = []
        for here in self.held[rank]:
            for gid in sorted(before - here):
                heapq.heappush(free, slot.pop(gid))
            for gid in sorted(here - before):
                if free:
                    slot[gid] = heapq.heappop(free)
                else:
                    slot[gid], top = top, top + 1
            found.append(dict(slot))
            before = here
        return found


def total(grid: Grid) -> int:
    return sum(len(batch) for batches in grid for batch in batches)


def orders_of(reference: Reference) -> dict[str, list[list[int]]]:
    """The four orders that compete, by the published greedy algorithm."""
    needs, ranks, chunks = reference.needs(), range(reference.ranks), range(reference.chunks)
    initial = [list(chunks) for _ in ranks]
    unions = [set(needs[0][j]) for j in chunks]
    first = [list(chunks)]
    for i in range(1, reference.ranks):
        available, placed = set(chunks), []
        for j in chunks:
            k = max(sorted(available), key=lambda k: len(unions[j] & needs[i][k]))
            placed.append(k)
            available -= {k}
            unions[j] |= needs[i][k]
        first.append(placed)

    def second(order: list[list[int]]) -> list[list[int]]:
        joined = [set().union(*(needs[i][order[i][j]] for i in ranks)) for j in chunks]
        batches, left = [0], set(chunks) - {0}
        while left:
            k = max(sorted(left), key=lambda k: len(joined[batches[-1]] & joined[k]))
            batches.append(k)
            left -= {k}
        return [[order[i][j] for j in batches] for i in ranks]

    return {"initial": initial, "p1": first, "p2": second(initial), "p1p2": second(first)}
