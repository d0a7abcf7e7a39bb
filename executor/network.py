"""The model of one rank: its layers over its local graph, as functions that ops name."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from executor.layers import LocalAdjacency, build_layers
from executor.layers.builtin import Layer
from executor.layers.user import check_copies
from simgnn.errors import BackendError
from simgnn.model.spec import LayerSpec
from simgnn.partition.replicas import RankGraph

OVER_EDGES = ("maximum", "aggregate", "forward")
"""Segments that read the local adjacency."""


class LayerNetwork:
    """``layers``: modules in order, the same parameters on every rank."""

    def __init__(
        self, specs: Sequence[LayerSpec], local: RankGraph, seed: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers: list[torch.nn.Module] = list(build_layers(specs, seed, dtype, device))
        if local.copied:
            check_copies(self.layers)
        self._local, self._options = local, {"dtype": dtype, "device": device}
        self._position = {spec.index: position for position, spec in enumerate(specs)}

    @cached_property
    def adjacency(self) -> LocalAdjacency:
        """The local edges as segments read them; programs that sum block by block have none that does."""
        return LocalAdjacency.from_local_graph(self._local, **self._options)

    def set_training(self, training: bool) -> None:
        """Layers behave as in training, or as in an evaluation: what torch's ``train`` and ``eval`` mean."""
        for layer in self.layers:
            layer.train(training)

    def state(self) -> list[dict[str, torch.Tensor]]:
        """By layer what training changes besides parameters: a module's buffers, such as running means."""
        return [{name: value.clone() for name, value in layer.named_buffers()} for layer in self.layers]

    def load_state(self, state: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Put back what :meth:`state` returned."""
        for layer, saved in zip(self.layers, state, strict=True):
            for name, value in layer.named_buffers():
                value.copy_(saved[name])

    def on_tape(self, name: str) -> bool:
        """Whether a segment takes ``call=``, so that a :class:`~executor.layers.tape.Tape` can reverse it."""
        return isinstance(self._layer(name), Layer)

    def segment(self, name: str) -> Callable[..., Any]:
        """A segment such as "layers.2.update" as a function on the tensors that its op reads.

        ``prepare`` takes own rows, or own and halo rows, and returns as many; ``maximum``, ``aggregate`` and
        ``forward`` take own and halo rows, ``aggregate`` with attention the maxima too; ``update`` takes the
        aggregate and, where the layer uses them, own rows.
        """
        segment = name.rpartition(".")[2]
        function: Callable[..., Any] | None = getattr(self._layer(name), segment, None)
        if function is None or not callable(function):
            raise BackendError(
                f"the model has no segment '{name}': expected layers.NUMBER.SEGMENT of a layer of this run"
            )
        if segment in OVER_EDGES:
            adjacency = self.adjacency
            return lambda *rows, **options: function(adjacency, *rows, **options)
        if segment == "prepare":
            return lambda *rows, **options: tuple(function(part, **options) for part in rows)
        return function

    def _layer(self, name: str) -> torch.nn.Module | None:
        kind, number, *_ = (*name.split("."), "", "")
        return self.layers[self._position[int(number)]] if kind == "layers" and number.isdigit() else None
