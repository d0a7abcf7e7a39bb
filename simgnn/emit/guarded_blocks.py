"""Guarded broadcasts: ranks agree on which blocks travel; for the others every rank uses the copy that it has."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, NamedTuple

from array_api_compat import array_namespace

from simgnn.emit.blocks import Arrived, BlockSync, BlockTransfer, BlockWire
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.freshness import MovesBlocks
from simgnn.errors import BackendError
from simgnn.model.costs import pass_over
from simgnn.policy import Action, Array, Codec, Policy, PolicyContext, PolicyError, expect_numbers, wrong
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Dependency, Guard

NEVER = -1
"""Version of a block that was never sent. Other versions are epochs."""


class Change(NamedTuple):
    """The distance of a block from its last broadcast copy: ``gap``, and the ``limit`` below which it may stay."""

    gap: float
    limit: float

    @property
    def small(self) -> bool:
        """Whether other ranks may keep their copies. False if the gap is not finite."""
        return isfinite(self.gap) and self.gap <= self.limit


class ComparesBlocks(Policy, ABC):
    """A policy whose decisions depend on how much blocks have changed."""

    @abstractmethod
    def change(self, rows: Array, sent: Array) -> Change:
        """Measure how far ``rows`` [n, F] are from the copy ``sent`` [n, F]."""


class FlagChange(Action[ComparesBlocks]):
    """Report whether the rank's block has moved too far from the copy that it last sent."""

    starts_from_zeros: ClassVar[bool] = False
    calls = "change"

    def run(self, context: PolicyContext, rows: Array, sent: Array | None) -> tuple[Array, ...]:
        """Return the flag, uint8 [1, 1] (1 if nothing was sent yet), and the change, float64 [1, 2]."""
        xp = array_namespace(rows)
        change, wants = Change(0.0, 0.0), True
        if sent is not None:
            change = Change(*expect_numbers(self.owner, "change", self.owner.change(rows, sent), 2))
            wants = not change.small
        return xp.asarray([[int(wants)]], dtype=xp.uint8), xp.asarray([list(change)], dtype=xp.float64)


class Agree(Action["GuardsBlocks"]):
    """Decide which roots send, identically on all ranks."""

    calls = "agree"

    def run(
        self, context: PolicyContext, versions: Array, flags: Array | None = None, change: Array | None = None
    ) -> tuple[Array, ...]:
        """Return the unchanged versions, and which roots send, uint8 [P, 1].

        ``versions`` int64 [P, 1]: one more than the epoch in which each root last sent, 0 before. If values decide: the
        ``flags`` uint8 [P, 1] of all ranks, and this rank's ``change``."""
        xp = array_namespace(versions)
        last = [int(number) + NEVER for number in _numbers(versions)]
        wanted = None if flags is None else [int(flag) for flag in _numbers(flags)]
        found = self.owner.agree(context, last, wanted)
        active = [bool(sends) for sends in expect_numbers(self.owner, "agree", found, context.ranks, "booleans")]
        for root in range(context.ranks):
            guarded = root != context.rank and f"{context.options['point']}/root-{root}" in context.guards
            if guarded and last[root] == NEVER and not active[root]:
                raise wrong(self.owner, "agree", found, f"True for rank {root}, whose block was never sent")
        if change is not None and last[context.rank] != NEVER and not active[context.rank]:
            gap, limit = _numbers(change)
            if not gap <= limit:
                raise PolicyError(
                    f"rank {context.rank} does not send in epoch {context.epoch + 1} although its block has moved by "
                    f"{gap:.6g}; expected at most {limit:.6g} (freshness.bound_change): this is a fault of the backend"
                )
        return versions, xp.asarray(active, dtype=xp.uint8)[:, None]

    def decided(self, context: PolicyContext, read: Sequence[Array], written: Sequence[Array]) -> Mapping[str, int]:
        """Return, for every root whose block an op may send, whether it sends (0, 1), by name ``POINT/root-R``."""
        point = context.options["point"]
        sends = {f"{point}/root-{root}": int(active) for root, active in enumerate(_numbers(written[1]))}
        return {name: active for name, active in sends.items() if name in context.guards}


def check_ages(rank: int, epoch: int, versions: Array, others: Iterable[int], oldest: int) -> None:
    """Raise :class:`BackendError` if a block of ``others`` is more than ``oldest`` epochs old or was never sent.
    ``versions``: as of :class:`Agree`."""
    known = _numbers(versions)
    for root in others:
        version = int(known[root]) + NEVER
        if version == NEVER or epoch - version > oldest:
            came = "was never sent" if version == NEVER else f"is of epoch {version + 1}"
            raise BackendError(
                f"the block of rank {root} in use on rank {rank} in epoch {epoch + 1} {came}; expected at most "
                f"{oldest} epochs old (freshness.bound_epochs): this is a fault of simgnn, not of the experiment"
            )


