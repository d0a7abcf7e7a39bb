"""The base classes of slot ``batching``, and what all kinds of neighbour sampling share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from simgnn.emit.batches.drawing import DRAWING, drawn_over_hosts
from simgnn.emit.batches.names import BATCHES, DRAW
from simgnn.emit.batches.on_rank import AreaUnderCurve, JoinRows, RankAction, ScorePairs, TakeOwnRows
from simgnn.emit.builder import ProgramBuilder
from simgnn.errors import ConfigError
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.partition.statistics.file import even
from simgnn.policy import Action, Array, BatchingTraits, Choices, Effect, PolicyContext, Refusal, chosen
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Nature, Op, Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from simgnn.graph.csr import CSR
    from simgnn.partition.partition import Partition
    from simgnn.partition.statistics.partition_stats import PartitionStats
    from simgnn.sampling.batches.plan import SamplingPlan
    from simgnn.sampling.batches.sizes import BatchSizes

MOST_NEIGHBOURS = 65_536


class Batching(BatchingTraits):
    """The base of batching policies: which vertices one training step covers."""


class DrawBatch(RankAction[Callable[[PolicyContext], tuple[Array, ...]]]):
    """Draw the batch of a step, or read it from stored batches: its vertices, seeds, and blocks by hop."""


class NeighbourSampling(Batching, ABC):
    """Uniform neighbour sampling without replacement.

    ``fanouts``: the most neighbours drawn per vertex, by hop from the seed vertices (DGL's sampler counts from the
    input). ``global_batch`` is divided evenly; the first ranks get one vertex more where it does not divide
    (docs/systems/distdgl.md). ``split``: ``even`` gives all ranks equally many training vertices, ``local`` those that
    they own. ``last``: ``drop`` ends an epoch when the first rank has no full batch left
    (docs/systems/mini-batches.md). ``evaluation``: ``exact`` uses all in-edges, with memory for rows of two layers."""

    actions: ClassVar[tuple[type[Action[Any]], ...]] = (
        DrawBatch,
        *DRAWING,
        TakeOwnRows,
        JoinRows,
        ScorePairs,
        AreaUnderCurve,
    )
    mini_batches: ClassVar[bool] = True
    effects: ClassVar[Mapping[str, Effect]] = {"storage": "nothing"}

    batch_size: int = Field(default=1000, ge=1, le=2**31 - 1, description="seed vertices per rank and batch")
    global_batch: Annotated[int, Field(ge=1, le=2**62)] | None = Field(
        default=None, description="seed vertices of all ranks together, divided evenly, in place of batch_size"
    )
    fanouts: tuple[int, ...] = Field(
        min_length=1, max_length=1000, description="most neighbours per vertex, by hop from the seed vertices; -1: all"
    )
    split: Literal["even", "local"] = Field(default="even", description="which vertices a rank trains on")
    last: Literal["keep", "drop"] = Field(
        default="keep", description="keep or drop batches at an epoch's end that are not full on all ranks"
    )
    storage: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="folder of stored batches, as simgnn sample writes; default: the cache"
    )
    evaluation: Literal["exact", "none"] = Field(
        default="exact", description="evaluate validation and test vertices on all in-edges, or not at all"
    )

    @field_validator("fanouts")
    @classmethod
    def _counts(cls, fanouts: tuple[int, ...]) -> tuple[int, ...]:
        if any(not (fanout == -1 or 1 <= fanout <= MOST_NEIGHBOURS) for fanout in fanouts):
            raise ValueError(f"expected numbers 1..{MOST_NEIGHBOURS} by hop from the seed vertices, or -1 for all")
        return fanouts

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.global_batch is not None and chosen(self, ["batch_size"]):
            raise ValueError(
                f"global_batch: got {self.global_batch} with batching.batch_size = {self.batch_size}, expected only "
                "one of the two"
            )
        return self

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        model, train = choices.model, choices.train
        if len(self.fanouts) != model.layers:
            yield Refusal(
                "batching", "fanouts",
                f"got {len(self.fanouts)} fan-outs {list(self.fanouts)}, expected {model.layers}: one for each layer "
                f"(model.layers = {model.layers}), from the seed vertices on",
            )  # fmt: skip
        if choices.trains and self.evaluation == "none" and train.eval_every and train.chosen("eval_every"):
            message = f"got {train.eval_every} with batching.evaluation = 'none', expected 0: nothing is evaluated"
            yield Refusal("train", "eval_every", message)
        if choices.trains and self.evaluation == "none" and train.needs_validation:
            message = f"got 'none' with {train.needs_validation}, expected 'exact': it needs the validation accuracy"
            yield Refusal("batching", "evaluation", message)
        if choices.trains and not model.built_in:
            yield Refusal(
                "model", "kind",
                f"got '{model.kind}' with batching.kind = '{self.label}', expected one of "
                f"{', '.join(BUILT_IN_LAYERS)}: layers of your own need the full graph (batching.kind = 'full')",
            )  # fmt: skip

    def sizes_of(self, ranks: int) -> int | tuple[int, ...]:
        """Return the seed vertices of a full batch: one number if all P ranks have as many, else one for each rank.

        Raises :class:`ConfigError` where a rank would have none."""
        if self.global_batch is None:
            return self.batch_size
        size, more = divmod(self.global_batch, ranks)
        if not size:
            raise ConfigError(
                f"batching.global_batch: got {self.global_batch} with {ranks} ranks, expected at least {ranks}, a seed "
                "vertex for each; raise it, or use fewer ranks"
            )
        return (size + 1,) * more + (size,) * (ranks - more) if more else size

    @abstractmethod
    def drawing(self, hops: int) -> tuple[Work, ...]:
        """Return the cost of drawing a training batch; its sizes are columns of :mod:`simgnn.emit.batches.names`."""

    def training_of(self, stats: "PartitionStats") -> "NDArray[np.int64]":
        """Return the number of vertices that each rank trains on in an epoch, int64 [P], from statistics.

        Raises :class:`ConfigError` where no rank has a full batch and partial batches are dropped."""
        if self.split == "even":
            training = even(stats.facts.train_vertices, stats.ranks)
        else:
            training = stats.table("train_rows", "batching.split = 'local'")
        if self.last == "keep":
            return training
        sizes = np.array(self.sizes_of(stats.ranks), np.int64)
        steps = training // sizes
        rank = int(steps.argmin())
        self._check_steps(int(steps[rank]), int(training[rank]))
        return np.asarray(np.broadcast_to(sizes * steps[rank], training.shape))

    def ops(self, builder: ProgramBuilder, batches: "BatchSizes", written: tuple[Access, ...]) -> list[Op]:
        """Return the chain of ops that draws a batch and writes ``written``: vertices, seeds, and the block of each
        hop. The last op is :data:`~simgnn.emit.batches.names.DRAW`."""
        if batches.parted is not None:
            return drawn_over_hosts(builder, batches.parted, written)
        work, action = self.drawing(len(batches.edges)), DrawBatch.label
        return [Op(DRAW, OpKind.SAMPLE, Nature.DRAWING, (), written, work=work, module=BATCHES, action=action)]

    def plan(
        self, csr: "CSR", train: "NDArray[np.int64]", partition: "Partition", rank_hosts: "NDArray[np.int64]", seed: int
    ) -> "SamplingPlan":
        """Plan which rank samples which batches. ``train`` int64 [n]: training vertices; ``rank_hosts`` int64 [P]."""
        # Numba: loaded when batches are planned; checking an experiment does not need it
        from simgnn.sampling.batches.plan import SamplingPlan, even_split, local_split

        if self.split == "local":
            workers = local_split(train, partition.owner, partition.ranks)
        else:
            workers = even_split(train, partition.owner, rank_hosts, seed)
        sizes = self.sizes_of(partition.ranks)
        plan = SamplingPlan(csr, partition.owner, workers, self.fanouts, sizes, seed, self.last, self.negatives_drawn)
        few = min(range(plan.ranks), key=lambda rank: len(workers[rank]) // plan.size_of(rank))
        self._check_steps(plan.steps, len(workers[few]))
        return plan

    def _check_steps(self, steps: int, fewest: int) -> None:
        """Raise :class:`ConfigError` if an epoch has no step; ``fewest``: the fewest training vertices of a rank."""
        if self.last == "drop" and not steps:
            key = "batch_size" if self.global_batch is None else "global_batch"
            raise ConfigError(
                f"batching.last: got 'drop' with batching.{key} = {getattr(self, key)}, expected 'keep' or smaller "
                f"batches: a rank has {fewest} vertices to train on, less than a batch"
                + ("; or batching.split = 'even'" if self.split == "local" else "")
            )
