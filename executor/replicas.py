"""The adaptive cache over masters and mirrors: what ops of :class:`simgnn.policies.replicas.ReplicaSync` call.

Rows of a master that have mirrors are its *shared* ones, in ascending order; states of masters have a row for each.
"""

from typing import TYPE_CHECKING

import torch

from executor.adaptive import AdaptiveRows, Rows
from executor.codecs import Codec, Place
from executor.kernels.masks import wire_mask
from executor.kernels.rows import add_rows
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex

if TYPE_CHECKING:
    from executor.handlers.context import PolicyContext


class AdaptiveReplicas(AdaptiveRows):
    """The faces of :class:`AdaptiveRows`, and those of sums over replicas."""

    def __init__(self, policy: AdaptiveVertex, codec: Codec | None) -> None:
        super().__init__(policy, codec)
        self._shared: dict[int, tuple[Rows, Rows, Rows]] = {}

    def settle(self, context: "PolicyContext", reference: Rows, kept: Rows) -> tuple[Rows, Rows, Rows]:
        """What sums are relative to in this turn, the same to be kept, and the rows that this renews."""
        settled, renewed = self.policy.settled(reference, kept)
        return settled, settled.clone(), renewed

    def reset_masters(self, context: "PolicyContext", renewed: Rows, *states: Rows) -> Rows | tuple[Rows, ...]:
        """States of shared masters, zero where their row was renewed."""
        assert context.leaving is not None
        return _cleared(states, renewed[self._places(context.leaving)[0]])

    def reset_mirrors(self, context: "PolicyContext", renewed: Rows, *states: Rows) -> Rows | tuple[Rows, ...]:
        """States of mirrors, in the order of the wire, zero where their row was renewed."""
        assert context.arriving is not None
        return _cleared(states, renewed[context.arriving])

    def encode_change(self, context: "PolicyContext", rows: Rows, chosen: Rows, cached: Rows) -> tuple[Rows, Rows]:
        """By how much the chosen parts moved, and the parts as the sums will count them."""
        if self.codec is not None:
            return self.coded_change(context, rows, chosen, cached)
        old = cached.index_select(0, chosen)
        change = rows.index_select(0, chosen).sub_(old)
        return change, cached.index_copy_(0, chosen, old + change)

    def add_parts(self, context: "PolicyContext", arrived: Rows, mask: Rows, sums: Rows) -> tuple[Rows, Rows]:
        """Sums with what arrived added, ranks ascending; and which shared rows that woke, bool [n, 1]."""
        assert context.arriving is not None
        shared, place = self._places(context.arriving)
        layout = wire_mask(context.receive, sums.device)
        woken = place[layout.unpack(mask)]
        parts = arrived if self.codec is None else self.codec.decode(arrived, sums.shape[1], sums.dtype)
        add_rows(sums, woken, parts, layout.chosen_of_peers(mask))
        active = torch.zeros((len(shared), 1), dtype=torch.bool, device=sums.device)
        active[woken] = True
        return sums, active

    def fold(
        self, context: "PolicyContext", rows: Rows, own: Rows, sums: Rows, threshold: Rows, active: Rows | None = None
    ) -> tuple[Rows, Rows, Rows]:
        """Masters' own parts that moved are added to the sums, and wake their rows; with ``fold_on_active`` those of
        rows that are awake already, too."""
        assert context.leaving is not None
        shared, _ = self._places(context.leaving)
        mine = rows.index_select(0, shared)
        moved = self.moved(context, mine, own, threshold)
        awake = moved[:, None] if active is None else active | moved[:, None]
        chosen = (awake[:, 0] if self.policy.fold_on_active else moved).nonzero().flatten()
        picked = mine.index_select(0, chosen)
        sums.index_add_(0, chosen, picked - own.index_select(0, chosen))
        own.index_copy_(0, chosen, picked)
        return own, sums, awake

    def announce(self, context: "PolicyContext", active: Rows) -> tuple[Rows, Rows]:
        """The mask over the rows of each mirror rank, and the shared rows int64 [k] that are published."""
        assert context.leaving is not None
        _, place = self._places(context.leaving)
        return wire_mask(context.send, active.device).pack(active[place, 0]), active[:, 0].nonzero().flatten()

    def tally(self, context: "PolicyContext", chosen: Rows) -> dict[int, int]:
        """How many of the ``chosen`` shared rows have so many replicas, for each number that any of this rank has."""
        assert context.leaving is not None
        shared, place = self._places(context.leaving)
        replicas = torch.bincount(place, minlength=len(shared)) + 1  # a master has a place for each of its mirrors
        counts = torch.bincount(replicas[chosen], minlength=int(replicas.max()) + 1 if len(shared) else 0).tolist()
        return {number: counts[number] for number in torch.unique(replicas).tolist()}

    def encode_sums(
        self, context: "PolicyContext", chosen: Rows, mask: Rows, sums: Rows, published: Rows | None = None
    ) -> Rows | tuple[Rows, Rows]:
        """What is published of the chosen sums, encoded once each, in the order of the wire."""
        assert context.leaving is not None
        shared, place = self._places(context.leaving)
        packed = sums.index_select(0, chosen)
        if self.codec is not None:
            assert published is not None
            old = published.index_select(0, chosen)
            packed = self.codec.encode(packed.sub_(old), Place(context, shared.index_select(0, chosen)))
            self._moved_on(packed, chosen, old, published)
        position = torch.zeros(len(shared), dtype=torch.int64, device=sums.device)
        position[chosen] = torch.arange(len(chosen), device=sums.device)
        wire = packed.index_select(0, position[place[wire_mask(context.send, sums.device).unpack(mask)]])
        return wire if published is None else (wire, published)

    def take_sums(
        self, context: "PolicyContext", arrived: Rows, mask: Rows, kept: Rows, rows: Rows, published: Rows
    ) -> tuple[Rows, Rows]:
        """Mirrors go on with what they keep of their masters, masters with what they published."""
        assert context.leaving is not None
        assert context.arriving is not None
        chosen = wire_mask(context.receive, kept.device).unpack(mask).nonzero().flatten()
        if self.codec is None:
            kept.index_copy_(0, chosen, arrived)
        else:
            self._moved_on(arrived, chosen, kept.index_select(0, chosen), kept)
        rows.index_copy_(0, context.arriving, kept)
        rows.index_copy_(0, self._places(context.leaving)[0], published)
        return kept, rows

    def _places(self, masters: Rows) -> tuple[Rows, Rows]:
        """The shared rows int64 [n], and the place among them of each row of a route's list; made once a list."""
        found = self._shared.get(id(masters))
        if found is None or found[0] is not masters:
            shared, place = torch.unique(masters, return_inverse=True)
            found = self._shared[id(masters)] = masters, shared, place
        return found[1], found[2]


def _cleared(states: tuple[Rows, ...], renewed: Rows) -> Rows | tuple[Rows, ...]:
    for state in states:
        state.masked_fill_(renewed, 0)
    return states if len(states) > 1 else states[0]
