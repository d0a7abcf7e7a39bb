"""Policies and actions whose functions are replaced by faster kernels, where there are any."""

from collections.abc import Callable, Iterable
from functools import cache
from types import FunctionType, new_class
from typing import Any, TypeVar

import torch
from array_api_compat import array_namespace

from executor.policies.kernels import KERNELS
from simgnn.policies.codec.linear import Linear
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import Policy

Kind = TypeVar("Kind", bound=type[Any])
AnyPolicy = TypeVar("AnyPolicy", bound=Policy)


def accelerated(policy: AnyPolicy) -> AnyPolicy:
    """The policy, as an object of :func:`accelerated_class` of its class."""
    kind = accelerated_class(type(policy))
    return policy if kind is type(policy) else kind.model_construct(**dict(policy))


@cache
def accelerated_class(kind: Kind) -> Kind:
    """A subclass whose functions are the faster kernels; the class itself where it has no function with a kernel."""
    faster = {name: KERNELS[function].run for name, function in _functions(kind) if function in KERNELS}
    if not faster:
        return kind
    named = {"__module__": kind.__module__, "__doc__": kind.__doc__, **faster}
    made: Any = new_class(kind.__name__, (kind,), exec_body=lambda namespace: namespace.update(named))
    return made  # type: ignore[no-any-return]


def warm_up_policies(policies: Iterable[Policy], dtype: torch.dtype, device: torch.device) -> None:
    """Run every kernel of these policies once, on one element."""
    array_namespace(torch.ones(1))  # imports the functions on tensors that policies call
    for policy in policies:
        for kernel in [KERNELS[function] for _, function in _functions(type(policy)) if function in KERNELS]:
            if kernel.warm_up is not None:
                kernel.warm_up(policy, torch.ones(1, 1, dtype=dtype, device=device))


def _functions(kind: type[Any]) -> list[tuple[str, Callable[..., Any]]]:
    """The functions of a class and its bases, by name."""
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return [(name, member) for name, member in members.items() if isinstance(member, FunctionType)]


def measured_cache() -> AdaptiveVertex:
    """The cache of rows whose test of which rows moved is micro-benchmarked as the primitive select."""
    return accelerated(AdaptiveVertex())


def measured_codec(bits: int) -> Linear:
    """The codec that is micro-benchmarked as the primitives encode and decode."""
    return accelerated(Linear.model_validate({"bits": bits}))
