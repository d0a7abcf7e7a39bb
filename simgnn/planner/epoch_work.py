"""The work of an epoch as weights of a vertex and of an in-edge, by which a partitioner divides a graph evenly."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import GraphFacts
from simgnn.hardware.price.work import flops_and_bytes
from simgnn.partition.chunks.spread import ChunkTotals
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned, plan
from simgnn.program.sizes import Route

Amounts = Mapping[str, float]
"""Work of a whole epoch by what causes it: "vertices", "edges", "train"."""
DIGITS = 3
"""Significant digits of a weight: models that differ by less than METIS can balance share a partition."""


def with_weights(experiment: Experiment, facts: GraphFacts, stage: Callable[[str], None]) -> Experiment:
    """Return the experiment with what its partitioner asks of the model: the number of its layers, and the weights that
    it divides by."""
    layered = experiment.partition.for_layers(experiment.model.layers)
    partition = layered.weighed(lambda: epoch_weights(experiment, facts, stage))
    return experiment if partition is experiment.partition else experiment.model_copy(update={"partition": partition})


def epoch_weights(experiment: Experiment, facts: GraphFacts, stage: Callable[[str], None]) -> dict[str, float]:
    """Return the work that a vertex causes in an epoch, as 1 ("vertices"), and relative to it that of an in-edge
    ("edges") or, on mini-batches, of a training vertex ("train").

    Weights depend on no hardware, so that a partition is the same wherever it is simulated or trained. On the full
    graph the work of a vertex is its share of all flops plus its share of all bytes that one process reads and writes:
    whichever limits a device, no rank has more than twice its share of it if these sums are equal. On mini-batches it
    is its share of all seeds plus its share of all rows that are stored. ``stage`` is called with what is assumed.
    """
    counts = {"vertices": facts.vertices, "edges": facts.edges, "train": facts.train_vertices}
    if experiment.sampling is not None:
        resources: tuple[Amounts, ...] = ({"train": float(counts["train"])}, {"vertices": float(counts["vertices"])})
    else:
        resources = _flops_and_bytes(experiment, facts, stage)
    work = dict.fromkeys(counts, 0.0)
    for amounts in resources:
        total = sum(amounts.values())
        for name, amount in amounts.items():
            work[name] += amount / total / counts[name] if total and counts[name] else 0.0
    if not work["vertices"]:
        return {"vertices": 1.0}
    weights = {name: float(f"{each / work['vertices']:.{DIGITS}g}") for name, each in work.items()}
    return {name: weight for name, weight in weights.items() if weight}


def _flops_and_bytes(
    experiment: Experiment, facts: GraphFacts, stage: Callable[[str], None]
) -> tuple[Amounts, Amounts]:
    """Count flops and bytes of a steady epoch of one process, divided into those of vertices and of edges."""
    planned = _plan_alone(experiment, facts)
    if planned.undeclared:
        stage(f"partition.balance: '{experiment.model.kind}' declares no work, so vertices weigh as in a gcn")
        model = experiment.model.model_copy(update={"kind": "gcn", "order": "auto"})
        planned = _plan_alone(experiment.model_copy(update={"model": model}), facts)
    flops, moved = {"vertices": 0.0, "edges": 0.0}, {"vertices": 0.0, "edges": 0.0}
    program = planned.program
    for step in range(program.calendar.steps):
        for op in program.templates[program.calendar.template(1, step)].ops:
            for work in op.work:
                sizes = {name: program.sizes.per_rank(size, 1, step) for name, size in work.sizes.items()}
                alone = {**sizes, "edges": np.zeros(1)} if "edges" in sizes else sizes
                whole, of_vertices = flops_and_bytes(work.primitive, sizes), flops_and_bytes(work.primitive, alone)
                for amounts, everything, without in zip((flops, moved), whole, of_vertices, strict=True):
                    amounts["vertices"] += float(without.sum())
                    amounts["edges"] += float((everything - without).sum())
    return flops, moved


def _plan_alone(experiment: Experiment, facts: GraphFacts) -> Planned:
    """Plan training by one process that owns the whole graph. A graph without features or labels, which can be divided
    but not trained on, counts as if it had the model's hidden width and one class."""
    # Numba: loaded when a graph is partitioned
    from simgnn.partition.local.vertex_cut import BY_HOSTS, BY_REPLICAS, LEVELS, SHARED

    widths = experiment.model.widths(facts.feature_width, facts.classes)
    facts = replace(
        facts,
        feature_width=facts.feature_width or widths[1],
        classes=max(facts.classes, 1),
        train_vertices=max(facts.train_vertices, 1),
    )
    one = np.ones(1, np.int64)
    tables = {f"{name}_rows": one * getattr(facts, f"{name}_vertices") for name in ("train", "validation", "test")}
    tables["block_edges"] = facts.edges * one[:, None]
    tables["cut_edges"] = tables[SHARED] = 0 * one  # nothing is of other ranks
    tables |= {name: np.zeros((0, columns), np.int64) for name, columns in ((BY_REPLICAS, 3), (BY_HOSTS, 4))}
    tables |= dict.fromkeys(LEVELS, np.zeros((0, 3), np.int64))
    if facts.feature_nonzeros is not None:
        # sums over an average neighbourhood in which no two rows store a value in the same column
        reached = min(facts.feature_nonzeros * (1 + facts.edges / facts.vertices), facts.vertices * facts.feature_width)
        tables["feature_nonzeros"] = facts.feature_nonzeros * one
        tables["halo_feature_nonzeros"] = 0 * one[:, None]
        for name in ("aggregated_feature_nonzeros", "neighbor_feature_nonzeros"):
            tables[name] = int(reached) * one
    none = np.zeros(0, np.int32)
    halo = Route(none, none, none.astype(np.int64))
    rows, edges = facts.vertices * one, facts.edges * one
    tables |= ChunkTotals(chunks=1, rho=1.0, phi=1.0, psi=1.0).tables(facts.vertices, rows, edges, halo)
    kind = experiment.communication.cut
    stats = PartitionStats(facts, kind, hosts=0 * one, rows=rows, edges=edges, halo=halo, digest="", tables=tables)
    return plan(experiment.with_cluster(1, 1), stats)
