"""The adaptive cache over masters and mirrors: what ops of :class:`simgnn.policies.replicas.ReplicaSync` call.

Rows of a master that have mirrors are its *shared* ones, in ascending order; states of masters have a row for each.
"""

import torch

from executor.adaptive import AdaptiveRows, Rows
from executor.kernels.masks import wire_mask
from executor.kernels.rows import add_rows
from simgnn.emit.arrays import dtype_name
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import Codec, PolicyContext


class AdaptiveReplicas(AdaptiveRows):
    """The faces of :class:`AdaptiveRows`, and those of sums over replicas."""

    def __init__(self, policy: AdaptiveVertex, codec: Codec | None) -> None:
        super().__init__(policy, codec)
        self._known: dict[tuple[int, int], tuple[Rows, Rows, Rows, Rows]] = {}

    def settle(self, context: PolicyContext, reference: Rows, kept: Rows) -> tuple[Rows, Rows, Rows]:
        """What sums are relative to in this turn, the same to be kept, and the rows that this renews."""
        settled, renewed = self.policy.settled(reference, kept)
        return settled, settled.clone(), renewed

    def reset_masters(self, context: PolicyContext, renewed: Rows, *states: Rows) -> Rows | tuple[Rows, ...]:
        """States of shared masters, zero where their row was renewed."""
        return _cleared(states, renewed[self._shared(context)])

    def reset_mirrors(self, context: PolicyContext, renewed: Rows, *states: Rows) -> Rows | tuple[Rows, ...]:
        """States of the rows that arrive along the route, in the order of the wire, likewise."""
        assert context.arriving is not None
        return _cleared(states, renewed[context.arriving])

    def reset_leaving(self, context: PolicyContext, renewed: Rows, *states: Rows) -> Rows | tuple[Rows, ...]:
        """States of the rows that leave along it, likewise."""
        assert context.leaving is not None
        return _cleared(states, renewed[context.leaving])

    def encode_change(self, context: PolicyContext, rows: Rows, chosen: Rows, cached: Rows) -> tuple[Rows, Rows]:
        """By how much the chosen parts moved, and the parts as the sums will count them."""
        if self.codec is not None:
            return self.coded_change(context, rows, chosen, cached)
        old = cached.index_select(0, chosen)
        change = rows.index_select(0, chosen).sub_(old)
        return change, cached.index_copy_(0, chosen, old.add_(change))

    def add_parts(self, context: PolicyContext, arrived: Rows, mask: Rows, sums: Rows) -> tuple[Rows, Rows]:
        """Sums with what arrived added, ranks ascending; and which shared rows that woke, bool [n, 1]."""
        assert context.arriving is not None
        shared, place = self._places(_masters(context, context.arriving), context.arriving)
        layout = wire_mask(context.receive, sums.device)
        woken = place[layout.unpack(mask)]
        parts = arrived if self.codec is None else self.codec.decode(context, arrived, sums.shape[1], dtype_name(sums))
        add_rows(sums, woken, parts, layout.chosen_of_peers(mask))
        active = torch.zeros((len(shared), 1), dtype=torch.bool, device=sums.device)
        active[woken] = True
        return sums, active

    def fold(
        self, context: PolicyContext, rows: Rows, own: Rows, sums: Rows, threshold: Rows, active: Rows | None = None
    ) -> tuple[Rows, Rows, Rows]:
        """Masters' own parts that moved are added to the sums, and wake their rows; with ``fold_on_active`` those of
        rows that are awake already, too."""
        mine = rows.index_select(0, self._shared(context))
        moved = self.moved(context, mine, own, threshold)
        awake = moved[:, None] if active is None else active | moved[:, None]
        chosen = (awake[:, 0] if self.policy.fold_on_active else moved).nonzero().flatten()
        picked = mine.index_select(0, chosen)
        del mine
        counted = own.index_select(0, chosen)
        sums.index_add_(0, chosen, torch.sub(picked, counted, out=counted))
        own.index_copy_(0, chosen, picked)
        return own, sums, awake

    def announce(self, context: PolicyContext, active: Rows) -> tuple[Rows, Rows]:
        """The mask over the rows of each peer, and the shared rows int64 [k] that are published."""
        place = self._leaving_places(context)
        return wire_mask(context.send, active.device).pack(active[place, 0]), active[:, 0].nonzero().flatten()

    def tally(self, context: PolicyContext, chosen: Rows) -> dict[int, int]:
        """How many of the ``chosen`` shared rows have so many replicas (or lie on so many hosts, where one row travels
        to each), for each number that any of this rank has."""
        shared, place = self._shared(context), self._leaving_places(context)
        replicas = torch.bincount(place, minlength=len(shared)) + 1  # a master has a place for each row that it sends
        counts = torch.bincount(replicas[chosen], minlength=int(replicas.max()) + 1 if len(shared) else 0).tolist()
        return {number: counts[number] for number in torch.unique(replicas).tolist()}

    def encode_sums(
        self, context: PolicyContext, chosen: Rows, mask: Rows, sums: Rows, published: Rows | None = None
    ) -> Rows | tuple[Rows, Rows]:
        """What is published of the chosen sums, encoded once each, in the order of the wire."""
        wire = self._addressed(context, self._packed(context, chosen, sums, published), chosen, mask)
        return wire if published is None else (wire, published)

    def encode_news(
        self, context: PolicyContext, chosen: Rows, mask: Rows, sums: Rows, published: Rows | None = None
    ) -> tuple[Rows, ...]:
        """The same, and what is published as the chosen rows lie, for those that get it on this host."""
        packed = self._packed(context, chosen, sums, published)
        wire = self._addressed(context, packed, chosen, mask)
        return (wire, packed) if published is None else (wire, packed, published)

    def news(self, context: PolicyContext, rows: Rows, chosen: Rows, mask: Rows) -> Rows:
        """For each of ``rows`` where there is news of it, int64 [n, 1]: k + 1, published by this rank as the k-th of
        the ``chosen`` shared rows; -(k + 1), arrived as the k-th; 0, none."""
        assert context.arriving is not None
        origin = torch.zeros((len(rows), 1), dtype=torch.int64, device=rows.device)
        origin[self._shared(context)[chosen], 0] = torch.arange(1, len(chosen) + 1, device=rows.device)
        arrived = context.arriving[wire_mask(context.receive, rows.device).unpack(mask)]
        origin[arrived, 0] = -torch.arange(1, len(arrived) + 1, device=rows.device)
        return origin

    def relay(self, context: PolicyContext, origin: Rows) -> tuple[Rows, Rows]:
        """The mask over the rows of each peer, and for those of which there is news where it lies, int64 [k]."""
        assert context.leaving is not None
        of_wire = origin[context.leaving, 0]
        told = of_wire != 0
        return wire_mask(context.send, origin.device).pack(told), of_wire[told]

    def hand_on(self, context: PolicyContext, origins: Rows, news: Rows, arrived: Rows) -> Rows:
        """The news as it is, in the order of the wire; ``origins`` as :meth:`relay` tells them."""
        wire = torch.empty((len(origins), *news.shape[1:]), dtype=news.dtype, device=news.device)
        mine = origins > 0
        wire[mine] = news[origins[mine] - 1]
        wire[~mine] = arrived[-origins[~mine] - 1]
        return wire

    def take_sums(
        self, context: PolicyContext, arrived: Rows, mask: Rows, kept: Rows, rows: Rows, published: Rows
    ) -> tuple[Rows, Rows]:
        """Mirrors go on with what they keep of their masters, masters with what they published."""
        assert context.arriving is not None
        chosen = wire_mask(context.receive, kept.device).unpack(mask).nonzero().flatten()
        if self.codec is None:
            kept.index_copy_(0, chosen, arrived)
        else:
            self._moved_on(context, arrived, chosen, kept.index_select(0, chosen), kept)
        rows.index_copy_(0, context.arriving, kept)
        rows.index_copy_(0, self._shared(context), published)
        return kept, rows

    def _packed(self, context: PolicyContext, chosen: Rows, sums: Rows, published: Rows | None) -> Rows:
        """What is published of the chosen sums, in their order; with a codec ``published`` moves on."""
        packed = sums.index_select(0, chosen)
        if self.codec is None:
            return packed
        assert published is not None
        old = published.index_select(0, chosen)
        packed = self.codec.encode(context, packed.sub_(old), self._shared(context).index_select(0, chosen))
        self._moved_on(context, packed, chosen, old, published)
        return packed

    def _addressed(self, context: PolicyContext, packed: Rows, chosen: Rows, mask: Rows) -> Rows:
        """Rows ``packed`` of the chosen shared rows in the order of the wire."""
        place = self._leaving_places(context)
        position = torch.zeros(len(self._shared(context)), dtype=torch.int64, device=packed.device)
        position[chosen] = torch.arange(len(chosen), device=packed.device)
        return packed.index_select(0, position[place[wire_mask(context.send, packed.device).unpack(mask)]])

    def _shared(self, context: PolicyContext) -> Rows:
        masters = _masters(context, context.leaving)
        return self._places(masters, masters)[0]

    def _leaving_places(self, context: PolicyContext) -> Rows:
        """The place among the shared rows of each that leaves."""
        assert context.leaving is not None
        return self._places(_masters(context, context.leaving), context.leaving)[1]

    def _places(self, masters: Rows, rows: Rows) -> tuple[Rows, Rows]:
        """The shared rows int64 [n], each once of ``masters``, and the place of ``rows`` among them; made once for two
        lists."""
        found = self._known.get((id(masters), id(rows)))
        if found is None or found[0] is not masters or found[1] is not rows:
            shared = torch.unique(masters)
            found = self._known[id(masters), id(rows)] = masters, rows, shared, torch.searchsorted(shared, rows)
        return found[2], found[3]


def _cleared(states: tuple[Rows, ...], renewed: Rows) -> Rows | tuple[Rows, ...]:
    for state in states:
        state.masked_fill_(renewed, 0)
    return states if len(states) > 1 else states[0]


def _masters(context: PolicyContext, rows: Rows | None) -> Rows:
    """All local rows that have mirrors: those of the route, or of the one that the op names."""
    named = context.options.get("masters")
    if named is None:
        assert rows is not None
        return rows
    assert context.rows_of is not None
    found: Rows = context.rows_of(str(named))
    return found
