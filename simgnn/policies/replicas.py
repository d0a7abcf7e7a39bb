"""Syncs over masters and mirrors with caches: parts that moved are gathered, vertices that any part woke are scattered.

Source: CDFGNN, algorithm 2, as in specs/cdfgnn.md, section 5.2.
"""

from dataclasses import dataclass
from functools import cached_property

from simgnn.errors import ConfigError
from simgnn.policies.cached import THRESHOLD, CachedStage
from simgnn.policies.codec.base import Codec
from simgnn.policies.sync import Sync
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import OpKind
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
    """

    builder: ProgramBuilder
    sync: Sync
    codec: Codec

    def emit(self) -> None:
        """All ops, in the sync's templates."""
        builder, width, scatter = self.builder, self.sync.width, self._scatter
        rows = scatter.stage.target
        builder.buffer(THRESHOLD, 1, 3, "float64", persistent=True)
        own = builder.buffer(self._name("own"), self._shared, width, persistent=True)
        sums = builder.buffer(self._name("sums"), self._shared, width, persistent=True)
        active = builder.buffer(self._name("active"), self._shared, 1, "bool")
        woken = []
        if len(self.sync.stages) > 1:
            woken = [active]
            self._gather(sums, active)
        fold = (
            scatter.work("gather", self._shared), scatter.work("select", self._shared),
            scatter.work("elementwise", self._shared, passes=3),
        )  # fmt: skip
        scatter.compute("fold", OpKind.SELECT, [rows, own, sums, THRESHOLD, *woken], [own, sums, active], fold, "fold")
        self._publish(rows, sums, active)

    def _gather(self, sums: str, active: str) -> None:
        gather = CachedStage(self.builder, self.sync, self.sync.stages[0], self.codec)
        gather.send_moved("encode_change")
        work = list(gather.landing_work())
        work[-1] = gather.work("scatter_add", gather.arriving)
        reads = [gather.name("arrived"), gather.name("mask_in"), sums]
        gather.compute("decode", OpKind.DECODE, reads, [sums, active], tuple(work), "add_parts")

    def _publish(self, rows: str, sums: str, active: str) -> None:
        builder, scatter, width = self.builder, self._scatter, self.sync.width
        kept = builder.buffer(scatter.name("kept"), scatter.stage.arriving, width, persistent=True)
        published = []
        if self.codec.encodes:
            published = [builder.buffer(self._name("published"), self._shared, width, persistent=True)]
        mask, coded = scatter.add_masks(), scatter.add_coded()
        awake = Decision(scatter.decision("active"), self._shared)
        chosen = builder.buffer(scatter.name("chosen"), awake, 1, "int64")
        scatter.compute("select", OpKind.SELECT, [active], [mask, chosen], (), "announce", decision=awake.name)
        work = (*scatter.coding_work(awake), scatter.work("gather", scatter.leaving))
        scatter.compute(
            "encode", OpKind.ENCODE, [chosen, mask, sums, *published], [coded, *published], work, "encode_sums"
        )
        scatter.exchange()
        put = (scatter.work("gather", scatter.stage.arriving), scatter.work("gather", self._shared))
        reads = [scatter.name("arrived"), scatter.name("mask_in"), kept, rows, *(published or [sums])]
        scatter.compute("decode", OpKind.DECODE, reads, [kept, rows], (*scatter.landing_work(), *put), "take_sums")

    @cached_property
    def _scatter(self) -> CachedStage:
        return CachedStage(self.builder, self.sync, self.sync.stages[-1], self.codec)

    @property
    def _shared(self) -> Column:
        shared = self.sync.stages[-1].distinct
        if not isinstance(shared, Column) or shared.name not in self.builder.columns:
            raise ConfigError(
                "freshness.kind: the adaptive cache keeps the sum of every master that has mirrors, and the partition "
                "statistics do not tell how many there are; expected the table 'shared_masters': make the file anew "
                "with simgnn partition --stats"
            )
        return shared

    def _name(self, what: str) -> str:
        return f"{what}/{self.sync.point}"
