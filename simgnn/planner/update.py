"""The ops around the layers: training state, loss, gradient sum, optimizer, evaluation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simgnn.emit.batches.names import VERTICES
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.names import Names
from simgnn.graph.graph import MASKS, GraphFacts
from simgnn.model.costs import pass_over
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.model.user_layer import parameters_of
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import METRICS
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.program.ops import ITEM_BYTES, Nature, Space, Work
from simgnn.program.sizes import Column, Scratch, Size, rows_of

EVALUATION = len(MASKS) * METRICS
"""float64 values of an evaluation: the metrics of train, validation and test rows."""
METRIC_BYTES = ITEM_BYTES["float64"]
OPTIMIZER_COPIES = {"adam": 2, "sgd": 0, "sgd-momentum": 1}
"""Optimizer -> values kept beside each parameter."""


def training_state(
    builder: ProgramBuilder, layers: Sequence[LayerSpec], names: Names, stats: PartitionStats, optimizer: str
) -> None:
    """Add the buffers that live for the whole run."""
    if any(layer.dropped for layer in layers):
        builder.buffer(VERTICES, names.rows, 1, "int64", persistent=True)
    add_features(builder, layers[0], names)
    add_labels(builder, "labels", names.rows, stats.facts)
    learned_state(builder, layers, optimizer)
    builder.buffer("evaluation", 1, EVALUATION, "float64", persistent=True)
    add_topology(builder, layers[0], names, stats)


def add_features(builder: ProgramBuilder, first: LayerSpec, names: Names) -> None:
    """Add the buffers of the features, which the layer ``first`` reads."""
    if first.sparse_input:
        assert names.feature_nonzeros is not None
        builder.buffer("features", names.feature_nonzeros, 4 + builder.item_bytes, "uint8", persistent=True)
        if first.centred_input:
            builder.buffer("feature_mean", 1, first.width_in, persistent=True)
    else:
        builder.buffer("features", names.rows, first.width_in, persistent=True)


def add_topology(builder: ProgramBuilder, first: LayerSpec, names: Names, stats: PartitionStats) -> None:
    """Add the buffer of the edges of each rank, with their weights if the layer ``first`` uses them."""
    # both directions of the local edges: 4 bytes an index, 8 bytes a row pointer, and weights
    rows, sources = (builder.columns[size.name] for size in (names.rows, names.sources))
    of_edge = 4 + (builder.item_bytes if first.weighted else 0)
    nbytes = builder.column("topology_bytes", 2 * of_edge * stats.edges + 8 * (rows + sources + 2))
    builder.buffer("topology", nbytes, 1, "uint8", persistent=True)


def add_labels(builder: ProgramBuilder, name: str, rows: Column, facts: GraphFacts, space: Space = "device") -> None:
    """Add the buffer of labels: one number per vertex, or with several labels a row of 0 and 1, as losses read."""
    width, dtype = (facts.classes, None) if facts.multilabel else (8, "uint8")
    builder.buffer(name, rows, width, dtype, space=space, persistent=True)


def learned_state(builder: ProgramBuilder, layers: Sequence[LayerSpec], optimizer: str) -> None:
    """Add buffers of parameters, their gradients, the optimizer's own values, and the metrics summed with them."""
    for layer in layers:
        count = parameters_of(layer)
        builder.buffer(f"parameters/{layer.index}", 1, count, persistent=True, inner=True)
        builder.buffer(f"gradients/{layer.index}", 1, count, persistent=True, inner=True)
        kept = OPTIMIZER_COPIES[optimizer] * count
        builder.buffer(f"optimizer/{layer.index}", 1, kept, persistent=True, inner=True)
    builder.buffer("metrics", 1, METRICS, "float64", persistent=True)


def loss_scratch(builder: ProgramBuilder, model: ModelSpec, rows: Size, picked: bool) -> Scratch:
    """Return the memory that a loss holds beside scores and gradient, as tensors [rows, classes]: the softmax (or its
    logarithm), and for each row its label and its number (int64); if vertices have several labels, these and three more
    that torch's binary cross entropy makes on a CPU. ``picked`` scores are copied out of others: one more."""
    copies, numbers = (4, 0) if model.multilabel else (1, 2 * ITEM_BYTES["int64"])
    return Scratch(rows_of(rows, (copies + picked) * model.classes * builder.item_bytes + numbers))


