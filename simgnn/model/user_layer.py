"""A user's own layer ("package.module:Class"): its parameters and, if the class declares it, its cost.

A class that is to be simulated has a static method ``work(segment, rows, edges, sources, width_in, width_out)`` that
returns (primitive, sizes) pairs for each segment: "prepare", "aggregate", "update" (or "forward"), and each with
"/backward" appended. Sizes are the values passed in, or numbers. Without it the layer runs, but is not simulated."""

import importlib
from typing import Any, TypeVar

from simgnn.errors import ConfigError
from simgnn.model.costs import Piece
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec, parameter_count
from simgnn.outside import fault_of_import

SEGMENTS = ("prepare", "aggregate", "update")
T = TypeVar("T")


def user_shape(kind: str) -> tuple[bool, Any]:
    """Return whether a user's layer "package.module:Class" has only ``forward``, and its ``prepared_width`` if any.

    Raises :class:`ConfigError` for a class that cannot be imported or is no layer; built-in kinds always pass."""
    if kind in BUILT_IN_LAYERS:
        return False, None
    found = load_user_class(kind)
    missing = [segment for segment in SEGMENTS if not callable(getattr(found, segment, None))]
    if missing and not _defines_forward(found):
        raise ConfigError(
            f"model.kind = '{kind}': the class has neither forward(csr, rows) nor all of prepare, aggregate, update; "
            f"missing: {', '.join(missing)}"
        )
    return bool(missing), None if missing else getattr(found, "prepared_width", None)


def _defines_forward(found: Any) -> bool:
    """Whether a class implements ``forward``; torch's own Module only names it."""
    owner = next((base for base in getattr(found, "__mro__", ()) if "forward" in vars(base)), None)
    return owner is not None and not owner.__module__.startswith("torch.nn.modules.module")


def load_user_class(kind: str) -> Any:
    """Import "package.module:Class"; raises :class:`ConfigError` if importing it fails or there is no such class."""
    module_name, _, class_name = kind.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"model.kind = '{kind}': cannot import '{module_name}' ({error}); put its folder on PYTHONPATH, "
            f"or use a built-in layer: {', '.join(BUILT_IN_LAYERS)}"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise ConfigError(
            f"model.kind = '{kind}': importing '{module_name}' raised {fault_of_import(error)}; correct that file"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise ConfigError(f"model.kind = '{kind}': module '{module_name}' has no class '{class_name}'")
    return found


def work_of(layer: LayerSpec, segment: str, rows: T, edges: T, sources: T, built_in: list[Piece[T]]) -> list[Piece[T]]:
    """Return the cost of a segment: ``built_in`` for a built-in layer, else what the user's class declares (maybe an
    empty list), or one piece named "undeclared" if the class has no ``work``."""
    if layer.kind in BUILT_IN_LAYERS:
        return built_in
    declared: Any = getattr(load_user_class(layer.kind), "work", None)
    if declared is None:
        return [Piece("undeclared", {})]
    expected = "expected a list of (primitive, {size: number}) pairs, for example [('matmul', {'rows': rows, ...})]"
    try:
        found = declared(segment, rows, edges, sources, layer.width_in, layer.width_out)
        return [Piece(str(primitive), dict(sizes)) for primitive, sizes in found]
    except Exception as error:  # a user's code: whatever it raises is reported as theirs
        raise ConfigError(
            f"model.kind = '{layer.kind}': work('{segment}', ...) gave {type(error).__name__}: {error}; {expected}"
        ) from error


def parameters_of(layer: LayerSpec) -> int:
    """Return the number of trainable values of a layer; a user's module is instantiated once to count them."""
    if layer.kind in BUILT_IN_LAYERS:
        return parameter_count(layer)
    found = load_user_class(layer.kind)
    try:
        module = found(layer.width_in, layer.width_out, activation=layer.activation)
    except (Exception, SystemExit) as error:  # whatever a user's class raises
        reason = error if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"model.kind = '{layer.kind}': Class(width_in, width_out, activation=bool) raised: {reason}"
        ) from error
    return sum(int(parameter.numel()) for parameter in module.parameters())
