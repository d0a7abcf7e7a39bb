"""Run-time actions of the cache over masters and mirrors, which add up the partial sums (parts) of a vertex's replicas.

Rows of masters that have mirrors are a rank's *shared* rows, in ascending order, one row each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from array_api_compat import array_namespace, device

from simgnn.emit.arrays import add_rows, counted, dtype_name, pick_rows, places_of, put_rows
from simgnn.emit.caches.masks import received_mask, sent_mask
from simgnn.emit.caches.row_cache import ChoosesRows, coded_change, move_on, moved_rows, take_arrived
from simgnn.policy import Action, Array, PolicyContext, decoded, encoded
from simgnn.program.program import counted_as

LARGEST_SHIFT = 5.0
"""How far, in exponents, the greatest attention score may move before sums become relative to the new one."""


class Settle(Action[ChoosesRows]):
    """Keep an earlier epoch's reference (attention maximum) if the new one is near, so that parts of both add up."""

    def run(self, context: PolicyContext, reference: Array, kept: Array) -> tuple[Array, ...]:
        """Return the reference of this epoch's sums, [n, heads], a copy to keep, and the rows that were renewed, bool
        [n, 1]: the ``kept`` reference, unless the current one is farther from it than LARGEST_SHIFT."""
        xp = array_namespace(reference)
        far = ~(xp.abs(reference - kept) <= LARGEST_SHIFT)
        settled = xp.where(far, reference, kept)
        return settled, xp.asarray(settled, copy=True), xp.any(far, axis=1, keepdims=True)


class ResetMirrors(Action[ChoosesRows]):
    """Set the kept state of received rows (in wire order) to zero if their reference was replaced (:class:`Settle`)."""

    def rows(self, context: PolicyContext) -> Array:
        """Return the local row of each row of the states."""
        return context.arriving

    def run(self, context: PolicyContext, renewed: Array, *states: Array) -> tuple[Array, ...]:
        """Set rows of ``states`` to zero, in place, where ``renewed``, bool [local rows, 1], marks their local row."""
        void = renewed[self.rows(context), 0]
        for state in states:
            state[void] = 0
        return states


class ResetMasters(ResetMirrors):
    """Set the kept state of shared masters to zero if their reference was replaced (:class:`Settle`)."""

    def rows(self, context: PolicyContext) -> Array:
        return shared_rows(context)


class ResetLeaving(ResetMirrors):
    """Set the kept state of sent rows (in wire order) to zero if their reference was replaced (:class:`Settle`)."""

    def rows(self, context: PolicyContext) -> Array:
        return context.leaving


class EncodeChange(Action[ChoosesRows]):
    """Encode by how much the selected parts changed."""

    def run(self, context: PolicyContext, rows: Array, chosen: Array, cached: Array) -> tuple[Array, ...]:
        """Return the changes of the chosen parts, and the parts as the sums will count them."""
        if self.codec.encodes:
            return coded_change(self.codec, context, rows, chosen, cached)
        old, change = pick_rows(cached, chosen), pick_rows(rows, chosen)
        change -= old
        old += change
        return change, put_rows(cached, chosen, old)


class AddParts(Action[ChoosesRows]):
    """Add the changes that arrived to the sums."""

    def run(self, context: PolicyContext, arrived: Array, mask: Array, sums: Array) -> tuple[Array, ...]:
        """Return the sums, with parts of lower ranks added first, and which rows received a part, bool [n, 1]."""
        layout, xp = received_mask(context, sums), array_namespace(sums)
        woken = places_in_shared(context, context.arriving)[layout.unpack(mask)]
        parts = arrived
        if self.codec.encodes:
            parts = decoded(self.codec, context, arrived, sums.shape[1], dtype_name(sums))
        sums = self.add(sums, woken, parts, layout.chosen_of_peers(mask))
        active = xp.zeros((sums.shape[0], 1), dtype=xp.bool, device=device(sums))
        active[woken] = True
        return sums, active

    def add(self, sums: Array, rows: Array, parts: Array, counts: Sequence[int]) -> Array:
        """Add parts to sums[rows] in place, in groups of ``counts`` parts; within a group no row occurs twice."""
        first = 0
        for count in counts:
            add_rows(sums, rows[first : first + count], parts[first : first + count])
            first += count
        return sums