def emit_loss(builder: ProgramBuilder, model: ModelSpec, names: Names) -> None:
    """Emit the loss on the training rows of this rank, divided by the number of training rows of the whole graph."""
    top = len(model.layers)
    builder.buffer(f"d/hidden/{top}", names.rows, model.classes)
    # the gradient of all other rows is zero, but written
    written = builder.work([pass_over(names.rows, model.classes, 1)])
    work = (*written, builder.row_work("loss", names.train_rows, model.classes))
    builder.compute(
        names.train, "forward/loss", OpKind.LOSS, [f"hidden/{top}", "labels"], [f"d/hidden/{top}", "metrics"], work,
        layer=top, phase="forward", scratch=loss_scratch(builder, model, names.train_rows, picked=True),
    )  # fmt: skip
    keep_splits(builder, names.rows)


def keep_splits(builder: ProgramBuilder, rows: Size) -> None:
    """Declare memory for positions (int64) of training, validation and test rows: at most one per row of the loss."""
    builder.keep("rows of the splits", (rows, ITEM_BYTES["int64"]))


def emit_update(
    builder: ProgramBuilder, layers: Sequence[LayerSpec], train: tuple[str, ...], ranks: int, optimizer: str,
    divisors: Sequence[str] = (),
) -> None:  # fmt: skip
    """Sum gradients and metrics over ranks, then make the same optimizer step on every rank.

    ``divisors``: buffers of one value that are summed in the gradients' own message, and divide them.

    The step reads the metrics too: a loss of NaN or infinity ends the run before it reaches the parameters. Where late
    rows travel, which only the next epoch waits for, the schedule may send the sums beside them."""
    gradients = [f"gradients/{layer.index}" for layer in layers]
    summed = [*gradients, *divisors]
    total = sum(builder.buffers[name].width for name in gradients)
    if ranks > 1:
        nbytes = (total + len(divisors)) * builder.item_bytes
        metric_bytes, nature = METRICS * METRIC_BYTES, Nature.SUMMING if builder.late else Nature.COMMUNICATION
        builder.allreduce(train, "update/gradients", summed, nbytes, control=False, nature=nature, phase="update")
        builder.allreduce(
            train, "update/metrics", ["metrics"], metric_bytes, control=True, nature=nature, phase="update"
        )
    state = [f"{part}/{layer.index}" for part in ("parameters", "optimizer") for layer in layers]
    work = (Work("optimizer", {"elements": total, "item_bytes": builder.item_bytes}),)
    builder.compute(
        train, "update/optimize", OpKind.OPTIMIZE, [*summed, "metrics", *state], state, work, phase="update",
        category="update",
    )  # fmt: skip


def largest_splits(stats: PartitionStats) -> NDArray[np.int64]:
    """Return the rows of each rank in the largest of its splits, int64 [P]. Splits that the statistics do not count by
    rank (a ``stats:`` file may leave out all but training rows) are assumed to be spread as all rows are."""
    counts = {name: getattr(stats.facts, f"{name}_vertices") for name in MASKS}
    spread = {name: np.ceil(stats.rows * (count / stats.facts.vertices)) for name, count in counts.items()}
    rows = [stats.tables.get(f"{name}_rows", spread[name]) for name in MASKS]
    return np.asarray(np.max(rows, axis=0), dtype=np.int64)


def emit_evaluation(builder: ProgramBuilder, model: ModelSpec, names: Names, stats: PartitionStats) -> None:
    """Emit the counts for the accuracy (micro-F1 with several labels) of train, validation and test rows, one split
    after the other: ``options["split"]`` names the column of the rows in a rank's largest split."""
    ranks, split = stats.ranks, builder.column(f"{names.prefix}split_rows", largest_splits(stats))
    rows, labels = f"{names.prefix}hidden/{len(model.layers)}", f"{names.prefix}labels"
    builder.compute(
        (EVALUATE,), "evaluate/loss", OpKind.LOSS, [rows, labels], ["evaluation"],
        builder.work([pass_over(names.rows, model.classes, 2)]), layer=len(model.layers), phase="evaluate",
        options={"split": split.name}, scratch=loss_scratch(builder, model, split, picked=True),
    )  # fmt: skip
    if ranks > 1:
        builder.allreduce(
            (EVALUATE,), "evaluate/metrics", ["evaluation"], EVALUATION * METRIC_BYTES, control=True, phase="evaluate"
        )
