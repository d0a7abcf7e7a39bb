"""Embeddings that a run learns for the vertices of a host, and the functions of the ops that learn them.

They are the last columns of the host's input rows, which its ranks read in place; the host's first rank writes them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.state.plan import RunPlan
from executor.store.features import FeatureStore
from executor.world.member import World
from simgnn.emit.batches.embeddings import PUSH, STATE, ApplyGradients, PickGradients, SumGradients
from simgnn.emit.batches.names import EMBEDDINGS, FEATURES
from simgnn.emit.batches.on_rank import Functions, carried_out
from simgnn.graph.csr import IndexArray
from simgnn.graph.hashing import stream_key, uniform_at
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving
from simgnn.policy import PolicyContext
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.sampling.batches.plan import SamplingPlan, open_plan
from simgnn.sampling.fetches.remote_rows import rows_on_hosts

Rows = torch.Tensor
EPSILON = 1e-10
"""Added to the root of Adagrad's sum (docs/systems/distdgl.md)."""


def initial_embeddings(seed: int, vertices: NDArray[Any], width: int) -> NDArray[np.float64]:
    """Return the initial embeddings of vertices [n], float64 [n, width], uniform in +-1 / sqrt(width) (our decision): a
    pure function of seed, vertex and column, so that they do not depend on ranks or partition."""
    columns = np.arange(width, dtype=np.uint64)
    numbers = np.asarray(vertices).astype(np.uint64)[:, None] * np.uint64(width) + columns
    return np.asarray((2 * uniform_at(numbers, stream_key(seed, "embeddings")) - 1) / math.sqrt(width))


def rows_with_embeddings(features: NDArray[Any], vertices: NDArray[Any], width: int, seed: int) -> NDArray[Any]:
    """Return the input rows [n, F + width] of a host: ``features`` [n, F] of ``vertices`` [n], and embeddings."""
    rows = np.empty((len(features), features.shape[1] + width), features.dtype)
    rows[:, : features.shape[1]] = features
    rows[:, features.shape[1] :] = initial_embeddings(seed, vertices, width)
    return rows


@dataclass(frozen=True)
class Embeddings:
    """Runs the ops that learn embeddings. ``owner`` int32 [V]: rank of each vertex; ``rows`` [V]: row of each vertex in
    the memory of its host. ``pushed_to_me``: rows that each rank pushes to this ``rank`` in a step, int64 [P].
    ``width``: columns of an embedding; ``rate``: learning rate."""

    rank: int
    serving: Serving
    owner: NDArray[np.int32]
    rows: IndexArray
    pushed_to_me: Callable[[int, int], IntArray]
    width: int
    rate: float

    def functions(self) -> Functions:
        return {
            **carried_out(PickGradients, self.pushed),
            **carried_out(SumGradients, self.summed),
            **carried_out(ApplyGradients, self.applied),
        }

    def pushed(self, context: PolicyContext, vertices: Rows, gradient: Rows, seeds: Rows) -> tuple[Rows, ...]:
        """Group the gradients of a batch's embeddings by the rank that writes them, in the order of the batch. Return
        (ids, rows) for other ranks if there are any, (ids, rows) for this rank, and a copy of the number of ``seeds``
        [1, 1]. ``vertices`` int64 [m]; ``gradient`` [m, F + width] of the input rows, on the device."""
        ids = vertices.numpy()
        writers = np.array([self.serving.writer(host) for host in self.serving.hosts])[self.owner[ids]]
        order = np.argsort(writers, kind="stable")
        mine = writers[order] == self.rank
        found: list[Rows] = []
        for part in (order[~mine], order[mine]) if self.serving.ranks > 1 else (order,):
            places = torch.from_numpy(part).to(gradient.device)
            found.append(torch.from_numpy(self.rows[ids[part]].astype(np.int64)))
            found.append(gradient[:, -self.width :].index_select(0, places).cpu())
        return (*found, seeds.cpu().clone())

    def summed(
        self, context: PolicyContext, own_ids: Rows, own_rows: Rows, seeds: Rows, *arrived: Rows
    ) -> tuple[Rows, Rows]:
        """Average gradients over the ``seeds`` of all ranks: (ids int64 [n], ascending, rows [n, width]). Gradients of
        one vertex are added in rank order. ``arrived``: (ids, rows) of the other ranks, by rank."""
        parts = [(own_ids, own_rows)]
        if arrived:
            ids, rows = arrived
            before = int(self.pushed_to_me(context.epoch, context.step)[: self.rank].sum())
            parts = [(ids[:before], rows[:before]), *parts, (ids[before:], rows[before:])]
        different, sums = sum_by_id(torch.cat([ids for ids, _ in parts]), *(rows for _, rows in parts))
        return different, sums.div_(seeds)

    def applied(
        self, context: PolicyContext, ids: Rows, gradients: Rows, state: Rows, table: Rows
    ) -> tuple[Rows, Rows]:
        """Take an Adagrad step (Duchi et al., JMLR 2011) on the rows ``ids``, in place. ``state`` [n, width]: sums of
        squared gradients; ``table`` [n, F + width]: the host's input rows. ``gradients``: zeros at first."""
        places, vectors = ids.view(-1), table[:, -self.width :]
        total = state.index_select(0, places).addcmul_(gradients, gradients)
        state.index_copy_(0, places, total)
        step = (self.rate * gradients).div_(total.sqrt_().add_(EPSILON))
        del total  # else a third array of this size is held below
        vectors.index_copy_(0, places, vectors.index_select(0, places).sub_(step))
        return state, table


