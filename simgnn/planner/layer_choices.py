"""Choices about layers that are made once, by cost, and written into the plan: order, hoisting, rows of layer 1."""

from dataclasses import dataclass

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.sections import ModelSection
from simgnn.graph.graph import GraphFacts
from simgnn.model.spec import LayerSpec, ModelSpec, Order
from simgnn.model.user_layer import user_shape
from simgnn.program.ops import ITEM_BYTES


@dataclass(frozen=True)
class InputRows:
    """How a communication handles the input rows of layer 1; the defaults are those of mini-batches.

    ``rows``: what layer 1 exchanges, "input", "transformed" or "auto"; ``resent``: they travel in every epoch;
    ``transforms_copies``: ranks can transform the copies that they hold; ``payload``: bytes of all halo input rows,
    sent once; ``copied``: halo rows over all ranks. ``sums_first``: rows are summed before they are transformed, unless
    layers attend."""

    rows: str = "input"
    resent: bool = True
    transforms_copies: bool = True
    payload: int = 0
    copied: int = 0
    sums_first: bool = False


def plan_layers(experiment: Experiment, facts: GraphFacts, ranks: int, inputs: InputRows) -> tuple[ModelSpec, str]:
    """Return the layers, and which rows of layer 1 travel, "input" or "transformed": every ``auto`` is resolved.

    Order of layers 2..L: the narrower side is aggregated. Layer 1 with dense inputs that are exchanged as inputs is
    aggregated first, since that sum is constant and computed once; sparse inputs are transformed first (their sums are
    dense), except by GIN. ``rows = "auto"`` chooses fewer payload bytes over the run."""
    model, train = experiment.model, experiment.train
    widths = model.widths(facts.feature_width, facts.classes)
    sparse, last = facts.feature_nonzeros is not None, model.layers
    whole, prepared = user_shape(model.kind)
    function = model.function(sampled=experiment.sampling is not None)
    layers: list[LayerSpec] = []
    rows = "input"
    for index in range(1, last + 1):
        width_in, width_out = widths[index - 1], widths[index]
        order = _order(model, inputs, index, width_in, width_out, sparse, whole)
        if index == 1:
            transformed = inputs.copied * width_out * ITEM_BYTES[train.dtype]
            rows = _rows(inputs, order, transformed, train.epochs, whole)
        constant = index == 1 and rows == "input" and not inputs.resent
        hoisted = constant and order == "aggregate-first" and model.hoist == "auto" and not whole
        if index == 1 and sparse and order == "aggregate-first" and not hoisted:
            raise ConfigError(_sparse_sums(model, inputs, whole))
        width = width_out if order == "transform-first" else width_in
        layers.append(
            LayerSpec(
                index=index,
                kind=model.kind,
                width_in=width_in,
                width_out=width_out,
                order=order,
                activation=index < last,
                hoisted=hoisted,
                sparse_input=index == 1 and sparse,
                centred_input=index == 1 and sparse and facts.centred_features,
                hidden=width_out if model.nonlinear else 0,
                prepared_width=prepared(width_in, width_out) if prepared else width,
                whole=whole,
                heads=(1 if index == last else model.heads) if model.attends else 0,
                gradient_limit=train.gradient_limit(ranks),
                function=function,
                dropout=model.dropout if index < last else 0.0,
                weighted=facts.weighted,
            )
        )
    return ModelSpec(tuple(layers), facts.classes, facts.multilabel), rows


def _sparse_sums(model: ModelSection, inputs: InputRows, whole: bool) -> list[str]:
    """Explain why sums of sparse features cannot be computed in every epoch, and what to set instead, key by key."""
    why = "the graph's features are sparse, and layer 1 sums them before it transforms them, which is done only once"
    if whole:
        return [
            f"model.kind: got '{model.kind}', which has only forward, but the graph's features are sparse: they are "
            "multiplied by weights before neighbours are summed, and forward does both at once. Split it into prepare, "
            "aggregate and update (docs/own_layer.md), or store the features as a dense array"
        ]
    found = []
    if model.hoist != "auto":
        found.append(f"model.hoist: got '{model.hoist}', expected 'auto': {why}; set model.hoist = 'auto'")
    if inputs.resent:
        key = "communication.resend_inputs"
        found.append(f"{key}: got true, expected false: {why}; set {key} = false")
    return found


def _order(
    model: ModelSection, inputs: InputRows, index: int, width_in: int, width_out: int, sparse: bool, whole: bool
) -> Order:
    """Choose the order of a layer. Contradictions within ``[model]`` were rejected when the experiment was loaded."""
    if not model.built_in:
        return "aggregate-first" if whole or model.order == "aggregate-first" else "transform-first"
    transformed = index == 1 and inputs.rows == "transformed"
    if transformed and model.aggregates_first:
        raise ConfigError(
            f"communication.rows: got 'transformed' with {model.aggregates_first}, expected 'auto' or 'input': rows "
            "are aggregated before they are transformed"
        )
    if model.nonlinear:
        return "aggregate-first"
    if model.attends or transformed:
        return "transform-first"
    if inputs.sums_first:
        return "aggregate-first"
    if model.order != "auto":
        return model.order
    if index == 1 and sparse:
        return "transform-first"
    if index == 1 and model.hoist == "auto" and not inputs.resent:
        return "aggregate-first"
    return "transform-first" if width_out < width_in else "aggregate-first"


def _rows(inputs: InputRows, order: Order, transformed: int, epochs: int, whole: bool) -> str:
    if inputs.rows == "auto" and order == "transform-first" and not whole:
        if not inputs.transforms_copies:
            return "transformed"
        sends = epochs if inputs.resent else 1
        return "input" if inputs.payload * sends <= 2 * epochs * transformed else "transformed"
    return "input" if inputs.rows == "auto" else inputs.rows
