"""Emits the transfers of halo rows of which some are cached: on devices, and in memory that a host's ranks share."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.halo_cache.actions import FillRest, FillRows, KeepGradients, KeepRows, PutShared, SwapRows
from simgnn.emit.halo_cache.routes import (
    CACHED,
    HELD,
    IN_HOST,
    IN_MEMORY,
    MISSED,
    RELAYED,
    REST,
    SHARED,
    STORED,
    arriving,
    leaving,
)
from simgnn.emit.sync import Stage, Sync, buffer_name, carry, land, receiving_buffer
from simgnn.policy import Action, Codec
from simgnn.program.calendar import FIRST
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Dependency, Work
from simgnn.program.sizes import Scratch, Size, reverse_of, rows_of

REFRESH = "refresh"
"""The epochs in which all rows are new, and caches are filled with them."""


@dataclass(frozen=True)
class CachedTransfer:
    """Emits a stage of a sync of training. ``codec``: None if rows travel as they are. ``slot``: of the policy whose
    actions these are; ``interval``: epochs between two refreshes; ``delayed``: a refresh uses cached rows as they are,
    and the new ones from the next epoch on.

    Buffers for the whole run: ``cache``, and ``shared`` for all ranks of a host; ``versions`` and ``shared_versions``,
    the epochs of their rows; and the gradients of cached rows as they last arrived, where these are used again."""

    builder: ProgramBuilder
    sync: Sync
    stage: Stage
    codec: Codec | None
    slot: str
    interval: int
    delayed: bool = False

    # -- epochs ----------------------------------------------------------------------------------------------------

    @property
    def constant(self) -> bool:
        """Whether rows never change, so that the first epoch fills the caches for all."""
        return self.sync.phase == "setup"

    @property
    def fresh(self) -> Sync:
        """The sync in the epochs that fill the caches."""
        return self.sync if self.interval == 1 else self.sync.only(FIRST if self.constant else REFRESH)

    @property
    def swapped(self) -> Sync:
        """The sync in the epochs that fill the caches for later ones. In the first epoch there are no older rows."""
        none = replace(self.sync, templates=())
        return self.fresh.without(FIRST) if self.delayed and self.interval > 1 and not self.constant else none

    @property
    def held(self) -> Sync:
        """The sync in the epochs that read them."""
        none = replace(self.sync, templates=())
        return none if self.interval == 1 else self.sync.without(FIRST if self.constant else REFRESH)

    @property
    def shares(self) -> bool:
        """Whether some rows lie in memory that the ranks of a host share."""
        return IN_HOST in self.builder.routes

    # -- rows ------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Emit the way of rows to the ranks that need them: of all of them in a refresh, otherwise of those that are
        not cached. A schedule that overlaps nothing runs ops one by one."""
        overlaps = self.builder.sums_own_first or not self.shares
        receiving_buffer(self.builder, self.sync, self.stage)
        for emit in (self._refresh, self._reuse):
            with nullcontext() if overlaps else self.builder.one_by_one():
                emit()

    def _refresh(self) -> None:
        builder, sync, stage = self.builder, self.fresh, self.stage
        if not self.shares:
            carry(builder, sync, stage, self.codec)
        else:
            self._store("store", stage.source, STORED, leaving(STORED))
            rest = self._stage("rest", REST)
            carry(builder, sync, rest, self.codec)
            put = [self._rows("gather", arriving(REST))]
            self._act(sync, "fill", FillRest, [rest.target], [stage.target], put, route=stage.route)
            stored = "store"
            if builder.routes[RELAYED].rows.any():
                stored = "relay"
                self._store(stored, stage.target, reverse_of(RELAYED), arriving(RELAYED))
            builder.host_barrier(
                sync.templates, sync.op(stage, "stored"), sync.op(stage, stored), layer=sync.layer, phase=sync.phase
            )
            self._load(sync, IN_HOST, sync.op(stage, "stored"))
        if self.interval == 1:
            return
        (cache, version), swapped = self._cache(), self.swapped.templates
        used_now = replace(sync, templates=tuple(name for name in sync.templates if name not in swapped))
        kept = [self._rows("gather", arriving(CACHED))]
        self._act(used_now, "keep", KeepRows, [stage.target, cache, version], [cache, version], kept)
        whole = [stage.target, cache, version]
        self._act(
            self.swapped, "swap", SwapRows, whole, whole, kept * 2, options=self._age,
            scratch=Scratch(rows_of(arriving(CACHED), self._row_bytes)),
        )  # fmt: skip

    def _reuse(self) -> None:
        sync, stage = self.held, self.stage
        if not sync.templates:
            return
        missed, (cache, version) = self._stage("missed", MISSED), self._cache()
        carry(self.builder, sync, missed, self.codec)
        put = [self._rows("gather", arriving(MISSED)), self._rows("gather", arriving(CACHED))]
        self._act(
            sync, "fill", FillRows, [missed.target, cache, version], [stage.target], put, route=stage.route,
            options=self._age,
        )  # fmt: skip
        if self.shares:
            self._load(sync, SHARED)

    def _store(self, part: str, source: str, route: str, rows: Size) -> None:
        """Emit the copy of rows into the memory of the host. Each of them has one writer."""
        shared, versions = self._shared()
        fields = self.fresh.overhead
        self.builder.host_copy(
            self.fresh.templates, self.fresh.op(self.stage, part), OpKind.D2H, [source, shared, versions],
            [shared, versions], rows, self._row_bytes, route=route, form=Form.OWN_ROWS, **fields,
        )  # fmt: skip

    def _load(self, sync: Sync, route: str, after: str = "") -> None:
        """Emit the copy of rows from the memory of the host to the halo on the device."""
        builder, stage, (shared, versions) = self.builder, self.stage, self._shared()
        rows = builder.buffer(f"{buffer_name('loaded', sync, stage)}/{route}", arriving(route), sync.width)
        ages = builder.buffer(
            f"{buffer_name('loaded_versions', sync, stage)}/{route}", arriving(route), 1, "int64", space="host"
        )
        builder.host_copy(
            sync.templates, sync.op(stage, "load"), OpKind.H2D, [shared, versions], [rows, ages], arriving(route),
            self._row_bytes, route=route, after=(Dependency(after),) if after else (), **sync.overhead,
        )  # fmt: skip
        put = [self._rows("gather", arriving(route))]
        self._act(
            sync, "put", PutShared, [rows, ages, stage.target], [stage.target], put, route=route, options=self._age
        )

    # -- gradients -------------------------------------------------------------------------------------------------

    def give_back(self, historical: bool) -> None:
        """Emit the way of gradients to the owners of rows: of all halo rows in a refresh, otherwise of those that are
        not cached. ``historical``: those of cached rows are added once more as they arrived in the last refresh."""
        builder, sync, stage, back = self.builder, self.sync, self.stage, reverse_of(MISSED)
        assert stage.arrived is not None, "gradients arrive in a buffer of their own"
        carry(builder, self.fresh, stage, self.codec)
        kept = ""
        if historical and self.held.templates:
            kept = builder.buffer(buffer_name("cache", sync, stage), leaving(HELD), sync.width, persistent=True)
            work = [self._rows("gather", leaving(HELD))]
            self._act(self.fresh, "keep", KeepGradients, [stage.arrived, kept], [kept], work)
        land(builder, self.fresh, stage)
        missed = replace(
            stage, name="missed", route=back, picked=back, landed=back, packed=f"{stage.packed}/missed",
            arrived=f"{stage.arrived}/missed", leaving=arriving(MISSED), arriving=leaving(MISSED),
        )  # fmt: skip
        carry(builder, self.held, missed, self.codec)
        land(builder, self.held, missed)
        if kept:
            builder.compute(
                self.held.templates, sync.op(stage, "add_kept"), OpKind.ADD, [kept, stage.target], [stage.target],
                (self._rows("scatter_add", leaving(HELD)),), route=reverse_of(HELD), **sync.overhead,
            )  # fmt: skip

    # -- parts -----------------------------------------------------------------------------------------------------

    def _stage(self, name: str, route: str) -> Stage:
        """The exchange of some rows of the stage, which arrive in a buffer of their own."""
        stage = self.stage
        return replace(
            stage, name=name, route=route, picked=route, packed=f"{stage.packed}/{name}", kept=False,
            target=f"{stage.target}/{name}", leaving=leaving(route), arriving=arriving(route),
        )  # fmt: skip

    def _cache(self) -> tuple[str, str]:
        sync, stage = self.sync, self.stage
        return (
            self.builder.buffer(buffer_name("cache", sync, stage), arriving(CACHED), sync.width, persistent=True),
            self.builder.buffer(buffer_name("versions", sync, stage), 1, 1, "int64", persistent=True, space="host"),
        )

    def _shared(self) -> tuple[str, str]:
        sync, stage = self.sync, self.stage
        fields: dict[str, Any] = {"persistent": True, "space": "host-shared"}
        return (
            self.builder.buffer(buffer_name("shared", sync, stage), IN_MEMORY, sync.width, **fields),
            self.builder.buffer(buffer_name("shared_versions", sync, stage), IN_MEMORY, 1, "int64", **fields),
        )

    @property
    def _age(self) -> dict[str, str | int | float]:
        return {"interval": 0 if self.constant else self.interval, **({"delay": 1} if self.delayed else {})}

    @property
    def _row_bytes(self) -> int:
        return self.sync.width * self.builder.item_bytes

    def _act(
        self, sync: Sync, part: str, action: type[Action[Any]], reads: Sequence[str], writes: Sequence[str],
        work: Sequence[Work], **fields: Any,
    ) -> None:  # fmt: skip
        self.builder.compute(
            sync.templates, sync.op(self.stage, part), OpKind.SELECT, reads, writes, tuple(work), action,
            module=self.slot, **sync.overhead, **fields,
        )  # fmt: skip

    def _rows(self, primitive: str, rows: Size) -> Work:
        return self.builder.row_work(primitive, rows, self.sync.width)
