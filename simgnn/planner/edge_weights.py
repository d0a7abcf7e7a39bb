"""Which models and systems can use the weights of edges; others are rejected on a weighted graph."""

from typing import TYPE_CHECKING

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import GraphFacts
from simgnn.model.user_layer import load_user_class

if TYPE_CHECKING:
    from simgnn.graph.graph import Graph

NORMALISED = ("gcn", "sage")
"""Layers that divide by sums of weights, which must not be negative."""
REMEDY = "train without weights (graph.weights = 'ignore')"


def check_weights_used(experiment: Experiment, facts: GraphFacts) -> None:
    """Raise :class:`ConfigError` if edges have weights that the model or the batching of the experiment cannot use."""
    if not facts.weighted:
        return
    model, batching = experiment.model, experiment.batching
    problems = []
    remedy = "make the statistics anew without them" if experiment.graph.source.startswith("stats:") else REMEDY
    if model.attends:
        problems.append(
            f"model.kind: got '{model.kind}' with a graph whose edges have weights, expected gcn, sage or gin: "
            f"attention computes the weight of an edge itself; {remedy}"
        )
    elif not model.built_in and getattr(load_user_class(model.kind), "edge_weights", False) is not True:
        problems.append(
            f"model.kind: got '{model.kind}' with a graph whose edges have weights, expected a class that declares "
            "edge_weights = True and uses csr.weights (docs/edge_weights.md); change the class, or "
            f"{remedy}"
        )
    if batching.mini_batches:
        problems.append(
            f"batching.kind: got '{batching.label}' with a graph whose edges have weights, expected 'full': neighbours "
            f"are sampled and averaged without weights; {remedy}"
        )
    if problems:
        raise ConfigError(problems)


def check_weights(experiment: Experiment, graph: "Graph") -> None:
    """Raise what :func:`check_weights_used` raises, or :class:`GraphError` for values that the model cannot use."""
    check_weights_used(experiment, graph.facts())
    if graph.csr.weights is not None:
        # Numba: loaded when a graph is prepared
        from simgnn.graph.weights import check_usable

        check_usable(graph.csr, experiment.model.kind in NORMALISED, experiment.train.dtype)
