"""Choices about layers that are made once, by cost, and written into the plan: order, hoisting, rows of layer 1."""

from dataclasses import dataclass
from typing import Literal

from simgnn.errors import ConfigError
from simgnn.graph.graph import GraphFacts
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec, ModelSpec, Order
from simgnn.model.user_layer import user_shape


@dataclass(frozen=True)
class LayerChoice:
    """What the experiment asks for. ``order``, ``hoist`` and ``rows`` may be "auto". ``transforms_copies``: copies of
    input rows can be transformed where they are held. ``function`` and ``dropout``: behind every hidden layer."""

    kind: str
    hidden: tuple[int, ...]
    order: str
    hoist: str
    rows: str
    resend_inputs: bool
    heads: int
    epochs: int
    item_bytes: int
    transforms_copies: bool = True
    function: Literal["relu", "elu"] = "relu"
    dropout: float = 0.0


@dataclass(frozen=True)
class PlannedLayers:
    """The layers, and which rows of layer 1 travel: "input" or "transformed"."""

    model: ModelSpec
    rows: str


def plan_layers(choice: LayerChoice, facts: GraphFacts, input_bytes: int, halo_rows: int) -> PlannedLayers:
    """Resolve every ``auto``.

    ``input_bytes``: payload of all halo input rows, sent once; ``halo_rows``: halo rows over all ranks.
    Order of layers 2..L: the narrower side is aggregated. Layer 1 with dense inputs that are exchanged as inputs is
    aggregated first, since that sum is constant and computed once; sparse inputs are transformed first (their sums are
    dense), except by GIN. ``rows = "auto"`` takes fewer payload bytes over the run.
    """
    widths = [facts.feature_width, *choice.hidden, facts.classes]
    sparse = facts.feature_nonzeros is not None
    whole, prepared = user_shape(choice.kind)
    layers: list[LayerSpec] = []
    rows = "input"
    attending = choice.heads if choice.kind == "gat" else 0
    for index in range(1, len(widths)):
        width_in, width_out = widths[index - 1], widths[index]
        order = _order(choice, index, width_in, width_out, sparse, whole)
        if index == 1:
            rows = _rows(choice, order, input_bytes, halo_rows * width_out * choice.item_bytes, whole)
        constant = index == 1 and rows == "input" and not choice.resend_inputs
        hoisted = constant and order == "aggregate-first" and choice.hoist == "auto" and not whole
        if index == 1 and sparse and order == "aggregate-first" and not hoisted:
            raise ConfigError(_sparse_sums(choice, whole))
        layers.append(
            LayerSpec(
                index=index,
                kind=choice.kind,
                width_in=width_in,
                width_out=width_out,
                order=order,
                activation=index < len(widths) - 1,
                hoisted=hoisted,
                sparse_input=index == 1 and sparse,
                centred_input=index == 1 and sparse and facts.centred_features,
                hidden=width_out if choice.kind == "gin" else 0,
                prepared_width=prepared(width_in, width_out) if prepared else _width(order, width_in, width_out),
                whole=whole,
                heads=1 if attending and index == len(widths) - 1 else attending,
                function=choice.function,
                dropout=choice.dropout if index < len(widths) - 1 else 0.0,
            )
        )
    return PlannedLayers(ModelSpec(tuple(layers), facts.classes, facts.multilabel), rows)


def _sparse_sums(choice: LayerChoice, whole: bool) -> list[str]:
    """Why sums of sparse features cannot be made anew in every epoch, and what to set instead, key by key."""
    why = "the graph's features are sparse, and layer 1 sums them before it transforms them, which is done only once"
    if whole:
        return [
            f"model.kind: got '{choice.kind}', a class with only forward, expected one with prepare, aggregate and "
            "update: the graph's features are sparse, and sums of them are not made in every epoch; give it these "
            "methods, so that it transforms rows first"
        ]
    found = []
    if choice.hoist != "auto":
        found.append(f"model.hoist: got '{choice.hoist}', expected 'auto': {why}; set model.hoist = 'auto'")
    if choice.resend_inputs:
        found.append(
            f"communication.resend_inputs: got true, expected false: {why}; set communication.resend_inputs = false"
        )
    return found


def _width(order: Order, width_in: int, width_out: int) -> int:
    return width_out if order == "transform-first" else width_in


def _order(choice: LayerChoice, index: int, width_in: int, width_out: int, sparse: bool, whole: bool) -> Order:
    if choice.kind not in BUILT_IN_LAYERS:
        return "aggregate-first" if whole or choice.order == "aggregate-first" else "transform-first"
    if choice.kind == "gin":
        if choice.order == "transform-first" or (index == 1 and choice.rows == "transformed"):
            raise ConfigError(
                "model.order: GIN sums rows before its MLP, so that only 'aggregate-first' (or 'auto') and "
                "communication.rows = 'input' (or 'auto') are available; got "
                f"order = '{choice.order}', rows = '{choice.rows}'"
            )
        return "aggregate-first"
    if choice.kind == "gat":
        if choice.order == "aggregate-first":
            raise ConfigError(
                "model.order: attention compares transformed rows, so that model.kind = 'gat' has only "
                "'transform-first' (or 'auto'); got 'aggregate-first'"
            )
        return "transform-first"
    if index == 1 and choice.rows == "transformed":
        if choice.order == "aggregate-first":
            raise ConfigError(
                "communication.rows = 'transformed' sends layer 1's rows after its transform, but "
                "model.order = 'aggregate-first' transforms them later; use 'transform-first' or 'auto'"
            )
        return "transform-first"
    if choice.order == "aggregate-first" or choice.order == "transform-first":
        return "aggregate-first" if choice.order == "aggregate-first" else "transform-first"
    if index == 1 and sparse:
        return "transform-first"
    if index == 1 and choice.hoist == "auto" and not choice.resend_inputs:
        return "aggregate-first"
    return "transform-first" if width_out < width_in else "aggregate-first"


def _rows(choice: LayerChoice, order: Order, input_bytes: int, transformed_bytes: int, whole: bool) -> str:
    if choice.rows == "auto" and order == "transform-first" and not whole:
        if not choice.transforms_copies:
            return "transformed"
        sends = choice.epochs if choice.resend_inputs else 1
        return "input" if input_bytes * sends <= 2 * choice.epochs * transformed_bytes else "transformed"
    return "input" if choice.rows == "auto" else choice.rows
