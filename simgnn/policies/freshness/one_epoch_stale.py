"""One epoch stale: layers use the remote rows and gradients that were sent in the epoch before."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from array_api_compat import array_namespace
from pydantic import Field

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.freshness import MovesRows
from simgnn.emit.sync import Stage, Sync, buffer_name, carry, land, training_part
from simgnn.errors import BackendError
from simgnn.policy import Action, Array, Choices, Codec, CommunicationTraits, Idle, PolicyContext, Refusal, chosen
from simgnn.program.calendar import FIRST, epoch_names
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Scratch, rows_of


class UseNow(Action["OneEpochStale"]):
    """Use the rows that arrived in this epoch, and keep them for the next one too."""

    def run(self, context: PolicyContext, late: Array, version: Array, used: Array) -> tuple[Array, ...]:
        """Return ``used`` with the values of ``late``, both [n, F]."""
        _check_age(context, version, 0, False)
        used[...] = late
        return (used,)


class UseLate(Action["OneEpochStale"]):
    """Use the rows that arrived in the epoch before, which the rows of this epoch will replace."""

    def run(self, context: PolicyContext, late: Array, version: Array, used: Array) -> tuple[Array, ...]:
        """Return ``late`` itself, not a copy: rows that arrive next lie in memory of their own. Before any were sent,
        return ``used``, zeros as well, so that the first epoch takes as much memory as later ones."""
        _check_age(context, version, 1, self.owner.cold_start == "zeros")
        return (late if context.epoch else used,)


class Smooth(Action["OneEpochStale"]):
    """Mix the rows that arrived with those in use, of which each is such a mixture of all earlier epochs."""

    def run(self, context: PolicyContext, late: Array, used: Array) -> tuple[Array, ...]:
        """Return gamma times ``used`` plus 1 - gamma times ``late``, in the memory of ``late``."""
        gamma = self.owner.gamma
        late *= 1 - gamma
        late += gamma * used
        return (late,)


def _check_age(context: PolicyContext, version: Array, age: int, zeros: bool) -> None:
    """Raise :class:`BackendError` unless rows in use are of ``age`` epochs before. ``version`` int64 [1, 1]: one more
    than the epoch in which they were sent, 0 if none were, which is right before the first epoch of ``zeros``."""
    found = int(array_namespace(version).reshape(version, (-1,))[0])
    if found != context.epoch - age + 1 or not (found or zeros):
        came = f"are of epoch {found}" if found else "were never sent"
        raise BackendError(
            f"remote rows in use in epoch {context.epoch + 1} (layer {context.layer}, {context.phase}) {came}; "
            f"expected those of epoch {context.epoch + 1 - age}: this is a fault of simgnn, not of the experiment"
        )


class OneEpochStale(MovesRows):
    """Hidden rows and their gradients are used one epoch after they were sent, so that their transfer may take until
    then. Input rows, evaluations and the sums of weight gradients are exact.

    A row is what its layer sums: hidden values, or with ``model.order = "transform-first"`` and attention what the
    weights made of them. It has the dropout mask of its own epoch. ``cold_start``: the first epoch waits for its own
    rows (``sync``), or uses zeros. ``smooth_rows``, ``smooth_gradients``: what is used is gamma times what was used
    before plus 1 - gamma times what arrived; the first values to arrive are used as they are.

    Source: PipeGCN (Wan et al., ICLR 2022). Deviations: the authors' program starts with zeros, and smooths from zeros
    (docs/systems/pipegcn.md)."""

    late: ClassVar[bool] = True
    actions: ClassVar[tuple[type[Action[Any]], ...]] = (UseNow, UseLate, Smooth)

    kind: Literal["one-epoch-stale"] = "one-epoch-stale"
    cold_start: Literal["sync", "zeros"] = Field(
        default="sync", description="remote rows and gradients of the first epoch: waited for, or zeros"
    )
    smooth_rows: bool = Field(default=False, description="smooth rows that are used late")
    smooth_gradients: bool = Field(default=False, description="smooth gradients that are used late")
    gamma: float = Field(default=0.95, ge=0, lt=1, description="weight of earlier epochs in a smoothed value")

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        moved = choices.communication
        if moved.cut != "edge-cut" and moved.moves == "rows":
            whole = choices.fitting(CommunicationTraits, lambda other: (other.cut, other.moves) == ("edge-cut", "rows"))
            yield Refusal(
                "freshness", "kind",
                f"got '{self.label}' with communication.kind = '{moved.label}', expected 'always' or another "
                f"communication ({whole}): its ranks exchange parts of sums, and a sum of parts of two epochs is of "
                "neither",
            )  # fmt: skip
        elif moved.input_rows() == "transformed":
            yield Refusal(
                "communication", "rows",
                f"got 'transformed' with freshness.kind = '{self.label}', expected 'auto' or 'input': input rows are "
                "sent once and exact; transformed ones would be late",
            )  # fmt: skip

    def idle(self, choices: Choices) -> Iterator[Idle]:
        if chosen(self, ["gamma"]) and not (self.smooth_rows or self.smooth_gradients):
            yield Idle(
                "gamma", "freshness.smooth_rows = false and freshness.smooth_gradients = false",
                "it weighs what is smoothed; set one of them, or remove it",
            )  # fmt: skip

    def smooths(self, phase: str) -> bool:
        """Whether rows ("forward") or gradients ("backward") are smoothed."""
        return self.smooth_rows if phase == "forward" else self.smooth_gradients

    def expand(self, builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
        training = training_part(builder, sync)
        for stage in training.stages:
            _LateStage(builder, training, stage, codec, self).emit()


class _LateStage:
    """Emits one stage of a sync. Buffers for the whole run: ``late``, the rows as they last arrived, and the rows in
    use, from which a layer reads while the next rows arrive; ``versions`` says of which epoch the former are."""

    def __init__(self, builder: ProgramBuilder, sync: Sync, stage: Stage, codec: Codec, policy: OneEpochStale) -> None:
        self.builder, self.sync, self.stage, self.policy = builder, sync, stage, policy
        self.codec = codec if codec.encodes else None
        used = stage.target if stage.landing == "store" else stage.arrived
        assert used is not None, "rows that are added arrive in a buffer of their own"
        self.late = builder.buffer(buffer_name("late", sync, stage), stage.arriving, sync.width, persistent=True)
        self.used = builder.buffer(used, stage.arriving, sync.width, persistent=True)
        self.version = builder.buffer(
            buffer_name("versions", sync, stage), 1, 1, "int64", persistent=True, space="host"
        )

    def emit(self) -> None:
        for template in self.sync.templates:
            first = FIRST in epoch_names(template)
            waits = first and self.policy.cold_start == "sync"
            here = replace(self.sync, templates=(template,))
            if not waits:
                self._use(here, UseLate)
            carry(self.builder, here, self.stage, self.codec, self.late, self.version)
            if waits:
                self._use(here, UseNow)
            elif not first and self.policy.smooths(self.sync.phase):
                self._smooth(here)
            land(self.builder, here, self.stage)

    def _use(self, sync: Sync, action: type[Action[Any]]) -> None:
        work = (self._work("copy"),) if action is UseNow else ()
        reads = [self.late, self.version, self.used]
        self._act(sync, "use", action, reads, [self.used], work)

    def _smooth(self, sync: Sync) -> None:
        scratch = Scratch(rows_of(self.stage.arriving, sync.width * self.builder.item_bytes))
        work = (
            self._work("elementwise", passes=2),
            self._work("elementwise", passes=2),
            self._work("elementwise", passes=3),
        )
        self._act(sync, "smooth", Smooth, [self.late, self.used], [self.late], work, scratch=scratch)

    def _act(
        self, sync: Sync, part: str, action: type[Action[Any]], reads: list[str], writes: list[str],
        work: tuple[Work, ...], **fields: Any,
    ) -> None:  # fmt: skip
        self.builder.compute(
            sync.templates, sync.op(self.stage, part), OpKind.SELECT, reads, writes, work, action,
            module=self.policy.slot, **sync.overhead, **fields,
        )  # fmt: skip

    def _work(self, primitive: str, **sizes: int) -> Work:
        return self.builder.row_work(primitive, self.stage.arriving, self.sync.width, **sizes)
