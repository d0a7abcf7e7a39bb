"""The weights of a trained model, read from the folder ``model`` of a run."""

from collections.abc import Mapping, Sequence

import torch
from safetensors.torch import load_file

from simgnn.errors import ConfigError
from simgnn.outside import outside_data
from simgnn.record.trained import Trained

LAYERS = "layers."


def read_weights(trained: Trained) -> dict[str, torch.Tensor]:
    """Return the tensors of a trained model by name. Raises :class:`ConfigError` unless they are those that
    ``model.json`` lists, and are finite."""
    with outside_data(trained.weights, "file of weights", remedy="copy the run's directory again", error=ConfigError):
        found = load_file(trained.weights)
    shapes = {name: list(value.shape) for name, value in found.items()}
    if shapes != trained.described.weights:
        wrong = sorted(
            name
            for name in shapes | trained.described.weights
            if shapes.get(name) != trained.described.weights.get(name)
        )
        raise ConfigError(
            f"{trained.weights}: {', '.join(wrong[:3])} differ from the shapes in model.json; copy the run's directory "
            "again"
        )
    broken = sorted(name for name, value in found.items() if not bool(torch.isfinite(value).all()))
    if broken:
        raise ConfigError(
            f"{trained.weights}: {', '.join(broken[:3])} hold numbers that are not finite, so that no score is one: "
            "training diverged (losses.csv says when; lower train.learning_rate) or the file is damaged (copy the "
            "run's directory again)"
        )
    return found


def weights_of_layer(weights: Mapping[str, torch.Tensor], place: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a layer, counted from 0, by their name in the layer's module."""
    prefix = f"{LAYERS}{place}."
    return {tensor.removeprefix(prefix): value for tensor, value in weights.items() if tensor.startswith(prefix)}


def layer_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of all layers, without those beside them."""
    return {tensor: value for tensor, value in weights.items() if tensor.startswith(LAYERS)}


def load_layers(layers: Sequence[torch.nn.Module], weights: Mapping[str, torch.Tensor]) -> None:
    """Copy trained weights into the modules of the layers. Raises :class:`ConfigError` for modules that have other
    tensors, such as a user's layer that was changed after the run."""
    try:
        for place, layer in enumerate(layers):
            layer.load_state_dict(weights_of_layer(weights, place))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"model.kind: the layers do not fit the trained weights ({reason}); expected the class as it was when the "
            "run trained it"
        ) from error
