"""Ops of learned vertex vectors, which the row store holds behind each vertex's features.

Batches pull them as they pull features. Gradients go, as ids and rows, to the rank that writes the vertex's row: the
first rank of the host that holds it (DistDGL: Zheng et al., IA3 2020, section 5.4; docs/systems/distdgl.md). That rank
sums them by vertex in the order of the sending ranks, divides by the number of seeds of all ranks' batches and makes a
step of Adagrad. Deviation: gradients within a host also go directly to the writing rank, not through a server."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simgnn.emit.batches.names import FEATURES, INPUT_GRADIENT, PLACES, SEED_COUNT, VERTICES, rows_after
from simgnn.emit.batches.on_rank import RankAction
from simgnn.emit.batches.staging import add_route, received, sent
from simgnn.emit.builder import ProgramBuilder, accesses
from simgnn.partition.local.serving import Serving
from simgnn.policy import Array, PolicyContext
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Nature, Op, Transfer, Work
from simgnn.program.sizes import Column, IntArray, Route, Scratch, rows_of
from simgnn.sampling.batches.sizes import BatchSizes

PUSH = "push"
"""The route of gradients, from the ranks whose batches have the rows to those that write them, by epoch and step."""
PICK, SUM, APPLY, SETTLED = "embeddings/pick", "embeddings/sum", "embeddings/apply", "embeddings/settled"
"""Ops: gradients leave the device; they are summed; they change the rows; all ranks of a host are done with rows."""
COUNT, STATE = "push/count", "embeddings/state"
"""Buffers: seeds of all ranks' batches in a step; Adagrad's sums of squares, on ranks that write."""
PENDING = ("push/pending/ids", "push/pending/rows")
"""Buffers of mean gradients that have not been applied, by row of the host's memory."""
OWN, SUMMED, MOST_SUMMED = Column("push/own"), Column("push/summed"), Column("largest/pushed")
ELEMENTS, WRITTEN = Column("push/elements"), Column("embeddings/rows")
ID_BYTES = 8
ORDER_BYTES = 3 * ID_BYTES
"""Bytes of a row that is sorted by its id: the id, its place before and its place after."""


class PickGradients(RankAction[Callable[[PolicyContext, Array, Array, Array], tuple[Array, ...]]]):
    """Copy the gradients of a batch's vectors to the host, grouped by the rank that writes them, and count seeds."""


class SumGradients(RankAction[Callable[..., tuple[Array, Array]]]):
    """Compute the mean gradient of each vertex from the gradients that arrived and the rank's own."""


class ApplyGradients(RankAction[Callable[[PolicyContext, Array, Array, Array, Array], tuple[Array, Array]]]):
    """Update the vectors of vertices, and their sums of squares, by a step of Adagrad."""


@dataclass(frozen=True)
class PushOps:
    """The embedding ops of a step. ``pick``: after the optimizer; ``push``: sends and sums the picked gradients;
    ``apply``: updates the rows, and keeps the host's ranks from reading them meanwhile."""

    pick: Op
    push: tuple[Op, ...]
    apply: tuple[Op, ...]


