"""The layers of a model as kinds, widths and options, without torch. Dropout shares are whole numbers of 65,536ths."""

import math
from dataclasses import dataclass
from typing import Literal

STEPS = 1 << 16
"""A mask draws 16 bits an element, so that shares are whole numbers of 65,536ths."""


def dropped_steps(share: float) -> int:
    """Convert a share of dropped elements, in 0..1, to the nearest whole number of 65,536ths (``STEPS``)."""
    return round(share * STEPS)


def kept_share(steps: int) -> float:
    """Return the share of elements that remain if ``steps`` of ``STEPS`` are dropped; exact in float32 too."""
    return (STEPS - steps) / STEPS


Order = Literal["aggregate-first", "transform-first"]
Activation = Literal["none", "relu", "elu"]
"""What follows a layer's sums: nothing, max(x, 0), or x where that is positive and exp(x) - 1 elsewhere."""
BUILT_IN_LAYERS = ("gcn", "sage", "gin", "gat")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer, on rows x of width ``width_in``; layers are numbered 1..L.

    ``kind``: gcn, sage, gin, gat or "package.module:Class". ``order``: whether rows are aggregated before or after the
    dense transform. ``activation``: whether ``function`` follows the layer (all but the last). ``dropout``: share of
    its output's elements that training sets to zero, see :func:`dropped_steps`. ``hoisted``: the input of the
    aggregation is constant, so it is computed once (layer 1, aggregate-first, inputs exchanged once). ``sparse_input``:
    rows are a sparse feature matrix. ``centred_input``: in products their mean is subtracted, by one more column than
    ``width_in``. ``hidden``: width inside the MLP of GIN. ``prepared_width``: width of the rows that are aggregated and
    exchanged. ``whole``: a user's module with only ``forward(csr, rows)``, run as one segment. ``heads``: of attention
    (gat only).

    ``sums_inputs``: although ``order`` is transform-first, forward sums rows before it transforms them, since (A x) W
    is A (x W). Backward keeps the order, so that summed gradients have the width of the layer's output.
    ``gradient_limit``: largest Frobenius norm of a rank's gradient of the output before the activation; 0: none.
    ``weighted``: edges have weights, by which the sums multiply rows."""

    index: int
    kind: str
    width_in: int
    width_out: int
    order: Order = "aggregate-first"
    activation: bool = True
    hoisted: bool = False
    sparse_input: bool = False
    hidden: int = 0
    prepared_width: int = 0
    whole: bool = False
    heads: int = 0
    sums_inputs: bool = False
    gradient_limit: float = 0.0
    centred_input: bool = False
    function: Literal["relu", "elu"] = "relu"
    dropout: float = 0.0
    weighted: bool = False

    @property
    def follows(self) -> Activation:
        """The activation function after the layer, or "none"."""
        return self.function if self.activation else "none"

    @property
    def dropped(self) -> int:
        """How many 65,536ths of the output's elements are dropped."""
        return dropped_steps(self.dropout)

    @property
    def has_prepare(self) -> bool:
        """Whether rows are transformed before they are aggregated."""
        return self.order == "transform-first"

    @property
    def uses_own_rows(self) -> bool:
        """Whether the update reads the layer's own input rows besides the aggregate."""
        return self.kind not in ("gcn", "gat")

    @property
    def adds_own_rows(self) -> bool:
        """Whether the update adds own rows to the sums before any product."""
        return self.kind == "gin"

    @property
    def attends(self) -> bool:
        """Whether attention weights the sums: a maximum over in-edges comes first, then sums of weighted rows and of
        weights. The attention's parameters are trained in these segments."""
        return self.heads > 0

    @property
    def aggregated_width(self) -> int:
        """The width of the sums: of prepared rows, and of each head's weights."""
        return self.prepared_width + self.heads


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The layers in order, and what the loss needs."""

    layers: tuple[LayerSpec, ...]
    classes: int
    multilabel: bool


def parameter_shapes(layer: LayerSpec) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the names and shapes of a built-in layer's parameters, in the order of its module."""
    if layer.kind == "gcn":
        return (("weight", (layer.width_in, layer.width_out)), ("bias", (layer.width_out,)))
    if layer.kind == "sage":
        matrix = (layer.width_in, layer.width_out)
        return (("weight_self", matrix), ("weight_neighbor", matrix), ("bias", (layer.width_out,)))
    if layer.kind == "gin":
        return (
            ("mlp.0.weight", (layer.hidden, layer.width_in)),
            ("mlp.0.bias", (layer.hidden,)),
            ("mlp.2.weight", (layer.width_out, layer.hidden)),
            ("mlp.2.bias", (layer.width_out,)),
        )
    if layer.kind == "gat":
        per_head = (layer.heads, layer.width_out // layer.heads)
        return (
            ("weight", (layer.width_in, layer.width_out)),
            ("attention_source", per_head),
            ("attention_target", per_head),
            ("bias", (layer.width_out,)),
        )
    raise AssertionError(f"only the module of the user's layer {layer.kind} knows its parameter shapes")


def parameter_count(layer: LayerSpec) -> int:
    """Return the number of trainable values of a built-in layer."""
    return sum(math.prod(shape) for _, shape in parameter_shapes(layer))
