"""Replace functions of policies by faster kernels, mostly for CPU tensors; the policies handle other tensors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType, new_class
from typing import Any, TypeVar

import numpy as np
import torch
from array_api_compat import array_namespace

from executor.kernels import quantise
from executor.kernels.launch import array, compiled_for, default_threads, even_parts, launch
from executor.kernels.rows import add_rows
from simgnn.emit.arrays import dtype_name
from simgnn.emit.bit_widths.solver import Groups, Links, choose_bits
from simgnn.emit.caches.replica_cache import AddParts
from simgnn.emit.caches.row_cache import State
from simgnn.emit.row_codes import RowCodes, refuse
from simgnn.policies.codec.bfloat16 import Bfloat16
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import Policy, PolicyContext

Kind = TypeVar("Kind", bound=type[Any])
AnyPolicy = TypeVar("AnyPolicy", bound=Policy)
Codes = TypeVar("Codes", bound=RowCodes)


@dataclass(frozen=True)
class Kernel:
    """A faster function that replaces a policy's function, with the same arguments and results. ``warm_up(policy,
    rows)`` compiles it by a call on a few rows; None if nothing is left to compile."""

    run: Callable[..., Any]
    warm_up: Callable[[Any, torch.Tensor], object] | None = None


def pack(policy: RowCodes, rows: torch.Tensor) -> torch.Tensor:
    if not compiled_for(rows) or not len(rows):
        return RowCodes.pack(policy, rows)  # type: ignore[no-any-return]
    packed = torch.empty((len(rows), policy.row_bytes(rows.shape[1], dtype_name(rows))), dtype=torch.uint8)
    bad = torch.zeros(len(rows), dtype=torch.uint8)
    arguments = array(rows), policy.code_bits, packed.numpy(), bad.numpy()
    launch(quantise.encode, quantise.encode_parallel, arguments, even_parts(len(rows), default_threads()))
    refuse(rows, bad)
    return packed


def decode(policy: RowCodes, context: PolicyContext, packed: torch.Tensor, width: int, dtype: str) -> torch.Tensor:
    if packed.device.type != "cpu":
        return RowCodes.decode(policy, context, packed, width, dtype)  # type: ignore[no-any-return]
    rows = torch.empty((len(packed), width), dtype=getattr(torch, dtype))
    arguments = packed.contiguous().numpy(), policy.code_bits, rows.numpy()
    launch(quantise.decode, quantise.decode_parallel, arguments, even_parts(len(rows), default_threads()))
    return rows


def dithered(policy: Stochastic, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    if not compiled_for(rows) or not len(rows):
        return Stochastic.dithered(policy, rows, keys)  # type: ignore[no-any-return]
    moved = torch.empty_like(rows)
    arguments = array(rows), policy.largest_code, keys.contiguous().numpy().view(np.uint64), moved.numpy()
    launch(quantise.dither, quantise.dither_parallel, arguments, even_parts(len(rows), default_threads()))
    return moved


def to_bfloat16(policy: Bfloat16, context: PolicyContext, rows: torch.Tensor, names: torch.Tensor) -> torch.Tensor:
    """Encode rows as :meth:`Bfloat16.encode` does, with torch's own type, on every device."""
    if not len(rows):  # torch cannot see bytes in a tensor without rows
        return rows.new_empty((0, 2 * rows.shape[1]), dtype=torch.uint8)
    return rows.to(torch.bfloat16).contiguous().view(torch.uint8)


def from_bfloat16(
    policy: Bfloat16, context: PolicyContext, packed: torch.Tensor, width: int, dtype: str
) -> torch.Tensor:
    return packed.view(torch.bfloat16).to(getattr(torch, dtype))


def moved(
    policy: AdaptiveVertex, context: PolicyContext, rows: torch.Tensor, cached: torch.Tensor, state: State
) -> torch.Tensor:
    if not (compiled_for(rows) and compiled_for(cached)):
        return AdaptiveVertex.moved(policy, context, rows, cached, state)  # type: ignore[no-any-return]
    chosen = torch.empty(len(rows), dtype=torch.bool)
    here = array(rows)
    arguments = here, array(cached), here.dtype.type(state[0]), policy.reference == "cached", chosen.numpy()
    launch(quantise.moved, quantise.moved_parallel, arguments, even_parts(len(rows), default_threads()))
    return chosen


HERE = PolicyContext(0, 0, 0, 0, "forward", 0, 1)
"""Context of the calls that compile kernels."""
FEW_GROUPS = Groups(
    np.ones(1), np.ones(1, np.int64), np.zeros(1, np.int64), Links(np.ones(1), np.ones(1)), (2, 4), (1, 2)
)
"""Groups of an assignment of bits, of the types that a run has."""


def of_one_width(codec: Codes) -> Codes:
    """Return the codec itself, or with one number of bits if its rows differ in them."""
    return codec if isinstance(codec.bits, int) else codec.at(8)


KERNELS: Mapping[Callable[..., Any], Kernel] = {
    RowCodes.pack: Kernel(pack, lambda policy, rows: pack(of_one_width(policy), rows)),
    RowCodes.decode: Kernel(
        decode,
        lambda policy, rows: decode(
            of_one_width(policy), HERE, pack(of_one_width(policy), rows), rows.shape[1], dtype_name(rows)
        ),
    ),
    Stochastic.dithered: Kernel(
        dithered,
        lambda policy, rows: dithered(
            of_one_width(policy), rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        ),
    ),
    Stochastic.choose: Kernel(Stochastic.choose, lambda policy, rows: choose_bits(FEW_GROUPS, 0.5)),
    Bfloat16.encode: Kernel(to_bfloat16),
    Bfloat16.decode: Kernel(from_bfloat16),
    AdaptiveVertex.moved: Kernel(moved, lambda policy, rows: moved(policy, HERE, rows, rows, (0.0, 0.0))),
    AddParts.add: Kernel(lambda action, *added: add_rows(*added)),
}
"""Function of a policy or action -> its kernel. A subclass that overrides the function keeps its own version."""


def accelerated(policy: AnyPolicy) -> AnyPolicy:
    """Return the policy as an object of :func:`accelerated_class` of its class."""
    kind = accelerated_class(type(policy))
    return policy if kind is type(policy) else kind.model_construct(**dict(policy))


@cache
def accelerated_class(kind: Kind) -> Kind:
    """Return a subclass with the faster kernels, or the class itself if no kernel replaces any of its functions."""
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
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    return [(name, member) for name, member in members.items() if isinstance(member, FunctionType)]


def measured_cache() -> AdaptiveVertex:
    """Return the policy whose selection of moved rows is micro-benchmarked as the primitive "select"."""
    return accelerated(AdaptiveVertex())


def measured_codec(bits: int) -> Linear:
    """Return the codec that is micro-benchmarked as the primitives "encode" and "decode"."""
    return accelerated(Linear.model_validate({"bits": bits}))
