"""Computes bias and activation after a matrix product in one pass, and their backward. CPU: Numba; elsewhere: torch.

Column sums are taken over blocks of a fixed number of rows and then over the blocks in order, so that they do not
depend on the number of threads. NaN stays NaN: a run that diverges must show it.
"""

import numpy as np
import torch
from numba import njit, prange
from torch.nn import functional

from executor.kernels.launch import array, compiled_for, default_threads, even_parts, launch
from simgnn.model.spec import Activation

BLOCK_ROWS = 1024
"""Rows whose column sums are taken together: part of the arithmetic, not a tuning knob."""
NONE, RELU, ELU = 0, 1, 2
CODES: dict[Activation, int] = {"none": NONE, "relu": RELU, "elu": ELU}


def bias_activation(
    source: torch.Tensor,
    bias: torch.Tensor,
    activation: Activation,
    added: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """act(source + added + bias) for ``source`` [n, F], ``bias`` [F], ``added`` [n, F] or None; no autograd. The result
    goes to ``out`` (which may be ``source``) or to a new tensor. Deterministic."""
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
    launch(activate, activate_parallel, arguments, even_parts(len(out), default_threads()))
    return out


def activation_backward(
    gradient: torch.Tensor,
    output: torch.Tensor | None,
    out: torch.Tensor | None = None,
    activation: Activation = "relu",
    kept: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient before the activation [n, F] and that of the bias [F]; no autograd. ``output`` [n, F]: the
    activation's result; None without an activation, whose gradient is returned unchanged. ``kept``: 1 - the rate of the
    dropout applied to ``output`` since; ``gradient`` is zero for dropped elements. The result goes to ``out``
    (which may be ``gradient``) or to a new tensor. Deterministic for any number of threads."""
    if not compiled_for(gradient):
        masked = gradient
        if output is not None and activation == "elu":
            # the derivative of exp(x) - 1 is exp(x), which is the output plus 1
            masked = torch.where(output > 0, gradient, gradient * (output * kept + 1))
        elif output is not None:
            masked = torch.ops.aten.threshold_backward(gradient, output, 0)
        if out is not None and output is not None:
            masked = out.copy_(masked)
        return masked, masked.sum(0)
    width = gradient.shape[1]
    values = array(gradient)
    none = np.empty((0, width), values.dtype)
    masked = gradient if output is None else torch.empty_like(gradient) if out is None else out
    sums = np.empty((-(-len(values) // BLOCK_ROWS), width), values.dtype)
    before, into = (none, none) if output is None else (array(output), array(masked))
    bounds = even_parts(len(sums), default_threads())
    arguments = (values, before, into, sums, CODES[activation], values.dtype.type(kept))
    launch(mask_and_sum, mask_and_sum_parallel, arguments, bounds)
    return masked, torch.from_numpy(sums.sum(0))


@njit(nogil=True, cache=True)
def activate(source, added, bias, activation, out, first, last):  # type: ignore[no-untyped-def]
    """out = source + added + bias, then the activation; ``added`` may be empty, ``out`` may be ``source``."""
    width = out.shape[1]
    for i in range(first, last):
        row, into = source[i], out[i]
        if len(added) > 0:
            other = added[i]
            for c in range(width):
                into[c] = row[c] + other[c]
            row = into
        if activation == RELU:
            for c in range(width):
                value = row[c] + bias[c]
                into[c] = value - value if value < 0 else value
        elif activation == ELU:
            for c in range(width):
                value = row[c] + bias[c]
                into[c] = np.expm1(value) if value < 0 else value
        else:
            for c in range(width):
                into[c] = row[c] + bias[c]


@njit(nogil=True, cache=True, parallel=True)
def activate_parallel(source, added, bias, activation, out, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        activate(source, added, bias, activation, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def mask_and_sum(gradient, output, masked, sums, activation, kept, first, last):  # type: ignore[no-untyped-def]
    """Write the gradient before the activation to ``masked``, and its column sums over each block of rows to ``sums``:
    gradient if output > 0, else 0 (ELU: gradient (output kept + 1)). With empty ``output`` it only sums columns."""
    width = gradient.shape[1]
    zero, one = gradient.dtype.type(0), gradient.dtype.type(1)
    for block in range(first, last):
        total = sums[block]
        for c in range(width):
            total[c] = zero
        for i in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, len(gradient))):
            row = gradient[i]
            if len(output) > 0 and activation == ELU:
                before, into = output[i], masked[i]
                for c in range(width):
                    value = row[c] if before[c] > 0 else row[c] * (before[c] * kept + one)
                    into[c] = value
                    total[c] += value
            elif len(output) > 0:
                before, into = output[i], masked[i]
                for c in range(width):
                    value = zero if before[c] <= 0 else row[c]
                    into[c] = value
                    total[c] += value
            else:
                for c in range(width):
                    total[c] += row[c]


@njit(nogil=True, cache=True, parallel=True)
def mask_and_sum_parallel(gradient, output, masked, sums, activation, kept, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        mask_and_sum(gradient, output, masked, sums, activation, kept, bounds[part], bounds[part + 1])
