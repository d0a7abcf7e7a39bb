"""Uses the trained model of a run, for ``simgnn export`` and ``simgnn infer``."""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from simgnn.api.executor_process import check_executor, start_executor
from simgnn.errors import ConfigError, GraphError
from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import Graph
from simgnn.graph.load import with_centred_features
from simgnn.graph.store import graph_digest
from simgnn.limits import MAX_RANKS
from simgnn.model.user_layer import user_shape
from simgnn.outputs import check_output_file, make_parent
from simgnn.outside import outside_data
from simgnn.partition.local.shards import shard_artifact
from simgnn.planner.directory import write_run_directory
from simgnn.planner.edge_weights import check_weights
from simgnn.planner.inference import inference_experiment, plan_inference, with_classes
from simgnn.planner.prepare import Prepared, obtain_partition, read_graph
from simgnn.progress import Progress
from simgnn.record.plan import read_plan
from simgnn.record.rundir import RunDirectory, write_table
from simgnn.record.scores import accuracies, embeddings_table, scores_table
from simgnn.record.trained import (
    FEATURE_MEAN,
    VERTEX_VECTORS,
    Trained,
    Which,
    find_own_layers,
    open_trained,
    score_file,
)
from simgnn.tomlfile import deep_merge, load_toml, parse_override

MODULE, TABLE = ".py", ".parquet"
IMPORTED = ("torch", "torch_geometric", "numpy")
"""Packages that exported modules import, beside Python's own."""
COPY = "copy the run's directory again"


def which_weights(text: str) -> Which:
    """Return the weights that ``--weights`` names. Raises :class:`ConfigError` for another word."""
    if text not in ("last", "best"):
        raise ConfigError(
            f"--weights: got '{text}', expected last or best (the epoch with the best validation accuracy)"
        )
    return "last" if text == "last" else "best"


def export_run(run: Path, target: str, which: Which, out: Path, force: bool, tell: Callable[[str], None]) -> None:
    """Write the trained model of a finished run as a plain PyTorch module ``out``, with its weights beside it.

    ``target``: "pyg" or "torch"; ``tell`` is called with sentences for the user. Raises :class:`ConfigError` for a run
    without the model, and for an ``out`` that is no Python file or exists, unless ``force`` is set."""
    if target not in ("pyg", "torch"):
        raise ConfigError(f"--to: got '{target}', expected pyg (layers of PyTorch Geometric) or torch (plain torch)")
    check_output_file(out, "--out")
    named = out.stem.isidentifier() and not iskeyword(out.stem)
    if out.suffix != MODULE or not named or out.stem in {*sys.stdlib_module_names, *IMPORTED}:
        why = ", which would hide the module of that name" if named and out.suffix == MODULE else ""
        raise ConfigError(
            f"--out: got {out}{why}; expected a Python module to write, such as {out.with_name('model.py')}"
        )
    trained = open_trained(run, which)
    files = [out, out.with_suffix(".pt")]
    files += [out.with_name(f"{out.stem}_layers.py")] if trained.described.own_layers is not None else []
    taken = [str(file) for file in files if file.exists()]
    if taken and not force:
        raise ConfigError(f"--out: {', '.join(taken)} exists already; name another file, or replace it with --force")
    arguments = ["--to", target, "--weights", which, "--out", str(out)]
    start_executor(run, arguments, tell, command="export")


@dataclass(frozen=True)
class Inferred:
    """What :func:`infer_run` wrote. ``accuracy``: by split, None without labels of these classes.
    ``embeds``: the file holds embeddings, of a model that was trained without labels."""

    out: Path
    graph: str
    vertices: int
    epoch: int
    metric: str
    accuracy: Mapping[str, float | None] | None
    embeds: bool = False


def infer_run(
    run: Path, source: str | None, overrides: Sequence[str], ranks: int, which: Which, out: Path, progress: Progress
) -> Inferred:
    """Compute the scores of all vertices with the trained model of a run, on ``ranks`` ranks of this machine, and write
    them to the Parquet file ``out``.

    ``source``: the graph, as ``graph.source`` names one; None: the run's own. ``overrides``: options of the graph, such
    as "graph.vertices=100". Raises :class:`ConfigError` or :class:`GraphError` for a run without a model, or a graph
    that does not suit it."""
    check_executor()
    check_output_file(out, "--out")
    if out.suffix != TABLE:
        raise ConfigError(f"--out: got {out}, expected a file that ends with {TABLE}")
    if not 1 <= ranks <= MAX_RANKS:
        raise ConfigError(f"--ranks: got {ranks}, expected 1..{MAX_RANKS}")
    trained = open_trained(run, which)
    described, recorded = trained.described, RunDirectory(run).experiment
    stated = load_toml(recorded)
    with outside_data(recorded, "record of an experiment", remedy=COPY, error=ConfigError):
        table = _graph_table(stated["graph"], source, overrides)
        experiment = inference_experiment(stated, table, described.layers[0].function, ranks)
    find_own_layers(run)
    user_shape(described.kind)  # raises before minutes go into graph and partition
    graph = read_graph(experiment, None, progress)
    if source is None:
        _check_unchanged(graph, run, bool(stated["graph"].get("centre", False)))
    _check_weights(experiment, graph, trained, progress)
    graph = _with_inputs(graph, trained, source)
    artifact = obtain_partition(experiment, graph, None, progress)
    stats = with_classes(artifact.stats, described.classes, described.multilabel)
    prepared = Prepared(experiment, stats, plan_inference(experiment, stats), graph, artifact)
    shards = shard_artifact(graph, artifact, described.dtype)
    make_parent(out)
    with tempfile.TemporaryDirectory(prefix=f".{out.stem}.", dir=out.parent) as folder:
        root = write_run_directory(prepared, Path(folder) / "plan", None, shards=shards.path)
        progress.stage(f"scores: {graph.vertices:,} vertices on {ranks} rank{'s' if ranks > 1 else ''}")
        words = ["--run", str(run.resolve()), "--weights", which]
        start_executor(root, words, progress.stage, command="infer")
        scores = np.empty((graph.vertices, described.classes), described.dtype)
        for rank in range(ranks):
            scores[artifact.owned(rank)] = np.load(score_file(root, rank))
        vertices = np.arange(graph.vertices, dtype=np.int64) if graph.vertex_ids is None else graph.vertex_ids
        made = Path(folder) / out.name
        names = graph.class_names if source is None else described.class_names
        if described.embeds:
            write_table(embeddings_table(scores, vertices), made)
        else:
            write_table(scores_table(scores, described.multilabel, vertices, names), made)
        os.replace(made, out)
    alike = (graph.classes, graph.multilabel) == (described.classes, described.multilabel)
    # a graph whose labels are other words numbers its classes otherwise
    alike = alike and (source is None or graph.class_names == described.class_names)
    found = accuracies(scores, graph) if alike and graph.labels is not None else None
    if described.embeds:
        found = None  # no column is a class
    metric = "micro-F1" if described.multilabel else "accuracy"
    return Inferred(out, graph.name, graph.vertices, trained.kept.epoch, metric, found, described.embeds)


