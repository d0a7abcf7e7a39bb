"""Rounds of the adaptive cache over masters and mirrors, rank by rank in one process: docs/systems/cdfgnn.md. After
every round all copies hold the same bits, sums are those of the parts that count, and what is published is no further
from the exact sum than threshold and codec allow."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from executor.state.context import LocalRoute
from executor.state.routes import local_routes
from simgnn.emit.caches.replica_cache import AddParts, Announce, EncodeChange, EncodeSums, FoldOwn, TakeSums
from simgnn.emit.caches.row_cache import SelectMoved
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.none import Plain
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import PolicyContext
from tests.executor.test_mirror_sync import divided, sync_program
from tests.policies.acting import does

RANKS, WIDTH, EPSILON = 3, 5, 0.05
CPU = torch.device("cpu")


@dataclass
class Rank:
    """What a rank keeps of one sync point, all zero at first."""

    mirrors: int
    shared: int
    device: torch.device
    sent: torch.Tensor = field(init=False)
    kept: torch.Tensor = field(init=False)
    own: torch.Tensor = field(init=False)
    sums: torch.Tensor = field(init=False)
    published: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sent, self.kept = (torch.zeros(self.mirrors, WIDTH, device=self.device) for _ in range(2))
        self.own, self.sums, self.published = (torch.zeros(self.shared, WIDTH, device=self.device) for _ in range(3))


def context(route: LocalRoute, rank: int) -> PolicyContext:
    """Where an op on a route is."""
    leaving, arriving = route.leaving, route.arriving
    return PolicyContext(
        0, 0, 0, 1, "forward", rank, RANKS, route.send, route.receive, leaving=leaving, arriving=arriving
    )


def exchanged(parts: Sequence[torch.Tensor], counts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """What arrives at each rank, peers ascending; ``counts[r][p]``: how much of rank r's part is for p."""
    pieces = [part.split(list(count)) for part, count in zip(parts, counts, strict=True)]
    return [torch.cat([pieces[source][target] for source in range(RANKS)]) for target in range(RANKS)]


