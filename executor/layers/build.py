"""Modules from layer specifications, with the same parameters on every rank."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from executor.layers.attention import GAT
from executor.layers.builtin import GCN, GIN, SAGE, Layer
from executor.layers.user import UserLayer, segments
from simgnn.model.spec import LayerSpec

__all__ = ["build_layers", "segments"]

BUILT_IN: Mapping[str, type[Layer]] = {"gcn": GCN, "sage": SAGE, "gin": GIN, "gat": GAT}


def build_layers(
    specs: Sequence[LayerSpec],
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> nn.ModuleList:
    """The layers of a model in order, on ``device``.

    Built-in layers: Glorot-uniform weights and zero biases, drawn in float64 on the CPU in the order of layers and
    parameters from one generator seeded by ``seed``, so that ranks, devices and dtypes start alike. A user's module
    initialises itself, under the same seed for the layer on every rank; torch's global generator is left as it was.
    Source: Glorot and Bengio, AISTATS 2010, equation 16.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = nn.ModuleList()
    for spec in specs:
        layer: nn.Module
        if spec.kind in BUILT_IN:
            layer = BUILT_IN[spec.kind](spec).to(dtype)
            _initialise(layer, generator)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + spec.index)
                layer = UserLayer(spec).to(dtype)
        layers.append(layer)
    return layers.to(device)


@torch.no_grad()
def _initialise(layer: nn.Module, generator: torch.Generator) -> None:
    for parameter in layer.parameters():
        if parameter.dim() < 2:
            parameter.zero_()
            continue
        bound = (6 / (parameter.shape[0] + parameter.shape[1])) ** 0.5
        drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_((2 * drawn - 1) * bound)
