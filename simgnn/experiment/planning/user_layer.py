"""What a user's own layer ("package.module:Class") tells the planner: its parameters and, where it says so, its cost.

A class that is to be simulated has a static method ``work(segment, rows, edges, sources, width_in, width_out)`` that
returns (primitive, sizes) pairs for each segment: "prepare", "aggregate", "update" (or "forward"), and the same with
"/backward" behind it. Sizes are whatever was passed in, or numbers. Without it the layer runs, but is not simulated.
"""

from typing import Any

from simgnn.errors import ConfigError
from simgnn.experiment.planning.layers import load_user_class
from simgnn.model.costs import Piece
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec, parameter_count
from simgnn.program.sizes import Size


def user_work(layer: LayerSpec, segment: str, rows: Size, edges: Size, sources: Size) -> list[Piece[Size]] | None:
    """The declared cost of a segment; None for built-in layers; an empty list where a user's class declares none."""
    if layer.kind in BUILT_IN_LAYERS:
        return None
    declared: Any = getattr(load_user_class(layer.kind), "work", None)
    if declared is None:
        return [Piece("undeclared", {})]
    return [
        Piece(primitive, sizes)
        for primitive, sizes in declared(segment, rows, edges, sources, layer.width_in, layer.width_out)
    ]


def parameters_of(layer: LayerSpec) -> int:
    """Number of trainable values of a layer; a user's module is made once to count them."""
    if layer.kind in BUILT_IN_LAYERS:
        return parameter_count(layer)
    found = load_user_class(layer.kind)
    try:
        module = found(layer.width_in, layer.width_out, activation=layer.activation)
    except TypeError as error:
        raise ConfigError(
            f"model.kind = '{layer.kind}': the class is made as Class(width_in, width_out, activation=bool), which "
            f"raised: {error}"
        ) from error
    return sum(int(parameter.numel()) for parameter in module.parameters())