def _graph_table(stated: Mapping[str, Any], source: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Return ``[graph]`` for a forward pass: the run's, or that of another graph, which is symmetrised as the run's and
    whose weights of edges are ignored if the run ignored them."""
    table: dict[str, Any] = {key: value for key, value in stated.items() if key != "centre"}  # by the run's own mean
    if source is not None:
        kept = {key: stated[key] for key in ("symmetrise", "weights") if key in stated}
        table = {**kept, "source": source}
    elif overrides:
        raise ConfigError(
            f"--set: got {overrides[0]} without --graph, expected none: the run's own graph has its options"
        )
    for text in overrides:
        changed = parse_override(text)
        if set(changed) != {"graph"} or "source" in changed["graph"] or "centre" in changed["graph"]:
            raise ConfigError(
                f"--set: got '{text}', expected an option of the graph that --graph names, such as graph.vertices=100 "
                "(features are centred as the run did it)"
            )
        table = deep_merge({"graph": table}, changed)["graph"]
    return table


def _check_unchanged(graph: Graph, run: Path, centred: bool) -> None:
    """Raise :class:`GraphError` if the graph that a run names is no longer the one that it trained on."""
    trained_on = read_plan(RunDirectory(run).plan / "plan.json").graph_digest
    whole = with_centred_features(graph, graph.name) if centred else graph
    if trained_on is not None and graph_digest(whole) != trained_on:
        raise GraphError(
            f"RUN: graph '{graph.name}' has changed since {run} was trained on it; expected the same graph: restore "
            "it, or name the one to compute scores of (--graph)"
        )


def _check_weights(experiment: Experiment, graph: Graph, trained: Trained, progress: Progress) -> None:
    """Raise :class:`ConfigError` or :class:`GraphError` for weights of edges that the model cannot use. A graph without
    any suits every model: its weights are 1, and ``progress`` gets a line about it if the model was trained
    with weights."""
    check_weights(experiment, graph)
    if graph.csr.weights is None and trained.described.weighted:
        progress.stage(
            f"weights: the model was trained with weights of edges, but graph '{graph.name}' has none, or only ones: "
            "each edge counts as 1"
        )
    if graph.csr.weights is not None and not trained.described.weighted:
        raise GraphError(
            f"graph '{graph.name}' has weights of edges, but the model of {trained.root} was trained without; leave "
            "them out (--set graph.weights=ignore)"
        )


def _with_inputs(graph: Graph, trained: Trained, source: str | None) -> Graph:
    """Return the graph with the rows that layer 1 reads. Raises :class:`GraphError` for features of another width."""
    inputs = trained.described.inputs
    if graph.features is None:
        raise GraphError(
            f"graph '{graph.name}' has no features, expected {inputs.feature_width} a vertex, as the model of "
            f"{trained.root} reads"
        )
    width = int(graph.features.shape[1])
    if width != inputs.feature_width:
        raise GraphError(
            f"graph '{graph.name}' has {width} features a vertex, expected {inputs.feature_width}, as the model of "
            f"{trained.root} reads"
        )
    with outside_data(trained.weights, "file of weights", remedy=COPY, error=ConfigError):
        tensors = load_file(trained.weights)
        if inputs.centred:
            graph = with_centred_features(graph, graph.name, tensors[FEATURE_MEAN])
    if not inputs.vector_width:
        return graph
    if source is not None:
        raise GraphError(
            f"--graph: got {source}, expected none: the model of {trained.root} learned a vector for each vertex of "
            "its own graph (placement.sparse_embedding), and has none for others"
        )
    features: Any = graph.features
    rows = features if isinstance(features, np.ndarray) else features.toarray()
    with outside_data(trained.weights, "file of weights", remedy=COPY, error=ConfigError):
        return replace(graph, features=np.concatenate((rows, tensors[VERTEX_VECTORS]), axis=1))
