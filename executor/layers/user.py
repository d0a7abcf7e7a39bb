"""A user's own layer, named in the experiment as "package.module:Class"."""

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from executor.layers.builtin import Functions
from executor.layers.local import LocalAdjacency
from simgnn.errors import ConfigError
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec
from simgnn.outside import fault_of_import
from simgnn.program.kinds import Segment

SEGMENTS = ("prepare", "aggregate", "update")


def segments(module: type | nn.Module) -> tuple[str, ...]:
    """The segments of a layer (class or instance): ("prepare", "aggregate", "update"), or ("forward",) where only
    ``forward(csr, rows)`` is defined. Raises :class:`ConfigError` (model.kind) naming the missing methods otherwise."""
    owner = module if isinstance(module, type) else type(module)
    missing = [name for name in SEGMENTS if not callable(getattr(owner, name, None))]
    if not missing:
        return SEGMENTS
    if getattr(owner, "forward", None) not in (None, nn.Module.forward):
        return ("forward",)
    raise ConfigError(
        f"model.kind: got the class '{owner.__module__}:{owner.__qualname__}', which has neither forward(csr, rows) "
        "nor all of prepare(rows), aggregate(csr, prepared), update(aggregated, own); "
        f"add forward, or the missing: {', '.join(missing)}"
    )


def load_layer_class(kind: str) -> type[nn.Module]:
    """Import the class that model.kind names; a :class:`ConfigError` says what could not be found."""
    module_name, colon, class_name = kind.partition(":")
    expected = f"expected one of {', '.join(BUILT_IN_LAYERS)} or 'package.module:Class'"
    if not colon or not module_name or not class_name:
        raise ConfigError(f"model.kind: got '{kind}', {expected}")
    try:
        owner: Any = getattr(importlib.import_module(module_name), class_name, None)
    except ImportError as error:
        raise ConfigError(
            f"model.kind: got '{kind}', {expected}; importing '{module_name}' failed ({error}): "
            "put its folder on PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise ConfigError(
            f"model.kind: got '{kind}', but importing '{module_name}' raised {fault_of_import(error)}: correct it"
        ) from error
    if not inspect.isclass(owner) or not issubclass(owner, nn.Module):
        raise ConfigError(f"model.kind: got '{kind}', {expected}; '{class_name}' is not a torch.nn.Module class there")
    segments(owner)
    return owner


class UserLayer(nn.Module):
    """Wraps a user's module so that it is called like a built-in layer; parameters keep their names, below ``module``.

    The class is made as ``Class(width_in, width_out, activation=bool)`` and applies its activation itself. Its segments
    are ``prepare(rows)``, ``aggregate(csr, prepared)`` (prepared own rows, then prepared halo rows, one tensor
    [n + h, F]) and ``update(aggregated, own)``; or it has only ``forward(csr, rows)``. ``csr`` is a
    :class:`executor.layers.local.Neighbourhood`. Rows may be constant sparse CSR tensors in layer 1.
    """

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.spec = spec
        owner = load_layer_class(spec.kind)
        try:
            self.module = owner(spec.width_in, spec.width_out, activation=spec.activation)
        except TypeError as error:
            raise ConfigError(
                f"model.kind: got '{spec.kind}', expected a class that is made as Class(width_in, width_out, "
                f"activation=bool), which raised: {error}"
            ) from error
        self.segments = segments(owner)

    @property
    def reduction(self) -> str:
        """The module's attribute ``reduction``: how partial aggregates combine; "sum" if it has none."""
        return str(getattr(self.module, "reduction", "sum"))

    def functions(self) -> Functions:
        """Return the layer's functions over a rank's edges, by segment."""
        return {
            Segment.PREPARE: self.prepare,
            Segment.AGGREGATE: self.aggregate,
            Segment.UPDATE: self.update,
            Segment.FORWARD: self.forward,
        }

    def prepare(self, rows: torch.Tensor) -> torch.Tensor:
        return self.module.prepare(rows)  # type: ignore[operator, no-any-return]

    def aggregate(self, csr: LocalAdjacency, prepared: torch.Tensor, halo: torch.Tensor | None = None) -> torch.Tensor:
        """Call the module's ``aggregate`` with own and halo rows in one tensor."""
        return self.module.aggregate(csr.neighbourhood(), _joined(prepared, halo))  # type: ignore[operator, no-any-return]

    def update(self, aggregated: torch.Tensor, own: torch.Tensor | None = None) -> torch.Tensor:
        return self.module.update(aggregated, own)  # type: ignore[operator, no-any-return]

    def forward(self, csr: LocalAdjacency, rows: torch.Tensor, halo: torch.Tensor | None = None) -> torch.Tensor:
        """The whole layer in one call, for modules without segments: [n, width_out]."""
        return self.module(csr.neighbourhood(), _joined(rows, halo))  # type: ignore[no-any-return]


def _joined(inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
    return inner if halo is None or not len(halo) else torch.cat((inner, halo))


def check_recomputed(layers: Iterable[nn.Module]) -> None:
    """Raise :class:`ConfigError` (model.kind) for a layer of the user's own with a module that may give other rows when
    a chunk is computed again, or that depends on which rows share a chunk. The error names the module."""
    for layer in layers:
        for name, module in layer.named_modules():
            if isinstance(module, UNLIKE_ON_COPIES) and isinstance(layer, UserLayer):
                raise ConfigError(
                    f"model.kind: got '{layer.spec.kind}', whose {name} ({type(module).__name__}) gives other rows "
                    "when a chunk is computed again, or for other chunks; expected, where layers are computed chunk by "
                    "chunk, a layer that gives equal rows for equal rows: leave it out and set model.dropout"
                )


UNLIKE_ON_COPIES = (nn.Dropout, nn.AlphaDropout, nn.BatchNorm1d, nn.SyncBatchNorm)
"""Modules that give a row what depends on the rank: numbers drawn there, means over the rows that lie there."""


def check_copies(layers: Iterable[nn.Module]) -> None:
    """Raise :class:`ConfigError` (model.kind) for a layer with a module that may compute different rows for copies of a
    vertex, on a vertex-cut: each rank goes on with its own copy. The error names the module."""
    for layer in layers:
        for name, module in layer.named_modules():
            if isinstance(module, UNLIKE_ON_COPIES):
                kind = layer.spec.kind if isinstance(layer, UserLayer) else type(layer).__name__
                raise ConfigError(
                    f"model.kind: got '{kind}', whose {name} ({type(module).__name__}) gives the copies of a vertex "
                    "different rows on different ranks; expected, on a vertex-cut (partition.kind = 'ebv'), a layer "
                    "that gives equal rows for equal rows: leave it out, or train on an edge-cut with "
                    "communication.kind = 'halo'"
                )
