"""The ops of a transfer whose rows have unequal bits, and of the epochs in which these are assigned."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simgnn.emit.bit_widths.actions import (
    STATED,
    UNEQUAL_ACTIONS,
    AssignsBits,
    ChooseBits,
    DecodeUnequal,
    EncodeUnequal,
    TakeBits,
    TellWeights,
    TraceRanges,
)
from simgnn.emit.bit_widths.rows import group_counts
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.caches.masks import add_count_route
from simgnn.emit.sync import Stage, Sync, buffer_name
from simgnn.policy import Action, Choices, Codec, CommunicationTraits, Epochs, FreshnessTraits, Refusal
from simgnn.program.calendar import FIRST, templates_of
from simgnn.program.kinds import OpKind
from simgnn.program.ops import ITEM_BYTES, Buffer, Work
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray, Route, Scratch, Size, Terms, reverse_of, rows_of

FLOAT = ITEM_BYTES["float64"]
SORTING_PASSES = 100
"""What sorting rows by a number once costs, in passes over the numbers: assumed, after torch's stable sort on a CPU."""
SORTS_OF_SENT, SORTS_OF_RECEIVED = 4, 2
"""How often rows are sorted to group them; those that are sent also to add up their groups."""
ASSIGN = "assign"
"""The last epoch of each period, at whose end bits are assigned."""
BYTES, ARRIVED = "bytes", "arrived"
"""Decisions of a transfer: bytes of the message of a pair of ranks, and those that a rank receives."""


