"""Skip-broadcast: a rank skips its broadcast if its block changed little or is recent; others reuse their copy."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Literal, Self

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simgnn.emit.blocks import BlockSync, BlockTransfer, PlainBlocks
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.guarded_blocks import NEVER, Change, ComparesBlocks, GuardsBlocks
from simgnn.model.spec import LayerSpec
from simgnn.policy import Array, Choices, Codec, PolicyContext, Refusal, chosen
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray

PIECE, PIECES = 2**16, 64
"""A block is compared with what was sent in pieces of ``PIECE`` numbers, but in no more than about ``PIECES`` pieces,
as a GPU waits for each."""
EPOCH_FIXED, EPOCH_ADAPTIVE, VARIATION_GAP = "epoch-fixed", "epoch-adaptive", "variation-gap"
READ_BY: Mapping[str, frozenset[str]] = {
    EPOCH_FIXED: frozenset({"bound_epochs", "check"}),
    EPOCH_ADAPTIVE: frozenset({"bound_epochs", "check", "stagger"}),
    VARIATION_GAP: frozenset({"bound_change", "norm"}),
}
"""Rule -> the options that it reads, of those that not all do."""


class SkipBroadcast(GuardsBlocks, ComparesBlocks):
    """Whole blocks are sent or not, by one flag per layer and root, equal on all ranks and decided just before use.

    ``rule``: ``epoch-fixed``: all roots send when their copies would be older than ``bound_epochs`` epochs;
    ``epoch-adaptive``: each root decides by itself, at different epochs if ``stagger``; ``variation-gap``: a root sends
    when its block has moved from the copy by more than ``bound_change``, measured by ``norm``: ``relative`` (Frobenius
    norm of the change over that of the block), ``frobenius``, ``root-mean-square`` or ``largest`` (both of elements).
    ``check``: ages at the ``start`` of the epoch (none in use exceeds the bound), or at the ``end`` of the one before
    (ages in use may exceed it by one). ``own_block``: whether a rank multiplies its own block ``fresh``, or the
    ``cached`` copy that others hold. ``skip = "gradients"``: forward is fresh and backward follows the rule.

    Source: SANCUS, Algorithms 3 to 6, as read in docs/systems/sancus.md, which lists where the text is ambiguous.
    Deviation: ``epoch-adaptive`` looks at ages alone; blocks that no other rank has edges from are sent too."""

    kind: Literal["skip-broadcast"] = "skip-broadcast"
    rule: Literal["epoch-fixed", "epoch-adaptive", "variation-gap"] = Field(
        default="epoch-adaptive", description="rule that decides whether a block is sent"
    )
    bound_epochs: int = Field(
        default=1, ge=0, le=10**7, description="greatest age of a copy in use, in epochs (epoch-fixed, epoch-adaptive)"
    )
    bound_change: float = Field(
        default=0.01,
        ge=0,
        allow_inf_nan=True,
        description="largest change of a block that is not sent (variation-gap); inf: no block is sent",
    )
    norm: Literal["relative", "frobenius", "root-mean-square", "largest"] = Field(
        default="relative", description="how a change is measured"
    )
    check: Literal["start", "end"] = Field(default="start", description="point of an epoch at which ages are checked")
    stagger: bool = Field(default=True, description="roots begin at different epochs (epoch-adaptive)")
    own_block: Literal["fresh", "cached"] = Field(
        default="fresh", description="copy of its own block that a rank multiplies"
    )
    inputs: Literal["policy", "always"] = Field(default="policy", description="whether input features follow the rule")
    warmup_epochs: int = Field(
        default=0, ge=0, le=10**7, description="number of first epochs in which all blocks are sent"
    )
    skip: Literal["embeddings", "gradients"] = Field(
        default="embeddings", description="direction in which blocks may be skipped"
    )

    @model_validator(mode="after")
    def _fits_the_rule(self) -> Self:
        read = READ_BY[self.rule]
        other = {name for names in READ_BY.values() for name in names} - read
        unused = chosen(self, sorted(other))
        if unused:
            raise ValueError(
                f"rule: got '{self.rule}' with {', '.join(unused)}, expected only options that this rule reads "
                f"({', '.join(sorted(read))}): remove {', '.join(unused)} or change rule"
            )
        return self

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if not chosen(self, ["inputs"]):
            return
        if self.skip == "gradients":
            why = "freshness.skip = 'gradients', which sends all rows forward"
        elif choices.model.transforms_first:
            why = f"{choices.model.transforms_first}, which sends transformed rows in place of input features"
        elif not choices.communication.resends_inputs():
            why = f"communication.kind = '{choices.communication.label}', which sends input features once here"
        else:
            return
        yield Refusal(
            "freshness", "inputs",
            f"got '{self.inputs}' with {why}, expected none: it has no effect; remove it",
        )  # fmt: skip

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Report ``inputs`` if the first layer transforms its rows first: then blocks of inputs never travel."""
        if not chosen(self, ["inputs"]) or layers[0].order == "aggregate-first":
            return []
        return [
            f"freshness.inputs: got '{self.inputs}', expected none: layer 1 transforms its rows before it sums them, "
            "so no input features are sent; remove it, or set model.order = 'aggregate-first'"
        ]

    @property
    def by_values(self) -> bool:
        return self.rule == VARIATION_GAP

    @property
    def oldest_epochs(self) -> int | None:
        return None if self.by_values else self.bound_epochs + (self.check == "end")

    @property
    def own_copy(self) -> bool:
        return self.own_block == "cached"

    def agree(self, context: PolicyContext, versions: Sequence[int], wanted: Sequence[int] | None) -> tuple[bool, ...]:
        return self.active(context.epoch, versions, wanted)

    def change(self, rows: Array, sent: Array) -> Change:
        """Measure how far ``rows`` [n, F] are from the copy ``sent`` [n, F], summed in float64."""
        xp = array_namespace(rows, sent)
        moved, now, count = [0.0], [0.0], int(rows.shape[0])  # of each piece: all in float64 are six times the block
        step = max(1, PIECE // max(1, int(rows.shape[1])), count // PIECES)
        for start in range(0, count, step):
            piece = xp.astype(rows[start : start + step, :], xp.float64)
            apart = piece - xp.astype(sent[start : start + step, :], xp.float64)
            if self.norm == "largest":
                moved.append(float(xp.max(xp.abs(apart))) if rows.shape[1] else 0.0)
                continue
            moved.append(float(xp.sum(apart * apart)))
            if self.norm == "relative":
                now.append(float(xp.sum(piece * piece)))
        if self.norm == "largest":
            return Change(float(np.max(moved)), self.bound_change)
        gap = sum(moved) ** 0.5
        if self.norm == "root-mean-square":
            return Change(gap / max(1, count * int(rows.shape[1])) ** 0.5, self.bound_change)
        if self.norm == "frobenius":
            return Change(gap, self.bound_change)
        reference = sum(now) ** 0.5
        unbounded = inf if self.bound_change == inf else 0.0  # nothing is small against a block of zeros
        return Change(gap, self.bound_change * reference if reference > 0 else unbounded)

    def active(
        self, epoch: int, versions: Sequence[int] | NDArray[np.int64], changed: Sequence[int] | None = None
    ) -> tuple[bool, ...]:
        """Decide which roots send in an epoch: the same on every rank for the same arguments.

        ``versions`` [P]: epoch in which each root last sent, ``NEVER`` at first; ``changed`` [P]: whether each root's
        block has changed too much (variation-gap)."""
        if epoch < self.warmup_epochs:
            return (True,) * len(versions)
        if self.by_values:
            assert changed is not None, "the variation gap is decided by what roots tell"
            return tuple(int(last) == NEVER or bool(flag) for last, flag in zip(versions, changed, strict=True))
        looked = epoch - (self.check == "end")
        return tuple(
            int(last) == NEVER or looked - self._scheduled(root, int(last)) > self.bound_epochs
            for root, last in enumerate(versions)
        )

    def _scheduled(self, root: int, last: int) -> int:
        """Return the epoch from which ages count: earlier than the real one if roots begin at different epochs."""
        forced = max(0, self.warmup_epochs - 1)
        if self.rule == EPOCH_ADAPTIVE and self.stagger and last <= forced:
            return forced - root % (self.bound_epochs + 1)
        return last

    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        skipped = "backward" if self.skip == "gradients" else "forward"
        if sync.phase != skipped or (sync.constant and self.inputs == "always"):
            return PlainBlocks(builder, sync, codec)
        return super().blocks(builder, sync, codec)

    def scheduled(self, program: Program, epochs: int) -> Mapping[str, IntArray]:
        guarded = {op.guard.decision: op.root for _, op in program.ops if op.guard is not None and op.root is not None}
        if self.by_values or not guarded:
            return {}
        sends = self.sends(epochs, program.ranks).astype(np.int64)
        shape = (program.ranks, epochs, 1)
        return {name: np.broadcast_to(sends[None, :, root, None], shape) for name, root in guarded.items()}

    def sends(self, epochs: int, ranks: int) -> NDArray[np.bool_]:
        """Return which roots send in each epoch of a run, bool [epochs, P], for rules that need no values."""
        assert not self.by_values, "the variation gap depends on values that only training produces"
        versions = np.full(ranks, NEVER, dtype=np.int64)
        found = np.zeros((epochs, ranks), dtype=np.bool_)
        for epoch in range(epochs):
            found[epoch] = self.active(epoch, versions)
            versions[found[epoch]] = epoch
        return found
