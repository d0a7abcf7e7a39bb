"""Syncs over masters and mirrors with caches: parts that moved are gathered, vertices that any part woke are scattered.

Source: CDFGNN (arXiv 2408.00232), algorithm 2.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from simgnn.emit.caches.cached_stage import CachedStage, add_state
from simgnn.emit.caches.replica_cache import (
    AddParts,
    Announce,
    EncodeChange,
    EncodeNews,
    EncodeSums,
    FoldOwn,
    ResetMasters,
    ResetMirrors,
    Settle,
    TakeSums,
)
from simgnn.emit.caches.row_cache import ChoosesRows
from simgnn.emit.caches.within_hosts import WithinHosts
from simgnn.emit.sums.mirrors import MIRRORS, SHARED_MASTERS
from simgnn.emit.sync import Reference, Stage, Sync
from simgnn.errors import ConfigError
from simgnn.policy import Codec
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.publications import CopiesRoute, Publication
from simgnn.program.sizes import Column, Decision


def is_replica_sync(sync: Sync) -> bool:
    """Whether a sync completes sums in place: its last stage publishes to rows of the buffer that it reads."""
    return sync.stages[-1].in_place


@dataclass(frozen=True)
class ReplicaSync:
    """Gather (absent where mirrors have nothing to give), fold, scatter; see :class:`AdaptiveVertex`.

    Buffers for the whole run: ``sent`` of the gather, mirrors' parts as counted in the sums; ``own``, the masters'
    parts likewise; ``sums`` of all parts; ``published`` (with a codec; else it is ``sums``) and ``kept`` of the
    scatter, what master and mirrors go on with. ``active``: the shared masters that are published in this turn.
    Where hosts add up first, these are parts of hosts, and :class:`WithinHosts` comes before and after.
    """

    builder: ProgramBuilder
    sync: Sync
    codec: Codec
    policy: ChoosesRows

    def emit(self) -> None:
        """All ops, in the sync's templates."""
        builder, width, scatter = self.builder, self.sync.width, self._scatter
        rows = scatter.stage.target
        state = add_state(builder, self.policy)
        own = builder.buffer(self._name("own"), self._shared, width, persistent=True)
        sums = builder.buffer(self._name("sums"), self._shared, width, persistent=True)
        active = builder.buffer(self._name("active"), self._shared, 1, "bool")
        if self.sync.renewed is not None:
            self._reset(self.sync.renewed, own, sums)
        if self._within is not None:
            self._within.gather()
        woken = []
        if self._gather is not None:
            woken = [active]
            self._add_parts(self._gather, sums, active)
        fold = (
            scatter.work("gather", self._shared), scatter.work("select", self._shared),
            scatter.work("elementwise", self._shared, passes=3),
        )  # fmt: skip
        reads = [rows, own, sums, *state, *woken]
        scatter.compute(
            "fold", OpKind.SELECT, FoldOwn, reads, [own, sums, active], fold, scatter.copies(self._shared, 2),
            **self.sync.test, **self._masters,
        )  # fmt: skip
        self._publish(rows, sums, active)
        if self._within is not None:
            self._within.scatter(scatter, scatter.name("chosen"), self._name("news"), self._masters["masters"])

    def _reset(self, renewed: str, own: str, sums: str) -> None:
        """Rows relative to something new: nothing was sent of them, so every part that is not zero will be."""
        scatter, mirrors = self._scatter, [self._kept()]
        if self._gather is not None:
            mirrors.append(self._gather.add_sent())
        for who, action, states, rows in (
            ("masters", ResetMasters, [own, sums, *self._published()], self._shared),
            ("mirrors", ResetMirrors, mirrors, scatter.stage.arriving),
        ):
            work = tuple(scatter.work("elementwise", rows, passes=1) for _ in states)
            scatter.compute(
                f"reset/{who}", OpKind.SELECT, action, [renewed, *states], states, work, (), **self._masters
            )
        if self._within is not None:
            self._within.reset(renewed)

    def _kept(self) -> str:
        stage = self._scatter.stage
        return self.builder.buffer(self._scatter.name("kept"), stage.arriving, self.sync.width, persistent=True)

    def _published(self) -> list[str]:
        """The buffer of what copies go on with where that is not the sums themselves."""
        if not self.codec.encodes:
            return []
        return [self.builder.buffer(self._name("published"), self._shared, self.sync.width, persistent=True)]

    def _add_parts(self, gather: CachedStage, sums: str, active: str) -> None:
        gather.send_moved(EncodeChange, 1)
        work = list(gather.landing_work())
        work[-1] = gather.work("scatter_add", gather.arriving)
        reads = [gather.name("arrived"), gather.name("mask_in"), sums]
        gather.compute(
            "decode", OpKind.DECODE, AddParts, reads, [sums, active], tuple(work), gather.landing_copies(),
            **self._masters,
        )  # fmt: skip

    def _publish(self, rows: str, sums: str, active: str) -> None:
        builder, scatter, kept, published = self.builder, self._scatter, self._kept(), self._published()
        mask, coded = scatter.add_masks(), scatter.add_coded()
        chosen = builder.buffer(scatter.name("chosen"), self._awake, 1, "int64")
        scatter.compute("select", OpKind.SELECT, Announce, [active], [mask, chosen], (), (), **self._recorded())
        work = (*scatter.coding_work(self._awake), scatter.work("gather", scatter.leaving))
        news, action = list[str](), EncodeSums
        if self._within is not None:
            columns, dtype = (scatter.row_bytes, "uint8") if self.codec.encodes else (self.sync.width, builder.dtype)
            news, action = [builder.buffer(self._name("news"), self._awake, columns, dtype)], EncodeNews
        scatter.compute(
            "encode", OpKind.ENCODE, action, [chosen, mask, sums, *published], [coded, *news, *published], work,
            scatter.coding_copies(self._awake, 1), **self._masters,
        )  # fmt: skip
        scatter.exchange()
        put = (scatter.work("gather", scatter.stage.arriving), scatter.work("gather", self._shared))
        reads = [scatter.name("arrived"), scatter.name("mask_in"), kept, rows, *(published or [sums])]
        scatter.compute(
            "decode", OpKind.DECODE, TakeSums, reads, [kept, rows], (*scatter.landing_work(), *put),
            scatter.landing_copies(2), **self._masters,
        )  # fmt: skip

    def _recorded(self) -> dict[str, str]:
        """The decisions that publishing records; declared in the program where what mirrors send wakes masters."""
        # of a host-aggregated exchange a row stands for a host, and woken masters are counted by hosts
        copies: Literal["replicas", "hosts"] = "replicas" if self._within is None else "hosts"
        tally = self._scatter.decision(copies)
        if self._gather is not None:
            routes = []
            for number, rows in self._scatter.stage.by_replicas.items():
                routes.append(CopiesRoute(number, f"{MIRRORS}/{copies}-{number}"))
                if routes[-1].route not in self.builder.routes:
                    self.builder.route(routes[-1].route, rows)
            gathered, published = self._gather.leaving.name, self._scatter.leaving.name
            self.builder.publications.append(
                Publication(gathered, self._awake.name, published, tally, copies, SHARED_MASTERS.name, tuple(routes))
            )
        return {"decision": self._awake.name, "tally": tally, **self._masters}

    @cached_property
    def _folds(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.sync.stages if stage.role == "fold")

    @cached_property
    def _publishes(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.sync.stages if stage.role == "publish")

    @cached_property
    def _gather(self) -> CachedStage | None:
        if not self._folds:
            return None
        return CachedStage(self.builder, self.sync, self._folds[-1], self.codec, self.policy)

    @cached_property
    def _scatter(self) -> CachedStage:
        return CachedStage(self.builder, self.sync, self._publishes[0], self.codec, self.policy)

    @cached_property
    def _within(self) -> WithinHosts | None:
        if len(self._publishes) == 1:
            return None
        inward = self._folds[0] if self._folds else None
        return WithinHosts(self.builder, self.sync, self.codec, self.policy, inward, self._publishes[1])

    @cached_property
    def _awake(self) -> Decision:
        return Decision(self._scatter.decision("active"), self._shared)

    @property
    def _masters(self) -> dict[str, str]:
        """Options of ops on masters that have mirrors, where the route of their stage names only a part of them."""
        masters = self._publishes[0].masters
        return {} if masters is None else {"masters": masters}

    @property
    def _shared(self) -> Column:
        shared = self._publishes[0].distinct
        if not isinstance(shared, Column) or shared.name not in self.builder.columns:
            raise ConfigError(
                "freshness.kind: the adaptive cache keeps the sum of every master that has mirrors, and the partition "
                f"statistics do not tell how many there are; expected the table '{SHARED_MASTERS.name}': make the file "
                "anew with simgnn partition --stats"
            )
        return shared

    def _name(self, what: str) -> str:
        return f"{what}/{self.sync.point}"


def emit_settling(builder: ProgramBuilder, templates: tuple[str, ...], reference: Reference) -> str:
    """The reference of a layer's sums becomes an earlier one, kept for the run, unless it is too far from that; returns
    the buffer of the rows that were renewed."""
    layer, rows, width = reference.layer, reference.rows, reference.width
    shift = builder.buffer(f"shift/{layer}", rows, width, persistent=True)
    renewed = builder.buffer(f"renewed/{layer}", rows, 1, "bool")
    work = Work("elementwise", {"rows": rows, "width": width, "passes": 4, "item_bytes": builder.item_bytes})
    builder.compute(
        templates, f"forward/{layer}/maximum/settle", OpKind.SELECT, [reference.buffer, shift],
        [reference.buffer, shift, renewed], (work,), Settle, layer=layer, phase="forward", module="freshness",
        category="comm_overhead",
    )  # fmt: skip
    return renewed
