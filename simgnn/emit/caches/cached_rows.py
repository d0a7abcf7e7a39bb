"""The base of freshness policies that send only chosen rows, and the ops of their syncs over masters and mirrors.

Masters gather the parts that moved; vertices for which any part moved are scattered to mirrors. Source: CDFGNN (arXiv
2408.00232), algorithm 2."""

from abc import ABC
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.caches.cached_stage import CachedStage, add_state, emit_state_step
from simgnn.emit.caches.replica_cache import (
    REPLICA_ACTIONS,
    AddParts,
    Announce,
    EncodeChange,
    EncodeNews,
    EncodeSums,
    FindNews,
    FoldOwn,
    HandOn,
    Relay,
    ResetLeaving,
    ResetMasters,
    ResetMirrors,
    Settle,
    TakeSums,
)
from simgnn.emit.caches.row_cache import ROW_ACTIONS, ChoosesRows
from simgnn.emit.freshness import MovesRows
from simgnn.emit.sums.mirrors import MIRRORS, SHARED_MASTERS
from simgnn.emit.sync import ENCODED, Reference, Sync, training_part
from simgnn.errors import ConfigError
from simgnn.policy import Action, Codec
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.program import CopiesRoute, Publication
from simgnn.program.sizes import Column, Decision, Size


@dataclass(frozen=True)
class WithinHosts:
    """The stages of a sync inside hosts that first add up their replicas' partial sums (parts), if any (``inward``).

    One replica stands for its host (see :data:`simgnn.partition.local.vertex_cut.LEVELS`). Inward, it adds up the other
    replicas' parts as last sent; only this sum is tested and sent on. Outward, it passes on the bytes that the master
    published, so that all replicas decode the same.

    Buffers for the whole run: ``sent`` and ``kept`` of ``inward``, the other replicas' parts as last sent, on both
    ends; ``kept`` of ``outward``, the sums that they continue with. ``origin``: for each row of a rank, where its new
    value lies, see :class:`~simgnn.emit.caches.replica_cache.FindNews`."""

    inward: CachedStage | None
    outward: CachedStage

    def reset(self, renewed: str) -> None:
        """Zero the cached state of rows whose reference changed (``renewed``, see :class:`Sync`)."""
        out, others = self.outward, [self.outward.add_kept()]
        if self.inward is not None:
            others.append(self.inward.add_sent())
            out.reset("standing", ResetLeaving, renewed, [self.inward.add_kept()], self.inward.stage.arriving)
        out.reset("others", ResetMirrors, renewed, others, out.stage.arriving)

    def scatter(self, across: CachedStage, chosen: str, news: str, masters: str) -> None:
        """Send rows that arrived from ``across`` hosts, and ``news``, the sums of this rank's shared rows ``chosen``,
        to the other replicas on the host. ``masters``: the route that names all rows that have mirrors."""
        out, builder, rows = self.outward, self.outward.builder, self.outward.stage.source
        origin = builder.buffer(f"origin/{out.sync.point}", builder.buffers[rows].rows, 1, "int64")
        across.compute(
            "news", OpKind.SELECT, FindNews, [rows, chosen, across.name("mask_in")], [origin],
            (*_places(across.leaving), *_places(across.arriving)), masters=masters,
        )  # fmt: skip
        picked, mask = builder.buffer(out.name("chosen"), out.leaving, 1, "int64"), out.add_masks()
        out.compute("select", OpKind.SELECT, Relay, [origin], [mask, picked], _places(out.stage.leaving))
        coded = out.add_coded()
        out.compute(
            "encode", OpKind.ENCODE, HandOn, [picked, news, across.name("arrived")], [coded],
            (out.work("gather", out.leaving),), out.copies(out.leaving, 1),
        )  # fmt: skip
        out.exchange()
        out.land_moved()


def _places(rows: Size) -> tuple[Work, ...]:
    """Return the cost of looking up where rows lie."""
    return (Work("gather", {"rows": rows, "width": 1, "item_bytes": 8}),)


