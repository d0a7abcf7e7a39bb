"""Segments run and reversed without torch's autograd engine, by the same functions that autograd would call.

A program reverses a model op by op. Entering autograd's engine once an op costs more than the work itself in a small
graph, so built-in layers call their differentiable functions through a :class:`Call`: autograd's own, or a tape.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

Call = Callable[..., torch.Tensor]
"""``call(function, *arguments)`` runs a ``torch.autograd.Function`` and remembers how to reverse it."""


def autograd(function: type[Function], *arguments: Any) -> torch.Tensor:
    """Call a function under autograd."""
    return function.apply(*arguments)  # type: ignore[no-any-return]


class _Node:
    """The ``ctx`` of one function call on a tape. ``places``: for each argument, the number of its tensor on the tape,
    or the parameter itself, or None if it gets no gradient; ``output``: the number of the result."""

    def __init__(self, function: type[Function], places: tuple[int | torch.nn.Parameter | None, ...]) -> None:
        self.function, self.places = function, places
        self.needs_input_grad = tuple(place is not None for place in places)
        self.saved_tensors: tuple[torch.Tensor | None, ...] = ()
        self.output = -1

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None:
        self.saved_tensors = tensors


class Tape:
    """The calls of one segment, to be reversed once. Made, run and reversed where autograd is switched off.

    ``inputs``: the tensors that get a gradient; they are numbered 0, 1, ... as :meth:`backward` returns them. Arguments
    of calls that are parameters add theirs to ``.grad``; gradients reach nothing else but results of earlier calls.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._inputs = len(inputs)
        self._nodes: list[_Node] = []
        self._numbers = {id(tensor): number for number, tensor in enumerate(inputs)}
        # a number stands for an id, which holds while the tensor lives
        self._alive: list[torch.Tensor] = list(inputs)
        self._outputs: tuple[int | None, ...] = ()

    def __call__(self, function: type[Function], *arguments: Any) -> torch.Tensor:
        node = _Node(function, tuple(self._place(argument) for argument in arguments))
        result: torch.Tensor = function.forward(node, *arguments)
        if any(node.needs_input_grad):
            node.output = self._numbers[id(result)] = len(self._alive)
            self._alive.append(result)
            self._nodes.append(node)
        return result

    def end(self, outputs: Sequence[torch.Tensor]) -> None:
        """Mark the end of the segment, whose ``outputs`` these are, and free what backward does not need."""
        self._outputs = tuple(self._numbers.get(id(output)) for output in outputs)
        self._numbers.clear()
        self._alive.clear()

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Gradients of the inputs, from those of the outputs (None: no gradient arrives). What is returned shares no
        memory with what was given. None for an input that the outputs do not depend on."""
        found: dict[int, torch.Tensor] = {}
        for number, gradient in zip(self._outputs, gradients, strict=True):
            if number is not None and gradient is not None:
                _gather(found, number, gradient)
        while self._nodes:
            node = self._nodes.pop()
            gradient = found.get(node.output)
            if gradient is None:
                continue
            results = node.function.backward(node, gradient)
            for place, result in zip(node.places, results, strict=True):
                if result is None or place is None:
                    continue
                if isinstance(place, int):
                    _gather(found, place, result)
                elif place.grad is None:
                    place.grad = result.clone()
                else:
                    place.grad.add_(result)
            del results, result  # before the next function makes its own: a parameter's gradient is as large as it is
        return self._own([found.get(number) for number in range(self._inputs)], gradients)

    def _place(self, argument: Any) -> int | torch.nn.Parameter | None:
        if isinstance(argument, torch.nn.Parameter):
            return argument if argument.requires_grad else None
        return self._numbers.get(id(argument))

    @staticmethod
    def _own(results: list[torch.Tensor | None], given: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        taken = {gradient.data_ptr() for gradient in given if gradient is not None and gradient.numel()}
        for position, result in enumerate(results):
            if result is None or not result.numel():
                continue
            if result.data_ptr() in taken:
                results[position] = result.clone()
            taken.add(result.data_ptr())
        return results


def _gather(found: dict[int, torch.Tensor], number: int, gradient: torch.Tensor) -> None:
    before = found.get(number)
    found[number] = gradient if before is None else before + gradient


class Sum(Function):
    """The sum of two tensors, as a function for a :data:`Call`."""

    @staticmethod
    def forward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient of the sum as that of each summand."""
        return gradient, gradient


class Transposed(Function):
    """The transpose of a matrix, as a function for a :data:`Call`."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor) -> torch.Tensor:
        """Return the transpose [b, a] of a matrix [a, b]."""
        return matrix.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the transposed gradient, in a tuple, since a tape expects a tuple of gradients."""
        return (gradient.t(),)
