"""Base classes of actions on objects that a rank holds, such as samplers and row tables. The executor runs them."""

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
    """An action that the executor implements: a ``Function`` maps the context and the op's inputs to its outputs."""

    def run(self, context: PolicyContext, *read: Any, **_: Any) -> tuple[Array, ...]:
        """Call the executor's function for this action."""
        written: tuple[Array, ...] = context.resources[type(self)](context, *read)
        return written


def carried_out(action: type[RankAction[Function]], function: Function) -> Functions:
    """Pair an action with the function that implements it; mypy checks the signature."""
    return {action: function}


class TakeOwnRows(RankAction[OfOne]):
    """Copy the input rows of own vertices from the host's memory to the device."""


class ScorePairs(RankAction[Callable[..., tuple[Array]]]):
    """Score the pairs of this rank's vertices by which an unsupervised model is evaluated; 0 for those of others."""


class AreaUnderCurve(RankAction[OfOne]):
    """Compute the area under the ROC curve over the scores of all ranks' pairs."""


class JoinRows(Action[Policy]):
    """Concatenate rows of own vertices and of their remote in-neighbours, so that edges index the result as sources."""

    def run(self, context: PolicyContext, own: Array, halo: Array) -> tuple[Array, ...]:
        """Concatenate ``own`` [n, F] and ``halo`` [h, F] to [n + h, F]."""
        return (array_namespace(own).concat((own, halo)),)