class Sync:
    """Gather, fold and scatter on all ranks, whose rows all lie on one device."""

    def __init__(self, bits: int | None, device: torch.device = CPU) -> None:
        graph, partition, self.graphs = divided(RANKS)
        program = sync_program(RANKS, graph, partition)
        routes = [local_routes(program, one, device) for one in self.graphs]
        self.gather = [context(one["mirrors/reverse"], rank) for rank, one in enumerate(routes)]
        self.scatter = [context(one["mirrors"], rank) for rank, one in enumerate(routes)]
        codec = Plain() if bits is None else Linear.model_validate({"bits": bits})
        policy = AdaptiveVertex(epsilon=EPSILON, adapt=False)
        used = (SelectMoved, EncodeChange, AddParts, FoldOwn, Announce, EncodeSums, TakeSums)
        self.does = {action: does(action, policy, codec) for action in used}
        self.coded = codec.encodes
        self.threshold = torch.zeros(1, 3, dtype=torch.float64, device=device)
        self.shared = [torch.unique(one.leaving) for one in self.scatter]
        mirrors = [sum(one.receive) for one in self.scatter]
        self.state = [Rank(count, len(shared), device) for count, shared in zip(mirrors, self.shared, strict=True)]

    def round(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Complete the sums of these parts, in place; which shared masters were published, of each rank."""
        active = self._gather(rows)
        masks, wire = [], []
        for rank, state in enumerate(self.state):
            here = self.scatter[rank]
            state.own, state.sums, active[rank] = self.does[FoldOwn](
                here, rows[rank], state.own, state.sums, self.threshold, active[rank]
            )
            mask, chosen = self.does[Announce](here, active[rank])
            masks.append(mask)
            if self.coded:
                coded, state.published = self.does[EncodeSums](here, chosen, mask, state.sums, state.published)
            else:
                (coded,) = self.does[EncodeSums](here, chosen, mask, state.sums)
            wire.append(coded)
        arrived, told = self._exchange(self.scatter, masks, wire)
        for rank, state in enumerate(self.state):
            goes_on = state.published if self.coded else state.sums
            state.kept, rows[rank] = self.does[TakeSums](
                self.scatter[rank], arrived[rank], told[rank], state.kept, rows[rank], goes_on
            )
        return active

    def _gather(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        masks, wire = [], []
        for rank, state in enumerate(self.state):
            here, packed = self.gather[rank], rows[rank][self.gather[rank].leaving]
            mask, chosen = self.does[SelectMoved](here, packed, state.sent, self.threshold)
            coded, state.sent = self.does[EncodeChange](here, packed, chosen, state.sent)
            masks.append(mask)
            wire.append(coded)
        arrived, told = self._exchange(self.gather, masks, wire)
        active = []
        for rank, state in enumerate(self.state):
            state.sums, woken = self.does[AddParts](self.gather[rank], arrived[rank], told[rank], state.sums)
            active.append(woken)
        return active

    @staticmethod
    def _exchange(
        here: list[PolicyContext], masks: list[torch.Tensor], wire: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        bits = [_bits(mask, one.send) for mask, one in zip(masks, here, strict=True)]
        told = exchanged(masks, [[-(-rows // 8) for rows in one.send] for one in here])
        return exchanged(wire, bits), told


def _bits(mask: torch.Tensor, rows: Sequence[int]) -> list[int]:
    """Rows of each peer that a mask names, counted by NumPy."""
    pieces = mask.split([-(-count // 8) for count in rows])
    return [int(np.unpackbits(piece.cpu().numpy(), bitorder="little").sum()) for piece in pieces]


def by_vertex(sync: Sync, rows: list[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
    """Rows of all copies of each vertex that has mirrors."""
    found: dict[int, list[torch.Tensor]] = {}
    for graph, held in zip(sync.graphs, rows, strict=True):
        for place in range(graph.internal, len(graph.vertices)):
            found.setdefault(int(graph.vertices[place]), []).append(held[place])
    return found


def spread(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """Largest error of a coded row, without rounding."""
    return (rows.amax(-1) - rows.amin(-1)) / (2 * (2**bits - 1))


@pytest.mark.parametrize("bits", [None, 1, 4, 8])
def test_copies_sums_and_bounds_hold_in_every_round(bits: int | None) -> None:
    sync, draw = Sync(bits), torch.Generator().manual_seed(7)
    parts = [torch.randn(len(one.vertices), WIDTH, generator=draw) for one in sync.graphs]
    last = [torch.zeros(len(shared)) for shared in sync.shared]
    told = []
    for _ in range(12):
        parts = [part + 0.02 * torch.randn(part.shape, generator=draw) for part in parts]
        before = [(one.sent.clone(), one.published.clone()) for one in sync.state]
        rows = [part.clone() for part in parts]
        active = sync.round(rows)
        told.append(float(torch.cat(active).double().mean()))
        allowed: dict[int, torch.Tensor] = {}
        counted: dict[int, torch.Tensor] = {}
        for rank, (graph, state) in enumerate(zip(sync.graphs, sync.state, strict=True)):
            mirrors, shared = sync.gather[rank].leaving, sync.shared[rank]
            for places, kept, old in ((mirrors, state.sent, before[rank][0]), (shared, state.own, None)):
                part = parts[rank][places]
                off, bound = (part - kept).abs().amax(1), EPSILON * part.abs().amax(1)
                if bits is not None and old is not None:  # mirrors' parts are coded, masters' own are not
                    moved = (kept != old).any(1)
                    bound = torch.where(moved, torch.maximum(bound, spread(part - old, bits) + 1e-5), bound)
                assert bool((off <= bound * (1 + 1e-5) + 1e-6).all()), "item 8: a part is further off than allowed"
                for place, limit, row in zip(places.tolist(), bound, kept, strict=True):
                    vertex = int(graph.vertices[place])
                    allowed[vertex] = allowed.get(vertex, torch.zeros(())) + limit
                    counted[vertex] = counted.get(vertex, torch.zeros(WIDTH)) + row
            if bits is not None:
                change = spread(state.sums - before[rank][1], bits) + 1e-5
                last[rank] = torch.where(active[rank][:, 0], change, last[rank])
            for place, vertex in enumerate(graph.vertices[shared.numpy()].tolist()):
                allowed[vertex] = allowed.get(vertex, torch.zeros(())) + last[rank][place]
        sums = {
            int(vertex): row
            for graph, shared, state in zip(sync.graphs, sync.shared, sync.state, strict=True)
            for vertex, row in zip(graph.vertices[shared.numpy()].tolist(), state.sums, strict=True)
        }
        exact = {vertex: sum(copies) for vertex, copies in by_vertex(sync, parts).items()}
        copies = by_vertex(sync, rows)
        assert copies.keys() == sums.keys() == counted.keys() == allowed.keys()
        for vertex, held in copies.items():
            assert all(row.equal(held[0]) for row in held[1:]), "item 6: copies differ"
            assert torch.allclose(sums[vertex], counted[vertex], rtol=1e-5, atol=1e-5), "item 7: sums are not of parts"
            assert float((held[0] - exact[vertex]).abs().max()) <= float(allowed[vertex]) * (1 + 1e-5) + 1e-5, "item 8"
        for graph, part, row in zip(sync.graphs, parts, rows, strict=True):
            assert part[: graph.internal].equal(row[: graph.internal]), "rows without copies are left alone"
    assert told[0] == 1, "caches are empty: whatever is not zero is sent"
    assert min(told) < 1, "nothing was ever held back"