def push_ops(builder: ProgramBuilder, batches: BatchSizes, host_rows: IntArray, width: int, delay: int) -> PushOps:
    """Add the sizes and buffers of embeddings, ``width`` elements a vertex, and return their ops. ``host_rows`` int64
    [P]: rows in the memory of each rank's host. ``delay`` 0: a step applies its own gradients; 1: the next step does,
    after pulling its rows."""
    builder.natures += [Nature.LEARNING, Nature.PUSHING]
    _sizes(builder, batches, host_rows, width, delay)
    _buffers(builder, width, delay)
    several, row_bytes = len(builder.hosts) > 1, width * builder.item_bytes
    picked = rows_after(len(batches.edges))
    # gradients and the number of seeds leave the device, whose buffers the next step uses again
    pick = Op(
        PICK, OpKind.D2H, Nature.LEARNING, accesses([VERTICES, INPUT_GRADIENT, SEED_COUNT]),
        accesses([*(_pushed("sent") if several else ()), *_pushed("own"), COUNT]),
        work=(builder.row_work("gather", picked, width),), transfer=Transfer(row_bytes, picked), module=PLACES,
        action=PickGradients.label, phase="backward", category="comm_overhead",
    )  # fmt: skip
    push = [
        Op(
            f"embeddings/{leaving}", OpKind.EXCHANGE, Nature.PUSHING, accesses([leaving]), accesses([arriving]),
            transfer=Transfer(nbytes), route=PUSH, phase="update", category="comm",
        )
        for leaving, arriving, nbytes in zip(_pushed("sent"), _pushed("arrived"), (ID_BYTES, row_bytes), strict=True)
        if several
    ]  # fmt: skip
    # gradients are sorted by id, which takes a copy and their places, and summed up
    summed = Op(
        SUM, OpKind.ADD, Nature.LEARNING, accesses([*_pushed("own"), COUNT, *(_pushed("arrived") if several else ())]),
        accesses(PENDING), work=(builder.row_work("scatter_add", SUMMED, width),), module=PLACES,
        action=SumGradients.label, phase="update", category="update",
        scratch=Scratch(rows_of(SUMMED, row_bytes + ORDER_BYTES)),
    )  # fmt: skip
    # Adagrad's step makes two tensors as large as the rows that it changes
    applied = Op(
        APPLY, OpKind.OPTIMIZE, Nature.LEARNING, accesses([*PENDING, STATE, FEATURES]), accesses([STATE, FEATURES]),
        work=(Work("optimizer", {"elements": ELEMENTS, "item_bytes": builder.item_bytes}),), module=PLACES,
        action=ApplyGradients.label, phase="update", category="update",
        scratch=Scratch(rows_of(MOST_SUMMED, 2 * row_bytes)),
    )  # fmt: skip
    apply = [applied]
    if len(set(builder.hosts)) < len(builder.hosts):
        settled = Op(SETTLED, OpKind.BARRIER, Nature.PUSHING, phase="update", category="comm")
        apply.insert(0 if delay else 1, settled)
    return PushOps(pick, (*push, summed), tuple(apply))


def _sizes(builder: ProgramBuilder, batches: BatchSizes, host_rows: IntArray, width: int, delay: int) -> None:
    hosts, serving = builder.hosts, Serving(builder.hosts)
    ranks, writers = np.arange(len(hosts)), np.array([serving.writer(host) for host in hosts])
    # gradients that each rank (first axis) has for each rank that writes, itself included [P, P, epochs, steps]: of all
    # input rows of its batches, as none is cached
    dense = np.zeros((len(hosts), len(hosts), *batches.local.shape[1:]), np.int64)
    dense[ranks, writers] = batches.local
    # a rank pulls the rows of a host from one rank there, whichever serves them
    np.add.at(dense, (batches.pulled.target, writers[batches.pulled.source]), batches.pulled.rows)
    own, summed = dense[ranks, ranks].copy(), dense.sum(axis=0)
    dense[ranks, ranks] = 0
    add_route(builder, PUSH, Route.from_turns(dense))
    applied = summed
    if delay:  # those of the step before, over the borders of epochs
        flat = summed.reshape(len(ranks), -1)
        applied = np.concatenate((np.zeros_like(flat[:, :1]), flat[:, :-1]), axis=1).reshape(summed.shape)
    builder.column(OWN.name, own)
    builder.column(SUMMED.name, summed)
    builder.column(MOST_SUMMED.name, np.minimum(summed.max(axis=(1, 2)), host_rows))
    builder.column(ELEMENTS.name, applied * width)
    builder.column(WRITTEN.name, np.where(writers == ranks, host_rows, 0))


def _buffers(builder: ProgramBuilder, width: int, delay: int) -> None:
    for name, rows in (("sent", sent(PUSH)), ("arrived", received(PUSH)), ("own", OWN)):
        ids, gradients = _pushed(name)
        builder.buffer(ids, rows, 1, "int64", space="host")
        builder.buffer(gradients, rows, width, space="host")
    builder.buffer(COUNT, 1, 1, space="host")
    # at most as many rows as came, and as the host has: ranks may push one vertex
    ids, gradients = PENDING
    builder.buffer(ids, MOST_SUMMED, 1, "int64", space="host", persistent=delay > 0)
    builder.buffer(gradients, MOST_SUMMED, width, space="host", persistent=delay > 0)
    builder.buffer(STATE, WRITTEN, width, space="host", persistent=True)


def _pushed(name: str) -> tuple[str, str]:
    """Return names of two buffers: of ids (rows in the memory of the host that holds them), and of their gradients."""
    return f"push/{name}/ids", f"push/{name}/rows"
