"""Guarded broadcasts: ranks agree on which blocks travel; of the others every rank uses the copy that it has."""

from abc import ABC
from typing import Any, ClassVar

from simgnn.emit.blocks import Arrived, BlockSync, BlockTransfer, BlockWire
from simgnn.emit.freshness import MovesBlocks
from simgnn.emit.guards import GUARD_ACTIONS, Agree, AgreesOnBlocks, FlagChange
from simgnn.model.costs import pass_over
from simgnn.policy import Action, Codec
from simgnn.program.builder import Labelled, ProgramBuilder
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Dependency, Guard


class GuardsBlocks(AgreesOnBlocks, MovesBlocks, ABC):
    """A policy says which roots send (:meth:`AgreesOnBlocks.agree`); everything else is done here.

    ``own_copy``: whether a rank multiplies the copy of its own block that others hold; else its fresh block.
    ``oldest_epochs``: how old a copy in use may be; None: any age.
    """

    actions: ClassVar[tuple[type[Action[Any]], ...]] = GUARD_ACTIONS

    @property
    def own_copy(self) -> bool:
        """See the class."""
        return False

    @property
    def oldest_epochs(self) -> int | None:
        """See the class."""
        return None

    @property
    def by_values(self) -> bool:
        """Whether a rank must look at its rows to decide (:class:`ComparesBlocks`)."""
        return False

    def blocks(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec) -> BlockTransfer:
        """See :class:`MovesBlocks`."""
        return GuardedBlocks(builder, sync, codec, self)


class GuardedBlocks:
    """See :class:`~simgnn.emit.blocks.BlockTransfer`.

    Buffers of a sync point, kept for the run: a copy of each other rank's block; the epoch in which each root last sent
    (versions); and, where it is compared or multiplied, what the rank itself sent last.
    """

    def __init__(self, builder: ProgramBuilder, sync: BlockSync, codec: Codec, guards: GuardsBlocks) -> None:
        self.builder, self.sync, self.guards = builder, sync, guards
        self._wire = BlockWire(builder, sync, codec)
        self.keeps_sent = guards.by_values or guards.own_copy
        self._versions, self._active = f"versions/{sync.point}", f"active/{sync.point}"
        self._sent = f"sent/{sync.point}"

    def begin(self, after: tuple[Dependency, ...]) -> None:
        """Where values decide, each rank looks at its rows and tells the others; then all agree."""
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
        """Broadcast, where it was agreed on, into the copies that others keep."""
        builder, sync = self.builder, self.sync
        rows = sync.rows_elsewhere(builder, root)
        cache = builder.buffer(f"cache/{sync.point}/root-{root}", rows, sync.width, persistent=True)
        self._wire.send(
            root, cache, after, versions=self._versions, sent=self._sent if self.keeps_sent else None,
            active=self._active, decided=sync.op("agree"), guard=Guard(f"{self._point}/root-{root}", agreed=True),
        )  # fmt: skip
        return Arrived(self._sent if self.guards.own_copy else sync.source, cache)

    def checks(self) -> tuple[str | None, dict[str, int | str]]:
        """The age of every copy, where the policy bounds it."""
        if self.guards.oldest_epochs is None:
            return None, {}
        return self._versions, {"versions": self._versions, "oldest_epochs": self.guards.oldest_epochs}

    @property
    def _point(self) -> str:
        return f"agreed/{self.sync.point}"

    def _select(
        self,
        part: str,
        action: Labelled,
        reads: list[str],
        writes: list[str],
        passes: int,
        after: tuple[Dependency, ...],
    ) -> None:
        builder, sync = self.builder, self.sync
        work = builder.work([pass_over(sync.own_rows, sync.width, passes)]) if passes else ()
        builder.compute(
            sync.templates, sync.op(part), OpKind.SELECT, reads, writes, work, action, layer=sync.layer,
            phase=sync.phase, module=self.guards.slot, category="comm_overhead", after=after,
            options={"point": self._point},
        )  # fmt: skip
