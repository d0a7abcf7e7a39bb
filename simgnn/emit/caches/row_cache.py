"""Actions of a cache of rows at run time: both ends of a transfer keep the rows as last sent, and chosen rows travel.

A policy chooses the rows that travel: :meth:`ChoosesRows.moved`. The actions here select, encode and name them, and put
the rows that arrive into the receiver's cache."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from array_api_compat import array_namespace, device

from simgnn.emit.arrays import dtype_name, pick_rows, places_of, put_rows
from simgnn.emit.caches.masks import received_mask, sent_mask
from simgnn.policy import Action, Array, Codec, Metrics, Policy, PolicyContext, decoded, encoded, expect, expect_numbers

IndexForm = Literal["bitmap", "ids"]
State = tuple[float, ...]
"""Numbers that a policy keeps from epoch to epoch, the same on all ranks."""


class ChoosesRows(Policy, ABC):
    """The run-time methods of a freshness policy that sends only chosen rows. ``state_width``: numbers in its state."""

    state_width: ClassVar[int] = 0

    @abstractmethod
    def moved(self, context: PolicyContext, rows: Array, cached: Array, state: State) -> Array:
        """Choose which of ``rows`` [n, F] travel, bool [n]. ``cached``: rows as last sent, zeros at the beginning."""

    def init(self, context: PolicyContext) -> State:
        """Return the state before the first epoch, ``state_width`` numbers; ranks compare it after the first."""
        return ()

    def end_epoch(self, context: PolicyContext, metrics: Metrics, state: State) -> State:
        """Return the state after an epoch. Must be a pure function: a run ends if two ranks compute other states."""
        return state

    def index_form(self) -> IndexForm:
        """How rows that travel are named: "bitmap", a bit for each that may travel; "ids", their positions."""
        return "bitmap"

    def adds_woken_parts(self) -> bool:
        """Whether a master that publishes because a mirror's part moved adds its own part, however little it moved."""
        return False


class SelectMoved(Action[ChoosesRows]):
    """Select the rows that the policy sends because they changed enough since they were last sent."""

    def run(self, context: PolicyContext, rows: Array, cached: Array, state: Array | None = None) -> tuple[Array, ...]:
        """Return the mask (uint8, see :class:`WireMask`) and the positions, int64 [k], of the rows that travel.

        ``rows``, ``cached`` [n, F] in wire order."""
        chosen = moved_rows(self.owner, context, rows, cached, state)
        return sent_mask(context, rows).pack(chosen), places_of(chosen)


class EncodeMoved(Action[ChoosesRows]):
    """Encode the difference of selected rows from the cache, or without a codec copy the rows."""

    def run(self, context: PolicyContext, rows: Array, chosen: Array, cached: Array) -> tuple[Array, ...]:
        """Return the chosen rows as they are sent, and the cache as the receiver will have it."""
        if self.codec.encodes:
            return coded_change(self.codec, context, rows, chosen, cached)
        picked = pick_rows(rows, chosen)
        return picked, put_rows(cached, chosen, picked)


class DecodeMoved(Action[ChoosesRows]):
    """Decode the rows that arrived into the cache."""

    def run(self, context: PolicyContext, arrived: Array, mask: Array, cached: Array) -> tuple[Array, ...]:
        """Return all rows [n, F] for the layer, and the cache, which holds the same values."""
        cached = take_arrived(self.codec, context, arrived, mask, cached)
        return array_namespace(cached).asarray(cached, copy=True), cached


class ListRows(Action[ChoosesRows]):
    """Convert a mask to the positions that it names, where these take fewer bytes."""

    def run(self, context: PolicyContext, mask: Array) -> tuple[Array, ...]:
        """Return the number of named rows of each peer, and their positions; see :meth:`WireMask.listed`."""
        return sent_mask(context, mask).listed(mask)


class MaskRows(Action[ChoosesRows]):
    """Convert positions that arrived to the sender's mask."""

    def run(self, context: PolicyContext, ids: Array, counts: Array) -> tuple[Array, ...]:
        return (received_mask(context, ids).mask_of(ids, counts),)