def _numbers(row: Array) -> list[float]:
    found: list[float] = array_namespace(row).reshape(row, (-1,)).tolist()
    return found


class GuardsBlocks(MovesBlocks, ABC):
    """The base of policies by which all ranks agree on the roots that send their block.

    ``own_copy``: a rank multiplies the copy of its own block that others hold, not its fresh block. ``oldest_epochs``:
    the greatest age of a copy in use; None: any age."""

    actions: ClassVar[tuple[type[Action[Any]], ...]] = (FlagChange, Agree)

    @property
    def own_copy(self) -> bool:
        return False

    @property
    def oldest_epochs(self) -> int | None:
        return None

    @property
    def by_values(self) -> bool:
        """Whether a rank must compare its rows to decide (:class:`ComparesBlocks`)."""
        return False

    @abstractmethod
    def agree(self, context: PolicyContext, versions: Sequence[int], wanted: Sequence[int] | None) -> Sequence[bool]:
        """Decide which roots send. Must return the same on every rank for the same arguments.

        ``versions`` [P]: the epoch in which each root last sent, or ``NEVER``. ``wanted`` [P]: whether each root's
        block has changed too much to be reused (None: no rank compares its rows)."""

    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        return GuardedBlocks(builder, sync, codec, self)


class GuardedBlocks:
    """Emits the transfers of a sync of which some blocks are skipped.

    Buffers of a sync point, for the whole run: a copy of each other rank's block; the epoch in which each root last
    sent (versions); and, where it is compared or multiplied, the rank's own block as last sent."""

    def __init__(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec, guards: GuardsBlocks) -> None:
        self.builder, self.sync, self.guards = builder, sync, guards
        self._wire = BlockWire(builder, sync, codec)
        self.keeps_sent = guards.by_values or guards.own_copy
        self._versions, self._active = f"versions/{sync.point}", f"active/{sync.point}"
        self._sent, self._point = f"sent/{sync.point}", f"agreed/{sync.point}"

    def begin(self, after: tuple[Dependency, ...]) -> None:
        """Emit the choice of blocks to send; if it depends on values, ranks compare theirs and share flags first."""
        builder, sync, ranks = self.builder, self.sync, len(self.sync.rows)
        builder.buffer(self._versions, ranks, 1, "int64", persistent=True, space="host")
        builder.buffer(self._active, ranks, 1, "uint8", space="host")
        if self.keeps_sent:
            builder.buffer(self._sent, sync.own_rows, sync.width, persistent=True)
        told = []
        if self.guards.by_values:
            flag = builder.buffer(f"flag/{sync.point}", 1, 1, "uint8", space="host")
            change = builder.buffer(f"change/{sync.point}", 1, 2, "float64", space="host")
            flags = builder.buffer(f"flags/{sync.point}", ranks, 1, "uint8", space="host")
            self._select("change", FlagChange, [sync.source, self._sent], [flag, change], 2, after)
            builder.allgather(
                sync.templates, sync.op("flags"), flag, flags, 1, control=True, layer=sync.layer, phase=sync.phase
            )
            told = [flags, change]
        self._select("agree", Agree, [self._versions, *told], [self._versions, self._active], 0, after)

    def send(self, root: int, after: tuple[Dependency, ...]) -> Arrived:
        builder, sync = self.builder, self.sync
        rows = sync.rows_elsewhere(builder, root)
        cache = builder.buffer(f"cache/{sync.point}/root-{root}", rows, sync.width, persistent=True)
        self._wire.send(
            root, cache, after, versions=self._versions, sent=self._sent if self.keeps_sent else None,
            active=self._active, decided=sync.op("agree"), guard=Guard(f"{self._point}/root-{root}", agreed=True),
        )  # fmt: skip
        return Arrived(self._sent if self.guards.own_copy else sync.source, cache)

    def checks(self) -> tuple[str | None, dict[str, int | str]]:
        if self.guards.oldest_epochs is None:
            return None, {}
        return self._versions, {"versions": self._versions, "oldest_epochs": self.guards.oldest_epochs}

    def _select(
        self, part: str, action: type[Action[Any]], reads: list[str], writes: list[str], passes: int,
        after: tuple[Dependency, ...],
    ) -> None:  # fmt: skip
        builder, sync = self.builder, self.sync
        work = builder.work([pass_over(sync.own_rows, sync.width, passes)]) if passes else ()
        builder.compute(
            sync.templates, sync.op(part), OpKind.SELECT, reads, writes, work, action, layer=sync.layer,
            phase=sync.phase, module=self.guards.slot, category="comm_overhead", after=after,
            options={"point": self._point},
        )  # fmt: skip
