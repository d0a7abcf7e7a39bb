"""Emits the transfers of halo rows of which some are cached: on devices, and in memory that a host's ranks share."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.halo_cache.actions import (
    CheckAges,
    FillMissed,
    FillRest,
    KeepGradients,
    KeepRows,
    PickRows,
    PutShared,
    SwapMemories,
    SwapRows,
)
from simgnn.emit.halo_cache.routes import (
    BOTH,
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
from simgnn.program.ops import ITEM_BYTES, Dependency, Work
from simgnn.program.sizes import Scratch, Size, reverse_of, rows_of

REFRESH = "refresh"
"""The epochs in which all rows are new, and caches are filled with them."""
PICK: Mapping[str, Any] = {"category": "pick_cache"}


@dataclass(frozen=True)
class CachedTransfer:
    """Emits a stage of a sync of training. ``codec``: None if rows travel as they are. ``slot``: of the policy whose
    actions these are; ``interval``: epochs between two refreshes; ``delayed``: a refresh uses cached rows as they are,
    and the new ones from the next epoch on.

    Buffers for the whole run: ``cache``, and ``shared`` for all ranks of a host, with ``delayed`` also ``spare``, which
    is written while ``shared`` is read and then changes places with it; their ``versions``, the epochs of their rows;
    and the gradients of cached rows as they last arrived, where these are used again."""

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
    def reuses(self) -> bool:
        """Whether rows are used in other epochs than that in which they were sent."""
        return self.interval > 1 or self.delayed

    @property
    def fresh(self) -> Sync:
        """The sync in the epochs that fill the caches."""
        return self.sync.only(FIRST if self.constant else REFRESH) if self.reuses else self.sync

    @property
    def ahead(self) -> Sync:
        """The sync in the epochs that fill the caches for later ones. In the first epoch there are no older rows."""
        none = replace(self.sync, templates=())
        return self.fresh.without(FIRST) if self.delayed and not self.constant else none

    @property
    def held(self) -> Sync:
        """The sync in the epochs that read them."""
        none = replace(self.sync, templates=())
        return self.sync.without(FIRST if self.constant else REFRESH) if self.reuses else none

    @property
    def shares(self) -> bool:
        """Whether some rows lie in memory that the ranks of a host share."""
        return IN_HOST in self.builder.routes

    # -- rows ------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Emit the way of rows to the ranks that need them: of all of them in a refresh, otherwise of those that are
        not cached. A schedule that overlaps nothing runs ops one by one."""
        overlaps = self.builder.sums_own_first
        receiving_buffer(self.builder, self.sync, self.stage)
        for emit in (self._refresh, self._refresh_ahead, self._reuse):
            with nullcontext() if overlaps else self.builder.one_by_one():
                emit()

    def _refresh(self) -> None:
        """Emit a refresh that uses the rows that it brings."""
        ahead, stage = self.ahead.templates, self.stage
        sync = replace(self.fresh, templates=tuple(name for name in self.fresh.templates if name not in ahead))
        if not sync.templates:
            return
        if not self.shares:
            carry(self.builder, sync, stage, self.codec)
        else:
            stored = self._fill_memory(sync, self._shared())
            # a way of new rows, as the exchange is
            self._load(sync, IN_HOST, self._shared(), self._age_of(delayed=False), Dependency(stored))
            if self._written_again:
                read, done = sync.op(stage, self._part("load", IN_HOST)), sync.op(stage, "loaded")
                self.builder.host_barrier(sync.templates, done, [read], layer=sync.layer, phase=sync.phase)
        if self.reuses:
            cache, version = self._cache()
            kept = [self._rows("gather", arriving(CACHED))]
            self._act(sync, "keep", KeepRows, [stage.target, cache, version], [cache, version], kept, **PICK)

    def _refresh_ahead(self) -> None:
        """Emit a refresh that uses cached rows as they are, and keeps those that it brings for the epochs to come."""
        sync, stage, older = self.ahead, self.stage, self._age_of(delayed=True)
        if not sync.templates:
            return
        memories = [self._shared(), self._memory("spare")] if self.shares else []
        if not self.shares:
            carry(self.builder, sync, stage, self.codec)
        else:
            shared, spare = memories
            stored = self._fill_memory(sync, spare, self._read(sync, SHARED, shared, self._written, **PICK))
            self._load(sync, BOTH, spare, self._age_of(delayed=False), Dependency(stored))
        cache, version = self._cache()
        whole, rows = [stage.target, cache, version], arriving(CACHED)
        self._act(
            sync, "swap", SwapRows, whole, whole, [self._rows("gather", rows)] * 2, **PICK,
            after=self._check(sync, "check", version, 1, older), scratch=Scratch(rows_of(rows, self._row_bytes)),
        )  # fmt: skip
        if memories:
            self._put(sync, SHARED, older, **PICK)

    def swap_memories(self) -> None:
        """Emit, behind the exchange of this sync of gradients, what lets later epochs read the memory that the ranks of
        a host have written: after the exchange no rank reads the other one any more."""
        rows = replace(self, sync=replace(self.sync, phase="forward"))
        if rows.ahead.templates and self.shares:
            both = [*rows._shared(), *rows._memory("spare")]
            after = (Dependency(self.sync.op(self.stage, "exchange")),)
            self._act(rows.ahead, "swap_memories", SwapMemories, both, both, [], form=Form.OWN_VIEWS, after=after)

    def _fill_memory(self, sync: Sync, memory: tuple[str, str], read: str = "") -> str:
        """Emit the ways of all rows of a refresh: to the ``memory`` of the host, or to the halo. Return the name of the
        op after which the ranks of a host may read the memory; it waits for the op ``read``, too."""
        builder, stage = self.builder, self.stage
        self._store(sync, "store", stage.source, STORED, leaving(STORED), memory)
        rest = self._stage("rest", REST)
        carry(builder, sync, rest, self.codec)
        put = [self._rows("gather", arriving(REST))]
        self._act(sync, "fill", FillRest, [rest.target], [stage.target], put, route=stage.route)
        stored = "store"
        if builder.routes[RELAYED].rows.any():
            stored = "relay"
            self._store(sync, stored, stage.target, reverse_of(RELAYED), arriving(RELAYED), memory)
        done, waits = sync.op(stage, "stored"), [sync.op(stage, stored), *([read] if read else [])]
        builder.host_barrier(sync.templates, done, waits, layer=sync.layer, phase=sync.phase)
        return done

    def _reuse(self) -> None:
        sync, stage = self.held, self.stage
        if not sync.templates:
            return
        missed, (cache, version) = self._stage("missed", MISSED), self._cache()
        carry(self.builder, sync, missed, self.codec)  # first, so that rows travel while others are picked
        age = self._age_of(self.delayed)
        self._act(
            sync, "pick", PickRows, [cache], [stage.target], [self._rows("gather", arriving(CACHED))], **PICK,
            route=stage.route, after=self._check(sync, "check", version, 1, age),
        )  # fmt: skip
        if self.shares:
            self._load(sync, SHARED, self._shared(), age, self._written, **PICK)
        put = [self._rows("gather", arriving(MISSED))]
        self._act(sync, "fill", FillMissed, [missed.target, stage.target], [stage.target], put, route=stage.route)

    def _store(
        self, sync: Sync, part: str, source: str, route: str, rows: Size, memory: tuple[str, str]
    ) -> None:  # fmt: skip
        """Emit the copy of rows into the memory of the host. Each of them has one writer."""
        builder, name = self.builder, sync.op(self.stage, part)
        fields: dict[str, Any] = {"route": route, **sync.overhead}
        after = (Dependency(sync.op(self.stage, "loaded"), epochs_back=1),) if self._written_again else ()
        if not builder.queues_copies:
            builder.host_copy(
                sync.templates, name, OpKind.D2H, [source, *memory], memory, rows, self._row_bytes, form=Form.OWN_ROWS,
                after=after, **fields,
            )  # fmt: skip
            return
        staged = builder.buffer(f"{buffer_name('staged', sync, self.stage)}/{part}", rows, sync.width, space="host")
        copied = sync.op(self.stage, f"{part}/copy")
        builder.host_copy(sync.templates, copied, OpKind.D2H, [source], [staged], rows, self._row_bytes, **fields)
        builder.host_merge(
            sync.templates, name, [staged, *memory], memory, rows, self._row_bytes, after=after, **fields
        )  # fmt: skip

    @property
    def _written_again(self) -> bool:
        """Whether rows that never change lie in the memory of the host in no other epoch than theirs. No gradients of
        these travel, so that nothing else keeps a rank from writing while others still read those of the epoch
        before."""
        return self.constant and not self.reuses

    @property
    def _written(self) -> Dependency:
        """What an epoch waits for that reads the memory of the host as the epoch before left it: all ranks have written
        there, if they did."""
        return Dependency(self.sync.op(self.stage, "stored"), epochs_back=1)

    def _load(
        self, sync: Sync, route: str, memory: tuple[str, str], age: Mapping[str, int], after: Dependency, **fields: Any
    ) -> None:  # fmt: skip
        """Emit the copy of rows from the memory of the host to the halo on the device."""
        self._read(sync, route, memory, after, **fields)
        self._put(sync, route, age, **fields)

    def _read(self, sync: Sync, route: str, memory: tuple[str, str], after: Dependency, **fields: Any) -> str:
        """Emit the copy of rows from the memory of the host to the device; return the op's name."""
        name = sync.op(self.stage, self._part("load", route))
        self.builder.host_copy(
            sync.templates, name, OpKind.H2D, memory, self._loaded(route), arriving(route), self._row_bytes,
            route=route, after=(after,), **{**sync.overhead, **fields},
        )  # fmt: skip
        return name

    def _put(self, sync: Sync, route: str, age: Mapping[str, int], **fields: Any) -> None:
        """Emit the copy of rows that were read to their places in the halo."""
        target, put = self.stage.target, [self._rows("gather", arriving(route))]
        rows, versions = self._loaded(route)
        checked = self._check(sync, self._part("check_loaded", route), versions, arriving(route), age)
        part = self._part("put", route)
        self._act(sync, part, PutShared, [rows, target], [target], put, route=route, after=checked, **fields)

    def _check(
        self, sync: Sync, part: str, versions: str, rows: Size, age: Mapping[str, int]
    ) -> tuple[Dependency, ...]:  # fmt: skip
        """Emit the check that cached rows are as old as they should be; return what their use waits for. It counts as a
        change of ``versions``, which orders it among the epochs."""
        compared = Work("elementwise", {"rows": rows, "width": 1, "passes": 2, "item_bytes": ITEM_BYTES["int64"]})
        self._act(sync, part, CheckAges, [versions], [versions], [compared], options=age, category="check_cache")
        return (Dependency(sync.op(self.stage, part)),)

    @staticmethod
    def _part(part: str, route: str) -> str:
        return f"{part}_both" if route == BOTH else part

    def _loaded(self, route: str) -> tuple[str, str]:
        """The buffers of rows read from the memory of the host, and of their versions."""
        sync, stage, rows = self.sync, self.stage, arriving(route)
        versions = f"{buffer_name('loaded_versions', sync, stage)}/{route}"
        return (
            self.builder.buffer(f"{buffer_name('loaded', sync, stage)}/{route}", rows, sync.width),
            self.builder.buffer(versions, rows, 1, "int64", space="host"),
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
            self._act(self.fresh, "keep", KeepGradients, [stage.arrived, kept], [kept], work, **PICK)
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
                (self._rows("scatter_add", leaving(HELD)),), route=reverse_of(HELD), **{**sync.overhead, **PICK},
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
        """The memory of the host that is read, and the versions of its rows."""
        return self._memory("shared")

    def _memory(self, name: str) -> tuple[str, str]:
        sync, stage = self.sync, self.stage
        fields: dict[str, Any] = {"persistent": True, "space": "host-shared"}
        return (
            self.builder.buffer(buffer_name(name, sync, stage), IN_MEMORY, sync.width, **fields),
            self.builder.buffer(buffer_name(f"{name}_versions", sync, stage), IN_MEMORY, 1, "int64", **fields),
        )

    def _age_of(self, delayed: bool) -> dict[str, int]:
        """Options of an op that uses cached rows. ``delayed``: those of an earlier epoch."""
        return {"interval": 0 if self.constant else self.interval, **({"delay": 1} if delayed else {})}

    @property
    def _row_bytes(self) -> int:
        return self.sync.width * self.builder.item_bytes

    def _act(
        self, sync: Sync, part: str, action: type[Action[Any]], reads: Sequence[str], writes: Sequence[str],
        work: Sequence[Work], **fields: Any,
    ) -> None:  # fmt: skip
        self.builder.compute(
            sync.templates, sync.op(self.stage, part), OpKind.SELECT, reads, writes, tuple(work), action,
            module=self.slot, **{**sync.overhead, **fields},
        )  # fmt: skip

    def _rows(self, primitive: str, rows: Size) -> Work:
        return self.builder.row_work(primitive, rows, self.sync.width)
