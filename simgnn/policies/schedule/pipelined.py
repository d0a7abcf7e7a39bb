"""Overlap on the full graph: halo rows and their gradients travel while ranks compute."""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simgnn.policy import Choices, Idle, Moves, Schedule, chosen
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Dependency, Nature, Op, Stream

Layers = Annotated[int, Field(strict=True, ge=0, le=10**6)]
COPY_IN, COPY_OUT = Stream("copy_in"), Stream("copy_out")
COMPUTED = ("forward", Nature.COMPUTE)


class Pipelined(Schedule):
    """A layer sums own rows before halo rows have arrived, and sends gradients of halo rows before it computes the
    others. Losses equal those of ``bsp`` to the last bit.

    Where rows are late (a freshness such as ``one-epoch-stale``), a layer has all its rows when it begins, and sums
    them at once. The sums of gradients over ranks then have a stream and a process group of their own: behind late rows
    on one stream they would wait for these, and the next epoch for both.

    Where ranks of a host share halo rows (``placement.host_rows``), copies have streams of their own: ``copy_in`` reads
    shared rows into the device, for a layer up to ``prefetch_depth`` layers ahead; ``copy_out`` copies a rank's rows
    out of it, and one server a host, ``host_merge``, puts them into the shared memory, in the order in which ranks
    come. Source: CaPGNN, its three queues. Deviations: rows of one host's memory are read by the stream ``copy_in``
    both ahead of a layer and in a refresh, and nothing depends on the order of merges, as each row has one writer."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    kind: Literal["pipelined"] = "pipelined"
    prefetch_depth: Layers = Field(
        default=1, description="how many layers ahead rows are read from memory that the ranks of a host share"
    )

    def idle(self, choices: Choices) -> Iterator[Idle]:
        if choices.placement.shares_halo:
            return
        for option in chosen(self, ["prefetch_depth"]):
            yield Idle(
                option, "placement.host_rows = 0",
                "ranks of a host share no rows that could be read ahead; set placement.host_rows, or remove it",
            )  # fmt: skip

    @property
    def sums_own_first(self) -> bool:
        """Always true."""
        return True

    @property
    def queues_copies(self) -> bool:
        """Always true."""
        return True

    def stream(self, nature: Nature, op: Op) -> Stream:
        """The stream of the op's nature; copies into and out of the device have one each, and sums of gradients beside
        late rows have one of their own."""
        if op.kind is OpKind.H2D:
            return COPY_IN
        if op.kind is OpKind.D2H:
            return COPY_OUT
        if nature is Nature.SUMMING:
            return Stream(nature.value, group=nature.value)
        return super().stream(nature, op)

    def after(self, nature: Nature, op: Op, before: Sequence[Op]) -> Sequence[Dependency]:
        """Let rows of a layer be read as the layer ``prefetch_depth`` before it begins: when the one before that has
        ended. Reads that wait for rows of their own epoch wait longer."""
        if op.kind is not OpKind.H2D or op.phase != "forward":
            return ()
        ended = op.layer - 1 - self.prefetch_depth
        ops = [other.name for other in before if (other.layer, other.phase, other.stream) == (ended, *COMPUTED)]
        return (Dependency(ops[-1]),) if ended > 0 and ops else ()