@dataclass(frozen=True)
class UnequalTransfer:
    """Emits a stage: encode, exchange, decode; in epochs called ``assign`` also the ops that choose the bits of later
    epochs, and in the ``first`` epoch what they need to know of edges.

    Buffers for the whole run: ``bits_out`` and ``bits_in``, of the rows that a rank sends and receives (0: not assigned
    yet), and where rows are summed with weights ``weights_out`` and ``weights_in``, how much their errors matter.
    A message's length is a :class:`Decision`, at most that of rows of the most bits. ``first``, ``assign``: the
    templates of these epochs among those of the sync."""

    builder: ProgramBuilder
    sync: Sync
    stage: Stage
    codec: AssignsBits
    first: tuple[str, ...]
    assign: tuple[str, ...]

    def emit(self, receive: str, version: str | None) -> None:
        """Emit the ops from packed rows to decoded ones in the buffer ``receive``; ``version``: see the exchange."""
        self._carry(receive, version)
        if self.weighs and self.first:
            self._tell_weights()
        if self.assign:
            self._assign()

    # -- every epoch -----------------------------------------------------------------------------------------------

    def _carry(self, receive: str, version: str | None) -> None:
        builder, sync, stage = self.builder, self.sync, self.stage
        leaving = Decision(self._decision(BYTES), self._column("most/leaving", stage.leaving, self.most))
        arriving = Decision(self._decision(ARRIVED), self._column("most/arriving", stage.arriving, self.most))
        coded = builder.buffer(self._name("coded"), leaving, 1, "uint8")
        arrived = builder.buffer(self._name("arrived"), arriving, 1, "uint8")
        pairs = add_count_route(builder, stage.route)
        told = [
            builder.buffer(self._name(f"bytes_{way}"), Column(f"{pairs}/{end}"), 1, "int64", space="host")
            for way, end in (("out", "leaving"), ("in", "arriving"))
        ]
        # priced as if all rows had the most bits and were divided by their bits, as they are after the first assignment
        shape, coding = (sync.width, builder.dtype), self.codec.at(self.most_bits)
        dividing = [builder.row_work("gather", count, sync.width) for count in (stage.leaving, stage.arriving)]
        self._act(
            sync.templates, "encode", OpKind.ENCODE, EncodeUnequal, [stage.packed, *self.bits], [coded, *told],
            (dividing[0], *coding.encode_work(stage.leaving, *shape)), coding.encode_scratch(stage.leaving, *shape),
            stage.route,
        )  # fmt: skip
        name = self._name(BYTES)
        if name not in builder.routes:
            rows = builder.routes[stage.route]
            builder.route(name, Route(rows.source, rows.target, rows.rows * self.most))
        builder.exchange(
            sync.templates, sync.op(stage, "exchange"), name, [coded, *told], arrived, 1, decision=leaving,
            announced=True, version=version, layer=sync.layer, phase=sync.phase,
        )  # fmt: skip
        self._act(
            sync.templates, "decode", OpKind.DECODE, DecodeUnequal, [arrived, self.bits[1]], [receive],
            (*coding.decode_work(stage.arriving, *shape), dividing[1]), (), stage.route,
        )  # fmt: skip

    # -- epochs of their own ---------------------------------------------------------------------------------------

    def _tell_weights(self) -> None:
        """Send how much errors of halo rows matter from the ranks that sum them to those that own them, once."""
        stage = self.stage
        back, (theirs, own) = reverse_of(stage.route), self.weights
        edges = Work("elementwise", {"rows": stage.arriving, "width": 1, "passes": 2, "item_bytes": FLOAT})
        self._act(self.first, "weigh", OpKind.SELECT, TellWeights, [], [own], (edges,), (), back)
        self._control(self.first, "weights", back, own, theirs, FLOAT)

    def _assign(self) -> None:
        builder, stage, groups = self.builder, self.stage, self.groups
        sent, received = groups.sum(axis=1), groups.sum(axis=0)
        first = np.arange(len(builder.hosts)) == 0
        told, given = np.where(first, 0, sent), np.where(first, 0, sent + received)
        to_first = Route.from_matrix(np.where(first[None, :], told[:, None], 0))
        from_first = Route.from_matrix(np.where(first[:, None], given[None, :], 0))
        rows = {
            "told": told, "own": sent - told, "collected": np.where(first, told.sum(), 0), "given": given,
            "assigned": np.where(first, given.sum(), 0), "mine": sent + received - given,
        }  # fmt: skip
        sizes = {what: builder.column(self._name(f"{what}/rows"), count) for what, count in rows.items()}
        for name, route in (("groups", to_first), ("choices", from_first)):
            builder.route(self._name(name), route)
        group = [
            builder.buffer(self._name(f"group_{way}"), count, 1, "int32")
            for way, count in (("out", stage.leaving), ("in", stage.arriving))
        ]
        told_to, own, collected = (
            builder.buffer(self._name(what), sizes[what], STATED, "float64") for what in ("told", "own", "collected")
        )
        chosen = [builder.buffer(self._name(what), sizes[what], 1, "uint8") for what in ("assigned", "mine", "given")]
        ends = [self._name("coded"), self.bits[0], self._name("arrived"), self.bits[1]]
        weights = list(self.weights) if self.weighs else []
        shape: dict[str, str | int | float] = {"width": self.sync.width, "dtype": builder.dtype}
        self._act(
            self.assign, "trace", OpKind.SELECT, TraceRanges, [*ends, *weights], [*group, told_to, own],
            (self._sort_work(stage.leaving, SORTS_OF_SENT), self._sort_work(stage.arriving, SORTS_OF_RECEIVED)),
            (*rows_of(stage.leaving, 6 * FLOAT), *rows_of(stage.arriving, 6 * FLOAT)), stage.route, shape,
        )  # fmt: skip
        self._control(self.assign, "collect", self._name("groups"), told_to, collected, STATED * FLOAT)
        self._act(
            self.assign, "choose", OpKind.SELECT, ChooseBits, [own, collected], chosen[:2],
            (self._sort_work(sizes["assigned"]), self._sort_work(sizes["mine"])), (), self._name("groups"), shape,
        )  # fmt: skip
        self._control(self.assign, "assign", self._name("choices"), chosen[0], chosen[2], 1)
        self._act(
            self.assign, "take", OpKind.SELECT, TakeBits, [chosen[2], chosen[1], *group, *self.bits], list(self.bits),
            tuple(builder.row_work("gather", count, 1) for count in (stage.leaving, stage.arriving)), (), stage.route,
        )  # fmt: skip

    def _sort_work(self, rows: Size, times: int = 1) -> Work:
        """The work of sorting rows by a number so many times."""
        return Work("elementwise", {"rows": rows, "width": 1, "passes": times * SORTING_PASSES, "item_bytes": FLOAT})

    # -- names and sizes -------------------------------------------------------------------------------------------

    @property
    def weighs(self) -> bool:
        """Whether receivers sum these rows with weights, instead of adding them as they are."""
        return self.stage.role == "publish"

    @property
    def most_bits(self) -> int:
        return self.codec.widths[-1]

    @property
    def most(self) -> int:
        """Bytes of a row of the most bits."""
        return max(self.codec.bytes_of_rows(self.sync.width, self.builder.dtype).values())

    @cached_property
    def groups(self) -> IntArray:
        """The groups of each pair of ranks, int64 [sender, receiver]."""
        rows = self.builder.routes[self.stage.route].matrix(len(self.builder.hosts))
        return np.array([group_counts(line.tolist(), self.codec.rows_of_group) for line in rows], dtype=np.int64)

    @cached_property
    def bits(self) -> tuple[str, str]:
        """Adds the buffers of the bits of the rows that a rank sends and receives."""
        return self._ends("bits", "uint8")

    @cached_property
    def weights(self) -> tuple[str, str]:
        """Adds the buffers of the weights of the rows that a rank sends and receives."""
        return self._ends("weights", "float64")

    def _ends(self, what: str, dtype: str) -> tuple[str, str]:
        sent = self.builder.buffer(self._name(f"{what}_out"), self.stage.leaving, 1, dtype, persistent=True)
        received = self.builder.buffer(self._name(f"{what}_in"), self.stage.arriving, 1, dtype, persistent=True)
        return sent, received

    def _column(self, what: str, rows: Size, times: int) -> Column:
        counts = self.builder.columns[rows.name] if isinstance(rows, Column) else np.full(len(self.builder.hosts), rows)
        return self.builder.column(self._name(what), counts * times)

    def _name(self, what: str) -> str:
        return buffer_name(what, self.sync, self.stage)

    def _decision(self, name: str) -> str:
        return f"{buffer_name('sync', self.sync, self.stage)}/{name}"

    # -- ops -------------------------------------------------------------------------------------------------------

    def _control(
        self, templates: tuple[str, ...], part: str, route: str, read: str, write: str, row_bytes: int
    ) -> None:
        self.builder.exchange(
            templates, self.sync.op(self.stage, part), route, [read], write, row_bytes, control=True,
            layer=self.sync.layer, phase=self.sync.phase,
        )  # fmt: skip

    def _act(
        self, templates: tuple[str, ...], part: str, kind: OpKind, action: type[Action[Any]], reads: Iterable[str],
        writes: Iterable[str], work: tuple[Work, ...], scratch: Terms, route: str,
        options: Mapping[str, str | int | float] | None = None,
    ) -> None:  # fmt: skip
        self.builder.compute(
            templates, self.sync.op(self.stage, part), kind, list(reads), list(writes), work, action, route=route,
            module="codec", scratch=Scratch(scratch), options=options or {}, **self.sync.overhead,
        )  # fmt: skip


