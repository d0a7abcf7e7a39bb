"""Plans the forward pass of a trained model: scores of all vertices of a graph, on any number of ranks.

Whatever system trained the model, its layers run on the full graph: ranks hold an edge-cut and exchange halo rows, all
rows exact. Our decision: evaluations of all systems compute the same scores, up to rounding."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.names import Names
from simgnn.emit.segments import Segments
from simgnn.experiment.schema import Experiment
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.model.user_layer import parameters_of
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.full_graph import FullGraphPlan
from simgnn.planner.make_plan import ChosenTransfers, Planned, arrange_layers
from simgnn.planner.update import add_features, add_topology
from simgnn.program.calendar import EVALUATE, Calendar
from simgnn.program.validate import validate

TRAINING = ("hoist", "dropout")
"""Options of ``[model]`` that only matter when it is trained, or that the plan chooses anew."""


def inference_experiment(
    trained: Mapping[str, Any], graph: Mapping[str, Any], function: Literal["relu", "elu"], ranks: int
) -> Experiment:
    """Return the experiment that a forward pass is planned from. ``trained``: the table of the experiment that trained
    the model; ``graph``: the table ``[graph]`` of the graph to compute scores of; ``function``: the activation."""
    model = {key: value for key, value in trained["model"].items() if key not in TRAINING}
    if model["kind"] in BUILT_IN_LAYERS:
        model |= {"order": "auto", "activation": function}
    table = {
        "name": "scores",
        "seed": trained["seed"],
        "graph": dict(graph),
        "model": model,
        "cluster": {"hosts": 1, "ranks_per_host": ranks},
        "train": {"epochs": 1, "dtype": trained["train"]["dtype"]},
    }
    return Experiment.from_table(table, stated=lambda path: False)


def with_classes(stats: PartitionStats, classes: int, multilabel: bool) -> PartitionStats:
    """Return the statistics of a graph as if its labels were those that a model was trained on."""
    return replace(stats, facts=replace(stats.facts, classes=classes, multilabel=multilabel))


def plan_inference(experiment: Experiment, stats: PartitionStats) -> Planned:
    """Plan the forward pass of a model on a partition of a graph; ``stats``: from :func:`with_classes`.

    The program has an evaluation and no training; its last op writes the scores of each rank's vertices into the buffer
    "hidden/L" of the last layer L. Raises :class:`ConfigError` for features that the layers cannot read."""
    found = arrange_layers(experiment, stats)
    stats, layers = found.stats, found.model.layers
    hosts = [int(host) for host in stats.hosts]
    builder = ProgramBuilder(experiment.name, hosts, experiment.train.dtype, experiment.schedule)
    first = layers[0]
    names = Names(
        **found.sizes.add_to(builder, aggregated=first.hoisted and first.sparse_input),
        train=(),
        forward=(EVALUATE,),
        setup=(EVALUATE,),
    )
    add_features(builder, first, names)
    add_topology(builder, first, names, stats)
    for layer in layers:
        builder.buffer(f"parameters/{layer.index}", 1, parameters_of(layer), persistent=True, inner=True)
    segments = Segments(builder, found.model, names)
    transfers = ChosenTransfers(experiment.freshness, experiment.codec, builder)
    sums = found.sizes.sums(segments, transfers, found.rows, names.setup)
    full_graph = FullGraphPlan(segments, sums)
    full_graph.inputs()
    for layer in layers:
        full_graph.forward(layer)
    program = validate(builder.build(Calendar(steady=EVALUATE)))
    return Planned(program, layers, found.resolved)