def learned_width(program: Program) -> int:
    """Return the width of the embeddings that a program learns, or 0 if it learns none."""
    return program.buffers[STATE].width if STATE in program.buffers else 0


def load_embeddings(plan: RunPlan, sampling: SamplingPlan, store: FeatureStore) -> tuple[Functions, Mapping[str, Rows]]:
    """Return functions by policy action, and rows this rank writes, by buffer; without embeddings both are empty."""
    width, places, rank = learned_width(plan.program), store.places, store.places.rank
    if not width:
        return {}, {}
    owner, route = np.asarray(sampling.owner), plan.program.sizes.routes[PUSH]
    learned = Embeddings(
        rank=rank,
        serving=places.serving,
        owner=owner,
        rows=rows_on_hosts(owner, np.array(places.serving.hosts, np.int64)),
        pushed_to_me=lambda epoch, step: route.matrix(places.serving.ranks, epoch, step)[:, rank],
        width=width,
        rate=float(plan.train["learning_rate"]),
    )
    writes = places.serving.writer(places.host) == rank
    return learned.functions(), {EMBEDDINGS: store.table(FEATURES)[:, -width:]} if writes else {}


def gather_embeddings(plan: RunPlan, world: World, written: Mapping[str, Rows]) -> Rows | None:
    """Return the learned embeddings [V, width] of all vertices, by id, on rank 0; None elsewhere. All ranks call it.
    ``written``: the rows that this rank writes, from :func:`load_embeddings`."""
    assert plan.batches is not None
    serving = Serving(plan.program.hosts)
    mine = written.get(EMBEDDINGS)
    if world.rank:
        if mine is not None:
            dist.send(mine.contiguous(), dst=0, group=world.control)
        return None
    assert mine is not None, "rank 0 writes the rows of its host"
    owner = np.asarray(open_plan(Path(plan.batches.plan)).owner)
    maps = IdMaps.of(np.array(serving.hosts, np.int32)[owner], serving.parts)
    every = mine.new_empty((len(owner), mine.shape[1]))
    for host in range(serving.parts):
        rows, writer = mine, serving.writer(host)
        if writer:
            rows = mine.new_empty((len(maps.core(host)), mine.shape[1]))
            dist.recv(rows, src=writer, group=world.control)
        every[torch.from_numpy(np.array(maps.core(host)))] = rows
    return every


def sum_by_id(ids: torch.Tensor, *parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct ``ids`` int64 [k], ascending, and the sum of the rows of each id. Rows are added in order, so
    that sums do not depend on timing. ``parts``: the k rows in pieces, [k1, F], [k2, F]..."""
    order = torch.argsort(ids, stable=True)
    different, lengths = torch.unique_consecutive(ids[order], return_counts=True)
    if not len(ids):
        return ids, parts[0][:0]
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    rows = parts[0].new_empty((len(ids), *parts[0].shape[1:]))
    # put in order part by part: joined first, all would be held twice
    for places, part in zip(torch.split(place, [len(part) for part in parts]), parts, strict=True):
        rows.index_copy_(0, places, part)
    return different, torch.segment_reduce(rows, "sum", lengths=lengths, axis=0)
