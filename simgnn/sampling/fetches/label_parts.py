"""Labelled vertices of each part, and the rows of other hosts that samples from them need."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.graph import MASKS, Graph
from simgnn.program.sizes import IntArray
from simgnn.sampling.batches.plan import SamplingPlan, local_split
from simgnn.sampling.draw.sampler import Sampler

MOST_BATCHES = 8
"""Batches of a rank and kind of seed vertices that are drawn; the rows of its others are estimated by these."""


@dataclass(frozen=True)
class LabelParts:
    """How a partition divides labelled vertices. By rank: ``vertices``, ``train``, ``validation``, ``test``.

    ``rows_from``: by kind of labelled vertices that the graph has, the rows of other hosts in one pass over them: each
    rank draws batches from those that it owns, and a row counts once a batch. ``exact``: all batches were drawn."""

    choice: str
    hosts: tuple[int, ...]
    vertices: tuple[int, ...]
    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    rows_from: dict[str, int] = field(default_factory=dict)
    exact: bool = True


@dataclass(frozen=True)
class Draws:
    """How batches are drawn: fan-outs by hop, seed vertices of a batch (of each rank), the experiment's seed."""

    fanouts: tuple[int, ...]
    batch_size: int | tuple[int, ...]
    seed: int
    most_batches: int = MOST_BATCHES


def label_parts(choice: str, graph: Graph, owner: NDArray[Any], hosts: IntArray, draws: Draws | None) -> LabelParts:
    """Count the labelled vertices of each rank, and the rows that samples from them need. ``choice``: a name for the
    partition; ``owner`` int [V]; ``hosts`` int64 [P]: host of each rank; ``draws``: None where nothing is drawn."""
    owner, ranks = np.asarray(owner, np.int32), len(hosts)
    found = {name: np.flatnonzero(_mask(graph, name)) for name in MASKS}
    counts = {name: _by_rank(owner[vertices], ranks) for name, vertices in found.items()}
    rows: dict[str, int] = {}
    exact = True
    if draws is not None:
        sampler = Sampler(graph.csr, draws.fanouts)
        for name, vertices in found.items():
            if len(vertices):
                rows[name], whole = rows_of_other_hosts(graph, owner, hosts, vertices, draws, sampler)
                exact = exact and whole
    return LabelParts(choice, tuple(hosts.tolist()), _by_rank(owner, ranks), **counts, rows_from=rows, exact=exact)


def rows_of_other_hosts(
    graph: Graph,
    owner: NDArray[np.int32],
    hosts: IntArray,
    vertices: IntArray,
    draws: Draws,
    sampler: Sampler,
) -> tuple[int, bool]:
    """Count the rows of other hosts in the batches of one pass over the seed ``vertices``, ascending; and whether all
    batches were drawn. Of a rank with more than ``draws.most_batches`` so many are drawn, spread evenly over the pass,
    and the rows are those of a mean seed vertex, times its seed vertices."""
    if len(set(hosts.tolist())) == 1:
        return 0, True
    host_of = hosts[owner]
    plan = SamplingPlan(
        graph.csr, owner, local_split(vertices, owner, len(hosts)), draws.fanouts, draws.batch_size, draws.seed
    )
    total, exact = 0.0, True
    for rank in range(plan.ranks):
        epoch = plan.epoch(rank, 0)
        chosen = _spread(len(epoch), draws.most_batches)
        rows = seeds = 0
        for batch in chosen:
            rows += int(np.count_nonzero(host_of[epoch.sample(batch, sampler).vertices] != hosts[rank]))
            seeds += len(epoch.seeds(batch))
        exact = exact and len(chosen) == len(epoch)
        total += rows * (len(plan.workers[rank]) / seeds) if seeds else 0
    return round(total), exact


def _spread(count: int, most: int) -> Sequence[int]:
    return range(count) if count <= most else [(2 * place + 1) * count // (2 * most) for place in range(most)]


def _mask(graph: Graph, name: str) -> NDArray[np.bool_]:
    mask = getattr(graph, f"{name}_mask")
    return np.zeros(graph.vertices, np.bool_) if mask is None else np.asarray(mask)


def _by_rank(owner: NDArray[np.int32], ranks: int) -> tuple[int, ...]:
    return tuple(np.bincount(owner, minlength=ranks).tolist())
