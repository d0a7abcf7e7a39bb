"""Syncs over masters and mirrors with caches: parts that moved are gathered, vertices that any part woke are scattered.

Source: CDFGNN, algorithm 2, as in specs/cdfgnn.md, section 5.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simgnn.errors import ConfigError
from simgnn.policies.cached import THRESHOLD, CachedStage
from simgnn.policies.chosen_rows import IndexForm
from simgnn.policies.communication.mirror_sums import SHARED_MASTERS
from simgnn.policies.sync import Reference, Stage, Sync
from simgnn.policies.within_hosts import WithinHosts
from simgnn.policy import Codec
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray, Route

BY_REPLICAS = "mirrors/replicas-"
"""Routes that tell, followed by a number r, how many rows travel between each pair of vertices with r replicas, if all
are published."""
BY_HOSTS = "mirrors/hosts-"
"""The same of an exchange in which hosts add up first, followed by the number of hosts that a vertex lies on."""


def is_replica_sync(sync: Sync) -> bool:
    """Whether a sync completes sums in place: its last stage publishes to rows of the buffer that it reads."""
    return sync.stages[-1].in_place


@dataclass(frozen=True)
class Publication:
    """Decisions of one sync: rows that mirrors sent, masters that were woken, and rows of theirs that were sent; the
    woken masters by their number of replicas (or hosts) r are recorded as ``tally``-r."""

    gathered: str
    active: str
    published: str
    tally: str


def awakenings(program: Program) -> tuple[Publication, ...]:
    """The syncs of a program in which masters are woken and published; ``gathered`` is empty where mirrors have nothing
    to give."""
    found: dict[Publication, None] = {}
    for _, op in program.ops:
        if "tally" in op.options:
            active = str(op.options["decision"])
            rows = f"{active.rpartition('/')[0]}/rows"
            told = {"gathered": "", "published": rows, **op.options}
            found[Publication(str(told["gathered"]), active, str(told["published"]), str(told["tally"]))] = None
    return tuple(found)


def publications(program: Program) -> tuple[Publication, ...]:
    """The syncs of a program in which what mirrors send wakes masters."""
    return tuple(one for one in awakenings(program) if one.gathered)


def rows_by_replicas(program: Program) -> Mapping[int, Route]:
    """Rows of each pair that are published if all masters are woken, by the number of replicas of their vertex (where
    hosts add up first: of hosts that it lies on). Empty: the statistics did not tell."""
    found = {name.removeprefix(BY_REPLICAS).removeprefix(BY_HOSTS): one for name, one in program.sizes.routes.items()}
    return {int(number): route for number, route in found.items() if number.isdecimal()}


def masters_by_replicas(program: Program) -> dict[int, IntArray]:
    """Shared masters of each rank, int64 [P], by their number r of replicas or hosts: each publishes r - 1 rows. Those
    of one host alone publish none to others. Empty: the statistics did not tell."""
    routes = rows_by_replicas(program)
    if not routes:
        return {}
    found: dict[int, IntArray] = {
        r: np.bincount(route.source, route.rows, minlength=program.ranks).astype(np.int64) // (r - 1)
        for r, route in routes.items()
    }
    alone = np.maximum(0, program.sizes.columns[SHARED_MASTERS.name] - np.sum(list(found.values()), axis=0))
    return {1: alone, **found} if alone.any() else found


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
    index: IndexForm = "bitmap"

    def emit(self) -> None:
        """All ops, in the sync's templates."""
        builder, width, scatter = self.builder, self.sync.width, self._scatter
        rows = scatter.stage.target
        builder.buffer(THRESHOLD, 1, 3, "float64", persistent=True)
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
        reads = [rows, own, sums, THRESHOLD, *woken]
        scatter.compute(
            "fold", OpKind.SELECT, reads, [own, sums, active], fold, "fold", **self.sync.test, **self._masters
        )
        self._publish(rows, sums, active)
        if self._within is not None:
            self._within.scatter(scatter, scatter.name("chosen"), self._name("news"), self._masters["masters"])

    def _reset(self, renewed: str, own: str, sums: str) -> None:
        """Rows relative to something new: nothing was sent of them, so every part that is not zero will be."""
        scatter, mirrors = self._scatter, [self._kept()]
        if self._gather is not None:
            mirrors.append(self._gather.add_sent())
        for who, states, rows in (
            ("masters", [own, sums, *self._published()], self._shared), ("mirrors", mirrors, scatter.stage.arriving),
        ):  # fmt: skip
            work = tuple(scatter.work("elementwise", rows, passes=1) for _ in states)
            face = f"reset_{who}"
            scatter.compute(f"reset/{who}", OpKind.SELECT, [renewed, *states], states, work, face, **self._masters)
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
        gather.send_moved("encode_change")
        work = list(gather.landing_work())
        work[-1] = gather.work("scatter_add", gather.arriving)
        reads = [gather.name("arrived"), gather.name("mask_in"), sums]
        gather.compute("decode", OpKind.DECODE, reads, [sums, active], tuple(work), "add_parts", **self._masters)

    def _publish(self, rows: str, sums: str, active: str) -> None:
        builder, scatter, kept, published = self.builder, self._scatter, self._kept(), self._published()
        mask, coded = scatter.add_masks(), scatter.add_coded()
        chosen = builder.buffer(scatter.name("chosen"), self._awake, 1, "int64")
        scatter.compute("select", OpKind.SELECT, [active], [mask, chosen], (), "announce", **self._told())
        work = (*scatter.coding_work(self._awake), scatter.work("gather", scatter.leaving))
        news, face = list[str](), "encode_sums"
        if self._within is not None:
            columns, dtype = (scatter.row_bytes, "uint8") if self.codec.encodes else (self.sync.width, builder.dtype)
            news, face = [builder.buffer(self._name("news"), self._awake, columns, dtype)], "encode_news"
        scatter.compute(
            "encode", OpKind.ENCODE, [chosen, mask, sums, *published], [coded, *news, *published], work, face,
            **self._masters,
        )  # fmt: skip
        scatter.exchange()
        put = (scatter.work("gather", scatter.stage.arriving), scatter.work("gather", self._shared))
        reads = [scatter.name("arrived"), scatter.name("mask_in"), kept, rows, *(published or [sums])]
        scatter.compute(
            "decode", OpKind.DECODE, reads, [kept, rows], (*scatter.landing_work(), *put), "take_sums", **self._masters
        )

    def _told(self) -> dict[str, str]:
        """What the program says of its decisions, so that a record of them can be carried over: ``publications``."""
        # of a host-aggregated exchange a row stands for a host, and woken masters are counted by hosts
        tally, routes = ("replicas", BY_REPLICAS) if self._within is None else ("hosts", BY_HOSTS)
        told = {"decision": self._awake.name, "tally": self._scatter.decision(tally), **self._masters}
        if self._gather is None:
            return told
        for replicas, rows in self._scatter.stage.by_replicas.items():
            if f"{routes}{replicas}" not in self.builder.routes:
                self.builder.route(f"{routes}{replicas}", rows)
        return {**told, "gathered": self._gather.leaving.name, "published": self._scatter.leaving.name}

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
        return CachedStage(self.builder, self.sync, self._folds[-1], self.codec, self.index)

    @cached_property
    def _scatter(self) -> CachedStage:
        return CachedStage(self.builder, self.sync, self._publishes[0], self.codec, self.index)

    @cached_property
    def _within(self) -> WithinHosts | None:
        if len(self._publishes) == 1:
            return None
        inward = self._folds[0] if self._folds else None
        return WithinHosts(self.builder, self.sync, self.codec, self.index, inward, self._publishes[1])

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
        [reference.buffer, shift, renewed], (work,), layer=layer, phase="forward", module="freshness",
        category="comm_overhead", options={"face": "settle"},
    )  # fmt: skip
    return renewed
