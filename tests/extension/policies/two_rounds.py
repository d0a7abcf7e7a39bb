"""A communication: a halo exchange in two rounds, first towards ranks of higher number, then towards lower ones."""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from simgnn.emit import Communication, HaloSizes, HaloSums, LayerSpec, PartitionStats, Segments, Stage, Sync, Transfers
from simgnn.policy import Action, Array, Choices, Cut, PolicyContext, Refusal
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Column

UP, DOWN = "up", "down"


class JoinRounds(Action["TwoRounds"]):
    """The halo, by the rank of its owners, from the rows of both rounds."""

    def run(self, context: PolicyContext, up: Array, down: Array) -> tuple[Array, ...]:
        return (array_namespace(up).concat((up, down)),)


class PartRounds(Action["TwoRounds"]):
    """What both rounds carry back, from the gradients of the halo."""

    def run(self, context: PolicyContext, halo: Array) -> tuple[Array, ...]:
        first = sum(context.receive[: context.rank])
        return halo[:first, :], halo[first:, :]


class TwoRounds(Communication):
    """Rows travel in every epoch, those of layer 1 once they are transformed."""

    cut: ClassVar[Cut] = "edge-cut"
    dense_inputs: ClassVar[bool] = True
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (JoinRounds, PartRounds)

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if choices.model.aggregates_first:
            yield Refusal(
                "model",
                "kind",
                f"got {choices.model.aggregates_first}, expected a model that transforms its rows first",
            )

    def input_rows(self) -> str:
        return "transformed"

    def sizes(self, stats: PartitionStats, item_bytes: int) -> "RoundSizes":
        return RoundSizes(stats, item_bytes)


class RoundSizes(HaloSizes):
    """The numbers of a halo, and a route of its own for each round."""

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        fields = super().add_to(builder, aggregated)
        rank = np.arange(self.stats.ranks)
        builder.part(UP, "halo", rank[:, None] < rank)
        builder.part(DOWN, "halo", rank[:, None] > rank)
        return fields

    def sums(self, segments: Segments, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]) -> HaloSums:
        return RoundSums(segments, self.names, transfers.rows(), self.fetches_inputs, rows, fetched_in)


class RoundSums(HaloSums):
    """The sums of a halo, whose rows arrive and whose gradients return in two rounds."""

    def arrive(self, layer: LayerSpec, source: str, halo: str, width: int) -> None:
        rounds = [self._buffer(halo, name, Column(f"{name}/arriving"), width) for name in (UP, DOWN)]
        stages = [
            Stage(
                "publish", name, source, target, Column(f"{name}/leaving"), Column(f"{name}/arriving"),
                f"send/{layer.index}/{name}", "store", picked=name, name=name,
            )
            for name, target in zip((UP, DOWN), rounds, strict=True)
        ]  # fmt: skip
        self.expand(Sync(self.names.forward, layer.index, "forward", width, tuple(stages)))
        self.segments.builder.buffer(halo, self.halo.halo_rows, width)
        self._copy(self.names.forward, layer, "forward", JoinRounds, rounds, [halo], width)

    def give_back(self, layer: LayerSpec, gradient: str, target: str, width: int) -> None:
        rounds = [self._buffer(gradient, name, Column(f"{name}/arriving"), width) for name in (UP, DOWN)]
        self._copy(self.names.train, layer, "backward", PartRounds, [gradient], rounds, width)
        # of lower ranks first, so that gradients are added in the order of a halo's
        stages = [
            Stage(
                "fold", f"{name}/reverse", source, target, Column(f"{name}/arriving"), Column(f"{name}/leaving"),
                source, "add", arrived=f"receive/{layer.index}/{name}", landed=name, name=name,
            )
            for name, source in reversed(list(zip((UP, DOWN), rounds, strict=True)))
        ]  # fmt: skip
        self.expand(Sync(self.names.train, layer.index, "backward", width, tuple(stages)))

    def _buffer(self, of: str, name: str, rows: Column, width: int) -> str:
        return self.segments.builder.buffer(f"{of}/{name}", rows, width)

    def _copy(
        self, templates: tuple[str, ...], layer: LayerSpec, phase: str, action: type[Action[Any]], reads: list[str],
        writes: list[str], width: int,
    ) -> None:  # fmt: skip
        item = self.segments.builder.item_bytes
        work = (Work("gather", {"rows": self.halo.halo_rows, "width": width, "item_bytes": item}),)
        self.segments.builder.compute(
            templates, f"{phase}/{layer.index}/rounds", OpKind.COPY, reads, writes, work, action, layer=layer.index,
            phase=phase, route="halo", module="communication", category="comm_overhead",
        )  # fmt: skip