class FoldOwn(Action[ChoosesRows]):
    """Add the masters' own parts that moved to the sums, and mark their rows for publication."""

    def run(self, context: PolicyContext, rows: Array, own: Array, sums: Array, *read: Array) -> tuple[Array, ...]:
        """Return ``own``, ``sums`` and the shared rows to publish. ``own``: masters' parts as the sums count them;
        ``read``: the policy's state, if it has one, and which rows received parts, if mirrors have parts."""
        state = read[0] if self.owner.state_width else None
        woken = read[1:] if self.owner.state_width else read
        shared = shared_rows(context)
        mine = pick_rows(rows, shared)
        moved = moved_rows(self.owner, replace(context, gathered=shared), mine, own, state)
        awake = woken[0] | moved[:, None] if woken else moved[:, None]
        chosen = places_of(awake[:, 0] if self.owner.adds_woken_parts() else moved)
        picked = pick_rows(mine, chosen)
        del mine
        change = pick_rows(own, chosen)
        array_namespace(rows).subtract(picked, change, out=change)
        return put_rows(own, chosen, picked), add_rows(sums, chosen, change), awake


class Announce(Action[ChoosesRows]):
    """List the shared rows that are marked as active; they are published to all their mirrors."""

    def run(self, context: PolicyContext, active: Array) -> tuple[Array, ...]:
        """Return the mask over the rows of each peer, and the shared rows int64 [k] that are published."""
        chosen = active[:, 0]
        return sent_mask(context, active).pack(chosen[leaving_places(context)]), places_of(chosen)

    def decided(self, context: PolicyContext, read: Sequence[Array], written: Sequence[Array]) -> Mapping[str, int]:
        """Count the published shared rows: all of them, and those with r replicas (or on r hosts, where one row travels
        to each host), for every r on this rank."""
        chosen, place = written[1], leaving_places(context)
        xp, shared = array_namespace(place), shared_rows(context).shape[0]
        replicas = xp.bincount(place, minlength=shared) + 1  # a master has a place for each row that it sends
        most = int(xp.max(replicas)) + 1 if shared else 0
        counts = xp.bincount(replicas[chosen], minlength=most).tolist()
        found, tally = {str(context.options["decision"]): int(chosen.shape[0])}, str(context.options["tally"])
        return found | {counted_as(tally, r): counts[r] for r in sorted(set(replicas.tolist()))}


class EncodeSums(Action[ChoosesRows]):
    """Encode the published sums, each once: their change, or without a codec the sums themselves. ``hands_on``: it also
    returns published rows, for other replicas on the host."""

    hands_on: ClassVar[bool] = False

    def run(
        self, context: PolicyContext, chosen: Array, mask: Array, sums: Array, published: Array | None = None
    ) -> tuple[Array, ...]:
        """Return the rows to send, in wire order; with a codec also ``published``, the sums as all copies hold them."""
        packed = self.packed(context, chosen, sums, published)
        news = (packed,) if self.hands_on else ()
        return (self.addressed(context, packed, chosen, mask), *news, *(() if published is None else (published,)))

    def packed(self, context: PolicyContext, chosen: Array, sums: Array, published: Array | None) -> Array:
        """Encode the chosen sums, in the order of ``chosen``; with a codec, update ``published``."""
        picked = pick_rows(sums, chosen)
        if published is None:
            return picked
        old = pick_rows(published, chosen)
        picked -= old
        packed = encoded(self.codec, context, picked, pick_rows(shared_rows(context), chosen))
        del picked
        move_on(self.codec, context, packed, chosen, old, published)
        return packed

    def addressed(self, context: PolicyContext, packed: Array, chosen: Array, mask: Array) -> Array:
        """Put the rows ``packed``, one per chosen shared row, in wire order."""
        xp, place = array_namespace(packed), leaving_places(context)
        position = xp.zeros(shared_rows(context).shape[0], dtype=xp.int64, device=device(packed))
        position[chosen] = counted(packed, chosen.shape[0])
        return pick_rows(packed, position[place[sent_mask(context, packed).unpack(mask)]])


