"""What follows a matrix product: bias and activation in one pass, and their backward. CPU: Numba; elsewhere: torch."""

import numpy as np
import torch
from torch.nn import functional

from executor.kernels import rowwise
from executor.kernels.balance import default_threads
from executor.kernels.launch import even_parts, launch
from executor.kernels.views import array, compiled_for
from simgnn.model.spec import Activation

CODES: dict[Activation, int] = {"none": rowwise.NONE, "relu": rowwise.RELU, "elu": rowwise.ELU}


def bias_activation(
    source: torch.Tensor,
    bias: torch.Tensor,
    activation: Activation,
    added: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """act(source + added + bias) for ``source`` [n, F], ``bias`` [F], ``added`` [n, F] or None; no autograd.

    Written to ``out`` (which may be ``source``), or to a new tensor. Deterministic.
    """
    out = torch.empty_like(source) if out is None else out
    if not compiled_for(source):
        torch.add(source, bias, out=out)
        if added is not None:
            out.add_(added)
        if activation == "elu":
            return functional.elu_(out)
        return out.relu_() if activation == "relu" else out
    others = np.empty((0, source.shape[1]), array(source).dtype) if added is None else array(added)
    arguments = (array(source), others, array(bias), CODES[activation], array(out))
    launch(rowwise.activate, rowwise.activate_parallel, arguments, even_parts(len(out), default_threads()))
    return out


def activation_backward(
    gradient: torch.Tensor,
    output: torch.Tensor | None,
    out: torch.Tensor | None = None,
    activation: Activation = "relu",
    kept: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient before the activation [n, F], gradient of the bias [F]); no autograd.

    ``output`` [n, F] is what the activation gave, None where there was none (then the gradient itself is returned).
    Where dropout changed it in place since, ``kept`` is the share of elements that it kept; ``gradient`` is zero where
    it dropped one. Written to ``out``, which may be ``gradient``, or to a new tensor. Deterministic, whatever the
    number of threads.
    """
    if not compiled_for(gradient):
        masked = gradient if output is None else _masked(gradient, output, activation, kept)
        if out is not None and output is not None:
            masked = out.copy_(masked)
        return masked, masked.sum(0)
    width = gradient.shape[1]
    values = array(gradient)
    none = np.empty((0, width), values.dtype)
    masked = gradient if output is None else torch.empty_like(gradient) if out is None else out
    sums = np.empty((-(-len(values) // rowwise.BLOCK_ROWS), width), values.dtype)
    before, into = (none, none) if output is None else (array(output), array(masked))
    bounds = even_parts(len(sums), default_threads())
    arguments = (values, before, into, sums, CODES[activation], values.dtype.type(kept))
    launch(rowwise.mask_and_sum, rowwise.mask_and_sum_parallel, arguments, bounds)
    return masked, torch.from_numpy(sums.sum(0))


def _masked(gradient: torch.Tensor, output: torch.Tensor, activation: Activation, kept: float) -> torch.Tensor:
    if activation == "elu":  # the derivative of exp(x) - 1 is one more than it
        return torch.where(output > 0, gradient, gradient * (output * kept + 1))
    masked: torch.Tensor = torch.ops.aten.threshold_backward(gradient, output, 0)
    return masked