@dataclass(frozen=True)
class ReplicaSync:
    """Emits gather (absent where mirrors have no partial sums, here called parts), fold and scatter.

    Buffers for the whole run: ``sent`` of the gather, mirrors' parts as counted in the sums; ``own``, the masters'
    parts as counted; ``sums`` of all parts; ``published`` (only with a codec; without, it is ``sums``) and ``kept`` of
    the scatter, the sums that master and mirrors continue with. ``active``: the shared masters that are published in
    this epoch. Where hosts add up first, parts are those of hosts, and :class:`WithinHosts` comes before and after."""

    builder: ProgramBuilder
    sync: Sync
    codec: Codec
    policy: ChoosesRows

    def emit(self) -> None:
        builder, width, scatter = self.builder, self.sync.width, self._scatter
        rows = scatter.stage.target
        state = add_state(builder, self.policy)
        own = builder.buffer(self._name("own"), self._shared, width, persistent=True)
        sums = builder.buffer(self._name("sums"), self._shared, width, persistent=True)
        active = builder.buffer(self._name("active"), self._shared, 1, "bool")
        if self.sync.renewed is not None:
            self._reset(self.sync.renewed, own, sums)
        if self._within is not None and self._within.inward is not None:
            self._within.inward.emit()
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
        """Zero the cached state of rows whose reference changed, so that every part that is not zero is sent again."""
        scatter, mirrors = self._scatter, [self._scatter.add_kept()]
        if self._gather is not None:
            mirrors.append(self._gather.add_sent())
        masters = [own, sums, *self._published()]
        scatter.reset("masters", ResetMasters, renewed, masters, self._shared, **self._masters)
        scatter.reset("mirrors", ResetMirrors, renewed, mirrors, scatter.stage.arriving, **self._masters)
        if self._within is not None:
            self._within.reset(renewed)

    def _published(self) -> list[str]:
        """Add the buffer of published sums and return its name; without a codec none, as ``sums`` are published."""
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
        builder, scatter, kept, published = self.builder, self._scatter, self._scatter.add_kept(), self._published()
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
        """Options with names of the decisions to record. Adds a :class:`Publication` if mirrors have parts."""
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
            made = Publication(gathered, self._awake.name, published, tally, copies, SHARED_MASTERS.name, tuple(routes))
            if made not in self.builder.publications:  # a codec with several forms emits the sync once for each
                self.builder.publications.append(made)
        return {"decision": self._awake.name, "tally": tally, **self._masters}

    def _stages(self, role: Literal["publish", "fold"]) -> list[CachedStage]:
        stages = [stage for stage in self.sync.stages if stage.role == role]
        return [CachedStage(self.builder, self.sync, stage, self.codec, self.policy) for stage in stages]

    @cached_property
    def _gather(self) -> CachedStage | None:
        folds = self._stages("fold")
        return folds[-1] if folds else None

    @cached_property
    def _scatter(self) -> CachedStage:
        return self._stages("publish")[0]

    @cached_property
    def _within(self) -> WithinHosts | None:
        folds, publishes = self._stages("fold"), self._stages("publish")
        return WithinHosts(folds[0] if folds else None, publishes[1]) if len(publishes) > 1 else None

    @cached_property
    def _awake(self) -> Decision:
        return Decision(self._scatter.decision("active"), self._shared)

    @property
    def _masters(self) -> dict[str, str]:
        """Options of ops on all masters that have mirrors, where the stage's route names only some of them."""
        masters = self._scatter.stage.masters
        return {} if masters is None else {"masters": masters}

    @property
    def _shared(self) -> Column:
        shared = self._scatter.stage.distinct
        if not isinstance(shared, Column) or shared.name not in self.builder.columns:
            raise ConfigError(
                "freshness.kind: the partition statistics do not count the masters that have mirrors, whose sums a "
                f"cache keeps; expected the table '{SHARED_MASTERS.name}': make the file anew with simgnn partition "
                "--stats"
            )
        return shared

    def _name(self, what: str) -> str:
        return "/".join(word for word in (what, self.sync.point, self.sync.form if what in ENCODED else "") if word)


class CachedRows(ChoosesRows, MovesRows, ABC):
    """The base of policies that choose the rows that travel (:meth:`ChoosesRows.moved`); caches supply all others.

    Between owners and copies, both ends keep the rows as last sent. Over masters and mirrors, sums are kept, to which
    changes of parts are added. Evaluations are exact."""

    sends_differences: ClassVar[bool] = True
    hands_on: ClassVar[bool] = True
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (*ROW_ACTIONS, *REPLICA_ACTIONS)

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        training = training_part(builder, sync)
        if training.stages[-1].in_place:  # sums are completed over masters and mirrors
            ReplicaSync(builder, training, codec, self).emit()
            return
        for stage in training.stages:
            CachedStage(builder, training, stage, codec, self).emit()

    def settle(self, builder: ProgramBuilder, templates: tuple[str, ...], reference: Reference) -> str | None:
        """Keep a layer's reference for the run, since parts of several epochs add up only relative to one reference.
        The current one replaces it where the two are too far apart. Returns the buffer that marks these rows."""
        layer, rows, width = reference.layer, reference.rows, reference.width
        shift = builder.buffer(f"shift/{layer}", rows, width, persistent=True)
        renewed = builder.buffer(f"renewed/{layer}", rows, 1, "bool")
        work = builder.row_work("elementwise", rows, width, passes=4)
        builder.compute(
            templates, f"forward/{layer}/maximum/settle", OpKind.SELECT, [reference.buffer, shift],
            [reference.buffer, shift, renewed], (work,), Settle, layer=layer, phase="forward", module=self.slot,
            category="comm_overhead",
        )  # fmt: skip
        return renewed

    def emit_epoch_end(self, builder: ProgramBuilder, templates: tuple[str, ...]) -> None:
        emit_state_step(builder, self, templates)
