"""Adam or SGD on one flat vector: parameters and gradients of all layers are views of it, in the order of layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from simgnn.errors import BackendError


class FlatOptimizer:
    """Moves all parameters into one flat tensor and steps on it. Elementwise the same as one step a parameter."""

    def __init__(self, layers: Sequence[torch.nn.Module], settings: Mapping[str, Any]) -> None:
        parameters = [list(layer.parameters()) for layer in layers]
        every = [parameter for group in parameters for parameter in group]
        if not every:
            raise BackendError("the model has no parameters to train")
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in every])
        self.flat = torch.nn.Parameter(flat)
        self.gradient = torch.zeros_like(flat)
        self.flat.grad = self.gradient
        self.parameter_views: list[torch.Tensor] = []
        self.gradient_views: list[torch.Tensor] = []
        begin = 0
        for group in parameters:
            start = begin
            for parameter in group:
                part = slice(begin, begin + parameter.numel())
                parameter.data = flat[part].view_as(parameter)
                parameter.grad = self.gradient[part].view_as(parameter)
                begin = part.stop
            self.parameter_views.append(flat[start:begin])
            self.gradient_views.append(self.gradient[start:begin])
        self.inner = _optimizer(self.flat, settings)

    def step(self) -> None:
        """One update from the summed gradients, which are then set to zero."""
        self.inner.step()
        self.gradient.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Parameters and the optimizer's own state."""
        return {"flat": self.flat.detach(), "inner": self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned."""
        if state["flat"].shape != self.flat.shape:
            raise BackendError(
                f"the checkpoint holds {state['flat'].numel()} parameters, this model has {self.flat.numel()}: "
                "it belongs to another experiment; start without --resume"
            )
        self.flat.data.copy_(state["flat"])
        self.inner.load_state_dict(dict(state["inner"]))


def _optimizer(flat: torch.nn.Parameter, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    kind, rate, decay = settings["optimizer"], float(settings["learning_rate"]), float(settings["weight_decay"])
    if kind == "adam":
        return torch.optim.Adam([flat], lr=rate, weight_decay=decay, fused=True)
    if kind == "sgd":
        return torch.optim.SGD([flat], lr=rate, weight_decay=decay, momentum=float(settings["momentum"]), fused=True)
    raise BackendError(f"train.optimizer = '{kind}' is not one that the executor has: adam, sgd")
