"""Actions on what a rank holds, such as batches, samplers and tables of rows: the executor supplies their functions."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from array_api_compat import array_namespace

from simgnn.policy import Action, Array, Policy, PolicyContext

Function = TypeVar("Function", bound=Callable[..., tuple[Any, ...]])
Functions = Mapping[type[Any], Callable[..., tuple[Any, ...]]]
"""Action -> the function that carries it out, a part of :attr:`simgnn.policy.PolicyContext.resources`."""
OfOne = Callable[[PolicyContext, Array], tuple[Array]]
OfTwo = Callable[[PolicyContext, Array, Array], tuple[Array]]


class RankAction(Action[Any], Generic[Function]):
    """An action with a ``Function`` of the executor: from the context and what the op reads to what it writes."""

    def run(self, context: PolicyContext, *read: Any, **_: Any) -> tuple[Array, ...]:
        """Call the function that the executor supplies."""
        written: tuple[Array, ...] = context.resources[type(self)](context, *read)
        return written


def carried_out(action: type[RankAction[Function]], function: Function) -> Functions:
    """An action with a function of its signature."""
    return {action: function}


class TakeOwnRows(RankAction[OfOne]):
    """Put the input rows of own vertices on the device, from the memory of the host."""


class JoinRows(Action[Policy]):
    """Rows of own vertices, and behind them those of their remote in-neighbours, as own edges number them."""

    def run(self, context: PolicyContext, own: Array, halo: Array) -> tuple[Array, ...]:
        """``own`` [n, F], ``halo`` [h, F] -> [n + h, F]."""
        return (array_namespace(own).concat((own, halo)),)