class EncodeNews(EncodeSums):
    """As :class:`EncodeSums`, where hosts add up first."""

    hands_on: ClassVar[bool] = True


class FindNews(Action[ChoosesRows]):
    """Find where each local row's newly published sum lies: among rows published here, or among those that arrived."""

    def run(self, context: PolicyContext, rows: Array, chosen: Array, mask: Array) -> tuple[Array, ...]:
        """Return int64 [n, 1]: k + 1 if this rank published the row as the k-th of the ``chosen`` shared rows, -(k + 1)
        if it arrived as the k-th row, 0 if it has no new value."""
        xp = array_namespace(rows)
        origin = xp.zeros((rows.shape[0], 1), dtype=xp.int64, device=device(rows))
        origin[shared_rows(context)[chosen], 0] = counted(rows, chosen.shape[0]) + 1
        arrived = context.arriving[received_mask(context, rows).unpack(mask)]  # type: ignore[index]
        origin[arrived, 0] = -(counted(rows, arrived.shape[0]) + 1)
        return (origin,)


class Relay(Action[ChoosesRows]):
    """List the rows with new values, which are passed on to the other replicas on the host."""

    def run(self, context: PolicyContext, origin: Array) -> tuple[Array, ...]:
        """Return the mask over each peer's rows, and where the named rows lie (see :class:`FindNews`), int64 [k]."""
        of_wire = origin[context.leaving, 0]
        fresh = of_wire != 0
        return sent_mask(context, origin).pack(fresh), of_wire[fresh]


class HandOn(Action[ChoosesRows]):
    """Pass new values on unchanged, so that all replicas decode the same bytes."""

    def run(self, context: PolicyContext, origins: Array, news: Array, arrived: Array) -> tuple[Array, ...]:
        """Return the new values in wire order. ``origins`` int64 [k]: where they lie, as :class:`Relay` writes it."""
        xp = array_namespace(news)
        wire = xp.empty((origins.shape[0], *news.shape[1:]), dtype=news.dtype, device=device(news))
        mine = origins > 0
        wire[mine] = news[origins[mine] - 1]
        wire[~mine] = arrived[-origins[~mine] - 1]
        return (wire,)


class TakeSums(Action[ChoosesRows]):
    """Replace all copies by the published sums."""

    def run(
        self, context: PolicyContext, arrived: Array, mask: Array, kept: Array, rows: Array, published: Array
    ) -> tuple[Array, ...]:
        """Update mirrors' sums ``kept`` with ``arrived``; copy them and masters' sums ``published`` into ``rows``."""
        kept = take_arrived(self.codec, context, arrived, mask, kept)
        put_rows(rows, context.arriving, kept)
        return kept, put_rows(rows, shared_rows(context), published)


REPLICA_ACTIONS = (
    Settle, ResetMasters, ResetMirrors, ResetLeaving, EncodeChange, AddParts, FoldOwn, Announce, EncodeSums, EncodeNews,
    FindNews, Relay, HandOn, TakeSums,
)  # fmt: skip


def shared_rows(context: PolicyContext) -> Array:
    """The local rows of masters that have mirrors, ascending: the rows sent along the op's route or, where that route
    names only some of them, along the route in the op's option ``masters``."""
    return context.derived(_each_once, _masters(context, context.leaving))


def leaving_places(context: PolicyContext) -> Array:
    """The position, among the masters that have mirrors (:func:`shared_rows`), of each row that is sent."""
    return context.derived(_places, _masters(context, context.leaving), context.leaving)


def places_in_shared(context: PolicyContext, rows: Array) -> Array:
    """The position, among the masters that have mirrors, of each of ``rows``: local rows that the op's route lists."""
    return context.derived(_places, _masters(context, rows), rows)


def _masters(context: PolicyContext, rows: Array) -> Array:
    named = context.options.get("masters")
    if named is None:
        return rows
    assert context.rows_of is not None
    return context.rows_of(str(named))


def _each_once(rows: Array) -> Array:
    xp = array_namespace(rows)
    return xp.sort(xp.unique_values(rows))


def _places(masters: Array, rows: Array) -> Array:
    return array_namespace(rows).searchsorted(_each_once(masters), rows)
