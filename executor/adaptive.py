"""The adaptive cache of vertices at work on one rank: what ops of :class:`AdaptiveVertex` call, on the rows of one
transfer. Both ends keep the rows as last sent, in buffers of the program."""

import torch

from executor.kernels import quantise
from executor.kernels.balance import default_threads
from executor.kernels.launch import even_parts, launch
from executor.kernels.masks import wire_mask
from executor.kernels.views import array, compiled_for
from simgnn.emit.arrays import dtype_name
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex, Threshold
from simgnn.policy import Codec, PolicyContext

Rows = torch.Tensor


class AdaptiveRows:
    """Faces of the policy for a run. ``codec`` None: rows travel as they are."""

    def __init__(self, policy: AdaptiveVertex, codec: Codec | None) -> None:
        self.policy = policy
        self.codec = codec

    def select(self, context: PolicyContext, rows: Rows, cached: Rows, threshold: Rows) -> tuple[Rows, Rows]:
        """Mask (uint8, as :class:`WireMask` of the rows to each peer) and positions int64 [k] of the rows that moved.

        ``rows``, ``cached`` [n, F] in the order of the wire; ``threshold``: the controller's state.
        """
        chosen = self.moved(context, rows, cached, threshold)
        return wire_mask(context.send, rows.device).pack(chosen), chosen.nonzero().flatten()

    def moved(self, context: PolicyContext, rows: Rows, cached: Rows, threshold: Rows) -> Rows:
        """Which rows moved, bool [n]; divisors at their ends are looked at by themselves."""
        epsilon, divisors = self._state(threshold).epsilon, int(context.options.get("divisors", 0))
        moved = moved_rows(self.policy, rows, cached, epsilon)
        if not divisors:
            return moved
        own, old = rows[:, -divisors:], cached[:, -divisors:]
        found: Rows = moved | self.policy.element_moved(own, old, rows.new_tensor(epsilon))
        return found

    def encode(self, context: PolicyContext, rows: Rows, chosen: Rows, cached: Rows) -> tuple[Rows, Rows]:
        """What travels of the chosen rows, and the cache as the receiver will have it."""
        if self.codec is None:
            picked = rows.index_select(0, chosen)
            return picked, cached.index_copy_(0, chosen, picked)
        return self.coded_change(context, rows, chosen, cached)

    def coded_change(self, context: PolicyContext, rows: Rows, chosen: Rows, cached: Rows) -> tuple[Rows, Rows]:
        """The encoded differences of the chosen rows from the cache; and that, with what receivers decode added to it,
        or the rows themselves where the codec gives no feedback."""
        assert self.codec is not None
        old, picked = cached.index_select(0, chosen), rows.index_select(0, chosen)
        if self.codec.keeps_exact_rows:
            packed = self.codec.encode(context, torch.sub(picked, old, out=old), _names(context, chosen))
            return packed, cached.index_copy_(0, chosen, picked)
        packed = self.codec.encode(context, picked.sub_(old), _names(context, chosen))
        del picked  # two such tensors at once are the most that any op of a cache holds
        return packed, self._moved_on(context, packed, chosen, old, cached)

    def decode(self, context: PolicyContext, arrived: Rows, mask: Rows, cached: Rows) -> tuple[Rows, Rows]:
        """All rows [n, F] that this rank goes on with, and the cache, which holds the same values."""
        chosen = wire_mask(context.receive, cached.device).unpack(mask).nonzero().flatten()
        if self.codec is None:
            cached.index_copy_(0, chosen, arrived)
        else:
            self._moved_on(context, arrived, chosen, cached.index_select(0, chosen), cached)
        return cached.clone(), cached

    def list_rows(self, context: PolicyContext, mask: Rows) -> tuple[Rows, Rows]:
        """What travels for a mask: how many rows of each peer it names, and their places, see :class:`WireMask`."""
        return wire_mask(context.send, mask.device).listed(mask)

    def mask_rows(self, context: PolicyContext, ids: Rows, counts: Rows) -> Rows:
        """The mask that a peer had, from what it sent of it."""
        return wire_mask(context.receive, ids.device).mask_of(ids, counts)

    def end_epoch(self, context: PolicyContext, metrics: Rows, threshold: Rows) -> Rows:
        """The controller's state after an epoch with these metrics, summed over ranks."""
        _, correct, count, _ = metrics.flatten().tolist()
        state = self.policy.adjusted(self._state(threshold), correct / count if count else None)
        known = state.mean_accuracy is not None
        numbers = [state.epsilon, state.mean_accuracy if known else 0.0, 2.0 if known else 1.0]
        return torch.tensor([numbers], dtype=threshold.dtype, device=threshold.device)

    def warm_up(self, rows: Rows) -> None:
        """Run every kernel once on these rows; the codec's are its own affair."""
        moved_rows(self.policy, rows, rows, 0.0)

    def _moved_on(self, context: PolicyContext, packed: Rows, chosen: Rows, old: Rows, cached: Rows) -> Rows:
        """One expression on both ends, so that their caches hold the same bits; ``old`` is made the new rows."""
        assert self.codec is not None
        # what a codec gives may be the very bytes that are yet to be sent
        return cached.index_copy_(
            0, chosen, old.add_(self.codec.decode(context, packed, cached.shape[1], dtype_name(cached)))
        )

    def _state(self, threshold: Rows) -> Threshold:
        epsilon, mean, stage = threshold.flatten().tolist()
        if not stage:
            return self.policy.start()
        return Threshold(epsilon, mean if stage == 2.0 else None)


def _names(context: PolicyContext, chosen: Rows) -> Rows:
    """Where the rows of a transfer at the positions ``chosen`` are encoded: named by what the rank calls them, so that
    a row that goes to several peers is encoded alike."""
    return chosen if context.gathered is None else context.gathered.index_select(0, chosen)


def moved_rows(policy: AdaptiveVertex, rows: Rows, cached: Rows, epsilon: float) -> Rows:
    """:meth:`AdaptiveVertex.moved` as bool [n]: compiled on the CPU, by the policy's own lines elsewhere."""
    if not (compiled_for(rows) and compiled_for(cached)):
        return policy.moved(rows, cached, rows.new_tensor(epsilon))  # type: ignore[no-any-return]
    chosen = torch.empty(len(rows), dtype=torch.bool)
    here = array(rows)
    arguments = here, array(cached), here.dtype.type(epsilon), policy.reference == "cached", chosen.numpy()
    launch(quantise.moved, quantise.moved_parallel, arguments, even_parts(len(rows), default_threads()))
    return chosen
