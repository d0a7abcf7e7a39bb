"""Caches where hosts add up their mirrors first: what travels between the replicas of a vertex on one host.

One replica stands for its host (see :data:`simgnn.partition.local.vertex_cut.LEVELS`). Inward, the others' parts that
moved come to it, and with them as last sent it has the host's part, which alone is tested and sent on. Outward, it
hands on what the master published, the same bytes, so that all replicas decode the same.
"""

from dataclasses import dataclass
from functools import cached_property

from simgnn.emit.caches.cached_stage import CachedStage
from simgnn.emit.caches.replica_cache import FindNews, HandOn, Relay, ResetLeaving, ResetMirrors
from simgnn.emit.caches.row_cache import ChoosesRows, DecodeMoved
from simgnn.emit.sync import Stage, Sync, land, receiving_buffer
from simgnn.policy import Codec
from simgnn.program.builder import Labelled, ProgramBuilder
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Size


@dataclass(frozen=True)
class WithinHosts:
    """The stages of a sync inside hosts; ``inward`` None: only masters have something to give.

    Buffers for the whole run: ``sent`` and ``kept`` of ``inward``, others' parts as last sent, on both ends; ``kept``
    of ``outward``, what they go on with. ``origin``: for each row of a rank where its news lies, see
    :class:`~simgnn.emit.caches.replica_cache.FindNews`.
    """

    builder: ProgramBuilder
    sync: Sync
    codec: Codec
    policy: ChoosesRows
    inward: Stage | None
    outward: Stage

    def gather(self) -> None:
        """Add the other replicas' parts to the one that stands for the host."""
        if self.inward is not None:
            self._stage(self.inward).emit()

    def reset(self, renewed: str) -> None:
        """Nothing was sent of rows that were renewed, see :class:`Sync`."""
        out = self._out
        others = [self._kept(out)]
        if self.inward is not None:
            gather = self._stage(self.inward)
            others.append(gather.add_sent())
            self._clear(out, "standing", renewed, [self._kept(gather)], self.inward.arriving, ResetLeaving)
        self._clear(out, "others", renewed, others, self.outward.arriving, ResetMirrors)

    def scatter(self, across: CachedStage, chosen: str, news: str, masters: str) -> None:
        """Hand on what arrived ``across`` hosts, and what this rank's own masters publish: ``news``, of the shared rows
        ``chosen``. ``masters``: the route that names all rows that have mirrors."""
        builder, out, rows = self.builder, self._out, self.outward.source
        origin = builder.buffer(f"origin/{self.sync.point}", builder.buffers[rows].rows, 1, "int64")
        across.compute(
            "news", OpKind.SELECT, FindNews, [rows, chosen, across.name("mask_in")], [origin],
            (*_places(across.leaving), *_places(across.arriving)), masters=masters,
        )  # fmt: skip
        picked, mask = builder.buffer(out.name("chosen"), out.leaving, 1, "int64"), out.add_masks()
        out.compute("select", OpKind.SELECT, Relay, [origin], [mask, picked], _places(self.outward.leaving))
        coded = out.add_coded()
        out.compute(
            "encode", OpKind.ENCODE, HandOn, [picked, news, across.name("arrived")], [coded],
            (out.work("gather", out.leaving),), out.copies(out.leaving, 1),
        )  # fmt: skip
        out.exchange()
        receive, kept = receiving_buffer(builder, self.sync, self.outward), self._kept(out)
        out.compute(
            "decode", OpKind.DECODE, DecodeMoved, [out.name("arrived"), out.name("mask_in"), kept], [receive, kept],
            (*out.landing_work(), out.work("copy", self.outward.arriving)), out.landing_copies(),
        )  # fmt: skip
        land(builder, self.sync, self.outward)

    def _clear(self, out: CachedStage, who: str, renewed: str, states: list[str], rows: Size, action: Labelled) -> None:
        work = tuple(out.work("elementwise", rows, passes=1) for _ in states)
        out.compute(f"reset/{who}", OpKind.SELECT, action, [renewed, *states], states, work)

    def _kept(self, stage: CachedStage) -> str:
        return self.builder.buffer(stage.name("kept"), stage.stage.arriving, self.sync.width, persistent=True)

    @cached_property
    def _out(self) -> CachedStage:
        return self._stage(self.outward)

    def _stage(self, stage: Stage) -> CachedStage:
        return CachedStage(self.builder, self.sync, stage, self.codec, self.policy)


def _places(rows: Size) -> tuple[Work, ...]:
    """Looking up where rows lie."""
    return (Work("gather", {"rows": rows, "width": 1, "item_bytes": 8}),)