class AdaptiveCodes(AssignsBits, ABC):
    """The base of codecs that may assign bits to groups of rows (``bits = "adaptive"``)."""

    actions: ClassVar[tuple[type[Action[Any]], ...]] = (*Codec.actions, *UNEQUAL_ACTIONS)

    @property
    @abstractmethod
    def period(self) -> int:
        """Epochs from one assignment to the next."""

    @property
    @abstractmethod
    def stated_bits(self) -> float | None:
        """Mean bits after the first assignment, for predictions without a record. None: the user states none."""

    @property
    def adaptive(self) -> bool:
        """Whether bits are assigned; otherwise all rows have the same."""
        return not isinstance(self.bits, int)

    @property
    def epochs(self) -> Epochs:
        return Epochs(self.period, {ASSIGN: self.period - 1}, first=True) if self.adaptive else Epochs()

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        yield from super().refuses(choices)
        moved, freshness = choices.communication, choices.freshness
        if not self.adaptive or moved.moves == "batches":
            return
        if (moved.cut, moved.moves) != ("edge-cut", "rows"):
            fits = choices.fitting(CommunicationTraits, lambda other: (other.cut, other.moves) == ("edge-cut", "rows"))
            yield Refusal(
                "codec", "bits",
                f"got '{self.bits}' with communication.kind = '{moved.label}', expected a number, or a communication "
                f"that sends rows to the ranks that sum them ({fits}): bits are assigned by the weights of these sums",
            )  # fmt: skip
        if not _sends_the_same(freshness):
            fits = choices.fitting(FreshnessTraits, lambda other: "rows" in other.serves and _sends_the_same(other))
            yield Refusal(
                "codec", "bits",
                f"got '{self.bits}' with freshness.kind = '{freshness.label}', expected a number, or a freshness that "
                f"sends the same rows in every epoch ({fits}): ranges of one epoch decide the bits of the next ones",
            )  # fmt: skip

    def emit_transfer(
        self, builder: ProgramBuilder, sync: Sync, stage: Stage, receive: str, version: str | None
    ) -> bool:
        if self.adaptive:
            first, assign = (templates_of(sync.templates, name) for name in (FIRST, ASSIGN))
            UnequalTransfer(builder, sync, stage, self, first, assign).emit(receive, version)
        return self.adaptive

    @property
    def decides(self) -> str:
        return "codec.expected_bits = the mean bits after the first assignment" if self.adaptive else ""

    def problems(self, program: Program) -> list[str]:
        if not self.adaptive or any(op.action == EncodeUnequal.label for _, op in program.ops):
            return []
        return [
            f"codec.bits: got '{self.bits}', expected a number: no rows travel between ranks while they train (one "
            "rank, parts that share no edge, or one layer, whose inputs are sent once), so that there are none to "
            "assign bits to; use more ranks or layers, or set codec.bits = 8"
        ]

    def scheduled(self, program: Program, epochs: int) -> Mapping[str, IntArray]:
        """The bytes of all messages of a run that ends with the first period, in which all rows have the same bits."""
        if not self.adaptive or epochs > self.period:
            return {}
        return self._messages(program, lambda rows: np.full(epochs, self._first_bytes(rows)))

    def assumed(self, program: Program, epochs: int) -> Mapping[str, IntArray]:
        stated = self.stated_bits
        if stated is None:
            return {}

        def row_bytes(rows: Buffer) -> NDArray[np.float64]:
            later = 2 * ITEM_BYTES[rows.dtype] + rows.width * stated / 8
            return np.where(np.arange(epochs) < self.period, self._first_bytes(rows), later)

        return self._messages(program, row_bytes)

    def _messages(self, program: Program, row_bytes: Callable[[Buffer], NDArray[Any]]) -> dict[str, IntArray]:
        """The decisions of a program for messages whose rows have ``row_bytes`` bytes in each epoch [epochs], a
        function of the buffer of rows that are sent."""
        found: dict[str, IntArray] = {}
        for _, op in program.ops:
            if op.action == EncodeUnequal.label and op.route is not None:
                dense = program.sizes.routes[op.route].matrix(program.ranks)
                nbytes = dense[:, :, None, None] * row_bytes(program.buffers[op.reads[0].buffer])[:, None]
                found[_decision_of(program.buffers[op.writes[0].buffer])] = np.rint(nbytes).astype(np.int64)
        for _, op in program.ops:
            if op.transfer is not None and op.transfer.decision is not None and op.transfer.decision.name in found:
                name = _decision_of(program.buffers[op.writes[0].buffer])
                found[name] = found[op.transfer.decision.name].sum(axis=0)
        return found

    def _first_bytes(self, rows: Buffer) -> int:
        """Bytes of a row before the first assignment."""
        return self.at(self.first_bits).row_bytes(rows.width, rows.dtype)


def _sends_the_same(freshness: type[FreshnessTraits] | FreshnessTraits) -> bool:
    """Whether the rows that travel in an epoch travel in all."""
    return not (freshness.sends_differences or freshness.draws_rows or freshness.caches_halo)


def _decision_of(buffer: Buffer) -> str:
    assert isinstance(buffer.rows, Decision), "the length of a message of unequal bits is decided"
    return buffer.rows.name
