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
    """The declared cost of a segment; None for built-in layers; "undeclared" where a user's class has no ``work``."""
    if layer.kind in BUILT_IN_LAYERS:
        return None
    declared: Any = getattr(load_user_class(layer.kind), "work", None)
    if declared is None:
        return [Piece("undeclared", {})]
    expected = "expected a list of (primitive, {size: number}) pairs, for example [('matmul', {'rows': rows, ...})]"
    try:
        found = declared(segment, rows, edges, sources, layer.width_in, layer.width_out)
        return [Piece(str(primitive), dict(sizes)) for primitive, sizes in found]
    except Exception as error:  # a user's code: whatever it raises is told as theirs
        raise ConfigError(
            f"model.kind = '{layer.kind}': work('{segment}', ...) gave {type(error).__name__}: {error}; {expected}"
        ) from error


def work_of(
    layer: LayerSpec, segment: str, rows: Size, edges: Size, sources: Size, built_in: list[Piece[Size]]
) -> list[Piece[Size]]:
    """What a user's class declares, even if that is nothing; of a built-in layer: ``built_in``."""
    declared = user_work(layer, segment, rows, edges, sources)
    return built_in if declared is None else declared


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