class EndEpoch(Action[ChoosesRows]):
    """Compute the policy's state after an epoch. A simulation recomputes it from the recorded counts of accuracy."""

    calls = "end_epoch"

    def run(self, context: PolicyContext, metrics: Array, state: Array) -> tuple[Array, ...]:
        """Return the stored state, float64 [1, numbers + 1]."""
        owner, xp = self.owner, array_namespace(state)
        found = owner.end_epoch(context, Metrics.of(metrics), loaded(owner, context, state))
        numbers = expect_numbers(owner, "end_epoch", found, owner.state_width)
        return (xp.asarray([[*numbers, 1.0]], dtype=xp.float64, device=device(state)),)

    def decided(self, context: PolicyContext, read: Sequence[Array], written: Sequence[Array]) -> Mapping[str, int]:
        """Return the number of correct and of all training rows."""
        point, metrics = context.options["point"], Metrics.of(read[0])
        return {f"{point}/correct": int(metrics.correct), f"{point}/count": int(metrics.count)}

    def shared(self, context: PolicyContext, read: Sequence[Array], written: Sequence[Array]) -> Mapping[str, float]:
        """Return the state before and after the epoch."""
        before, after = loaded(self.owner, context, read[1]), written[0][0].tolist()
        return {f"state {index}": number for index, number in enumerate((*before, *after))}


ROW_ACTIONS = (SelectMoved, EncodeMoved, DecodeMoved, ListRows, MaskRows, EndEpoch)


def moved_rows(policy: ChoosesRows, context: PolicyContext, rows: Array, cached: Array, state: Array | None) -> Array:
    """Return which rows travel, bool [n]. The policy tests each row, and by itself each of its last ``divisors``
    elements (an option of the op), by which others are divided: a row travels if any of these tests chooses it."""
    numbers, (count, width) = loaded(policy, context, state), rows.shape

    def test(part: slice) -> Array:
        found = policy.moved(context, rows[:, part], cached[:, part], numbers)
        return expect(policy, "moved", found, (count,), "bool", rows)

    found = test(slice(width))
    for column in range(width - int(context.options.get("divisors", 0)), width):
        found = found | test(slice(column, column + 1))
    return found


def loaded(policy: ChoosesRows, context: PolicyContext, state: Array | None) -> State:
    """Return the numbers of a stored state, whose last element is 0 before the first epoch has ended."""
    if state is None:
        return ()
    *numbers, begun = array_namespace(state).reshape(state, (-1,)).tolist()
    return tuple(numbers) if begun else expect_numbers(policy, "init", policy.init(context), policy.state_width)


def coded_change(
    codec: Codec, context: PolicyContext, rows: Array, chosen: Array, cached: Array, names: Array | None = None
) -> tuple[Array, Array]:
    """Return the encoded differences of the chosen rows from the cache, and the new cache: the cache plus what
    receivers decode, or the rows themselves if the codec keeps exact rows.

    ``names`` int64 [n]: the rank's numbers of the rows, so that a row that goes to several peers is encoded alike."""
    old, picked = pick_rows(cached, chosen), pick_rows(rows, chosen)
    names = context.gathered if names is None else names
    named = chosen if names is None else pick_rows(names, chosen)
    if codec.keeps_exact_rows:
        change = array_namespace(rows).subtract(picked, old, out=old)
        return encoded(codec, context, change, named), put_rows(cached, chosen, picked)
    picked -= old
    packed = encoded(codec, context, picked, named)
    del picked  # two such arrays at once are the most that any op of a cache holds
    return packed, move_on(codec, context, packed, chosen, old, cached)


def move_on(codec: Codec, context: PolicyContext, packed: Array, chosen: Array, old: Array, cached: Array) -> Array:
    """Add decoded differences to the cache, in one expression on both ends, so that they hold the same bits. ``old``:
    the chosen rows of the cache, overwritten with the new ones."""
    old += decoded(codec, context, packed, cached.shape[1], dtype_name(cached))
    return put_rows(cached, chosen, old)


def take_arrived(codec: Codec, context: PolicyContext, arrived: Array, mask: Array, cached: Array) -> Array:
    """Update a receiver's cache with the arrived values of the rows that ``mask`` names."""
    chosen = places_of(received_mask(context, cached).unpack(mask))
    if codec.encodes:
        return move_on(codec, context, arrived, chosen, pick_rows(cached, chosen), cached)
    return put_rows(cached, chosen, arrived)
