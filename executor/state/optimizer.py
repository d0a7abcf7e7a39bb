"""Adam or SGD on one flat vector: parameters and gradients of all layers are views of it, in the order of layers."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from simgnn.errors import BackendError, ConfigError
from simgnn.model.spec import LayerSpec


class Decayed(NamedTuple):
    """Neighbouring parameters with the same L2 penalty. ``part``: their elements of the flat vector."""

    part: slice
    decay: float


class FlatOptimizer:
    """Moves all parameters into one flat tensor and updates that, with the same result as for each parameter alone.

    Adam with L2 penalty (not decoupled), torch's default betas and epsilon (Kingma and Ba, ICLR 2015); or SGD with L2
    penalty and momentum, as torch defines them (no dampening, no Nesterov). ``settings``: the fields of ``[train]``;
    parameters with different penalties are what torch calls parameter groups. ``rate``: the learning rate of the next
    step. ``counted``: gradients are sums over rows, and each step divides them by :attr:`count`, the number of rows. It
    lies behind the gradients in memory, so that ranks sum both in one message.
    """

    def __init__(self, layers: Sequence[torch.nn.Module], settings: Mapping[str, Any], counted: bool = False) -> None:
        parameters = [list(layer.parameters()) for layer in layers]
        every = [parameter for group in parameters for parameter in group]
        if not every:
            raise BackendError("the model has no parameters to train")
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in every])
        self.flat = torch.nn.Parameter(flat)
        summed = flat.new_zeros(len(flat) + counted)
        self.gradient = summed[: len(flat)]
        self.count = summed[len(flat) :][:, None] if counted else None
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
        self.rate = float(settings["learning_rate"])
        self._groups = decayed_groups(layers, settings["weight_decay"], bool(settings.get("decay_biases", True)))
        self._momentum = float(settings.get("momentum", 0.0))
        self._adam = settings["optimizer"] == "adam"
        self._state: dict[str, torch.Tensor] = {}
        if self._adam:
            self._state = {"mean": torch.zeros_like(flat), "square": torch.zeros_like(flat)}
            self._state["steps"] = torch.zeros((), dtype=torch.float32, device=flat.device)

    def step(self) -> None:
        """Update the parameters with the summed gradients, and set these to zero."""
        with torch.no_grad():
            if self.count is not None:
                self.gradient.div_(self.count[0, 0])
            self._update()
        self.gradient.zero_()

    def _update(self) -> None:
        # torch's functional forms: its classes import a compiler (100 MB, 1.5 s of a core) when they are made
        flat, state = self.flat.data, self._state
        begun = state["steps"].clone() if self._adam and len(self._groups) > 1 else None
        for number, (part, decay) in enumerate(self._groups):
            values, gradient = [flat[part]], [self.gradient[part]]
            if self._adam:
                # each group counts the same step
                steps = state["steps"] if begun is None else state["steps"].copy_(begun)
                adam(
                    values, gradient, [state["mean"][part]], [state["square"][part]], [], [steps], foreach=False,
                    fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=self.rate, weight_decay=decay, eps=1e-8,
                    maximize=False,
                )  # fmt: skip
                continue
            name = f"velocity/{number}"
            velocity = [state.get(name)]
            sgd(
                values, gradient, velocity, foreach=False, fused=True, weight_decay=decay, momentum=self._momentum,
                lr=self.rate, dampening=0.0, nesterov=False, maximize=False,
            )  # fmt: skip
            if velocity[0] is not None:
                state[name] = velocity[0]

    def state_dict(self) -> dict[str, Any]:
        return {"flat": self.flat.detach(), "rule": self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["flat"].shape != self.flat.shape:
            raise ConfigError(
                f"the checkpoint holds {state['flat'].numel()} parameters, this model has {self.flat.numel()}: "
                "it belongs to another experiment; start without --resume"
            )
        self.flat.data.copy_(state["flat"])
        self._state = {name: value.to(self.flat.device) for name, value in state["rule"].items()}


def decayed_groups(
    layers: Sequence[torch.nn.Module], decay: float | Sequence[float], biases: bool = True
) -> list[Decayed]:
    """Divide the flat vector of all parameters, in the order of ``layers``, by L2 penalty. ``decay``: one for all
    layers, or one for each. ``biases``: whether parameters named ``bias`` have it; else theirs is 0."""
    each = [float(decay)] * len(layers) if isinstance(decay, int | float) else list(decay)
    groups: list[Decayed] = []
    begin = 0
    for layer, penalty in zip(layers, each, strict=True):
        for label, parameter in layer.named_parameters():
            own = penalty if biases or label.rpartition(".")[2] != "bias" else 0.0
            end = begin + parameter.numel()
            if groups and groups[-1].decay == own:
                groups[-1] = Decayed(slice(groups[-1].part.start, end), own)
            else:
                groups.append(Decayed(slice(begin, end), own))
            begin = end
    return groups


def learned_values(layers: Sequence[LayerSpec], optimizer: FlatOptimizer) -> dict[str, torch.Tensor]:
    """Return each layer's parameters and gradients (views of the flat tensors) by the name of their buffer."""
    values: dict[str, torch.Tensor] = {}
    views = zip(layers, optimizer.parameter_views, optimizer.gradient_views, strict=True)
    for layer, parameters, gradients in views:
        values[f"parameters/{layer.index}"] = parameters
        values[f"gradients/{layer.index}"] = gradients
    return values
