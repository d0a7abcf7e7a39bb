"""The model of one rank: its layers over its local graph, or over sampled blocks, as functions that ops name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from executor.layers import LocalAdjacency, build_layers
from executor.layers.builtin import Functions, Layer
from executor.layers.kept import KeptHalo
from executor.layers.local import LOOPED_MEAN
from executor.layers.sampled import FirstRows, SampledBlock
from executor.layers.tape import Call, autograd
from executor.layers.user import check_copies
from simgnn.errors import BackendError
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.vertex_cut import RankGraph
from simgnn.program.kinds import Segment

OVER_OWN, OVER_HALO = (Segment.SUM_OWN, Segment.OWN_GRADIENTS), (Segment.ADD_HALO, Segment.HALO_GRADIENTS)
"""Segments that read the edges from own rows, and those that read the edges from halo rows."""
OVER_EDGES = (Segment.MAXIMUM, Segment.AGGREGATE, Segment.FORWARD, *OVER_OWN, *OVER_HALO)
"""Segments that read edges."""


class Network(ABC):
    """The layers of a model, numbered from 1. ``layers``: modules in order, with equal parameters on every rank."""

    def __init__(self, specs: Sequence[LayerSpec], seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers: list[torch.nn.Module] = list(build_layers(specs, seed, dtype, device))
        self._by_index: dict[int, Any] = {spec.index: layer for spec, layer in zip(specs, self.layers, strict=True)}

    @abstractmethod
    def segment(self, layer: int, segment: Segment, kept: bool = False) -> Callable[..., Any]:
        """Return a segment (part) of a layer as a function of the tensors that its op reads. ``kept``: the op reads the
        edges from the halo rows of its turn first."""

    def set_training(self, training: bool) -> None:
        """Switch layers between training and evaluation, as torch's ``train`` and ``eval`` do."""
        for layer in self.layers:
            layer.train(training)

    def state(self) -> list[dict[str, torch.Tensor]]:
        """Return, by layer, the module buffers, such as running means: what training changes besides parameters."""
        return [{name: value.clone() for name, value in layer.named_buffers()} for layer in self.layers]

    def load_state(self, state: Sequence[Mapping[str, torch.Tensor]]) -> None:
        for layer, saved in zip(self.layers, state, strict=True):
            for name, value in layer.named_buffers():
                value.copy_(saved[name])

    def on_tape(self, layer: int) -> bool:
        """Return whether a layer is built in: a :class:`~executor.layers.tape.Tape` can run it, passed as ``call=``."""
        return isinstance(self._by_index[layer], Layer)

    def _function(self, layer: int, segment: Segment, functions: Functions) -> Callable[..., Any]:
        if segment not in functions:
            raise BackendError(f"layer {layer} has no segment '{segment}'; it has: {', '.join(functions)}")
        return functions[segment]


class LayerNetwork(Network):
    """Layers over the edges of a rank. ``mean`` [F_0]: what was subtracted from sparse input rows; None: nothing."""

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        local: RankGraph,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        mean: torch.Tensor | None = None,
    ) -> None:
        super().__init__(specs, seed, dtype, device)
        assert specs[0].centred_input == (mean is not None), "a mean comes exactly with rows planned as centred"
        if mean is not None:
            first = self.layers[0]
            assert isinstance(first, Layer), "layers of the user's own get dense rows"
            first.mean = mean
        if local.copied:
            check_copies(self.layers)
        self._local, self._options = local, {"dtype": dtype, "device": device}

    @cached_property
    def adjacency(self) -> LocalAdjacency:
        """The rank's edges, built at the first use; programs that sum block by block do not use them."""
        return LocalAdjacency.from_local_graph(self._local, **self._options)

    def kept_halo(self, kept: torch.Tensor) -> KeptHalo:
        """Return the edges from the halo rows ``kept`` int64 [m], for ops that sum over these alone."""
        return KeptHalo(self.adjacency, kept, any(layer.spec.attends for layer in self._by_index.values()))

    def scaling_of(self, layer: int) -> str:
        """Return the name of the scaling of a layer's sums; of attention and of a user's layer that of a mean."""
        module = self._by_index[layer]
        return module.scaling if isinstance(module, Layer) and not module.spec.attends else LOOPED_MEAN

    def segment(self, layer: int, segment: Segment, kept: bool = False) -> Callable[..., Any]:
        """Return a part of a layer. ``prepare`` takes own rows, or own and halo rows, and returns as many; ``maximum``,
        ``aggregate`` and ``forward`` take own and halo rows, in attention ``aggregate`` also the maxima; ``sum_own``
        takes own rows, ``add_halo`` halo rows and the result of ``sum_own``; ``update`` takes the aggregate and, if the
        layer uses them, own rows."""
        function = self._function(layer, segment, self._by_index[layer].functions())
        if kept:
            return function
        if segment in OVER_EDGES:
            adjacency = self.adjacency
            if self._by_index[layer].spec.attends and segment in (*OVER_OWN, *OVER_HALO):
                # made before the run, so that no epoch's memory holds it
                _ = adjacency.own_attention if segment in OVER_OWN else adjacency.halo_attention
            return lambda *rows, **options: function(adjacency, *rows, **options)
        if segment is Segment.PREPARE:
            return lambda *rows, **options: tuple(function(part, **options) for part in rows)
        return function


class SampledNetwork(Network):
    """Built-in layers over the blocks of a mini-batch: ops read the edges that they sum over."""

    def segment(self, layer: int, segment: Segment, kept: bool = False) -> Callable[..., Any]:
        """Return a part of a layer. ``prepare`` takes rows and returns as many; ``maximum``, ``aggregate`` take a block
        (indptr [n + 1], sources [edges]) and the rows of its m sources, in attention ``aggregate`` also the maxima;
        ``update`` takes the aggregate [n, ...] and, if the layer uses own rows, those of all sources, of which it
        reads the first n."""
        module: Layer = self._by_index[layer]
        if segment in OVER_EDGES:
            summed = self._function(layer, segment, module.sampled_functions())
            return lambda block, rows, *others, **options: summed(
                SampledBlock(block[0], block[1], len(rows)), rows, *others, **options
            )
        function = self._function(layer, segment, module.functions())
        if segment is not Segment.UPDATE or not module.spec.uses_own_rows:
            return function

        def update(aggregated: torch.Tensor, rows: torch.Tensor, call: Call = autograd) -> torch.Tensor:
            found: torch.Tensor = function(aggregated, call(FirstRows, rows, len(aggregated)), call=call)
            return found

        return update
