"""Kernels of caches of rows, for tensors of the CPU; elsewhere the policies' own lines run."""

from collections.abc import Sequence

import torch

from executor.kernels import quantise
from executor.kernels.balance import default_threads
from executor.kernels.launch import even_parts, launch
from executor.kernels.rows import add_rows
from executor.kernels.views import array, compiled_for
from executor.policies.kernel import Kernel, Kernels
from simgnn.emit.caches.replica_cache import AddParts
from simgnn.emit.caches.row_cache import State
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policy import PolicyContext


def moved(
    policy: AdaptiveVertex, context: PolicyContext, rows: torch.Tensor, cached: torch.Tensor, state: State
) -> torch.Tensor:
    """See :meth:`AdaptiveVertex.moved`."""
    if not (compiled_for(rows) and compiled_for(cached)):
        return AdaptiveVertex.moved(policy, context, rows, cached, state)  # type: ignore[no-any-return]
    chosen = torch.empty(len(rows), dtype=torch.bool)
    here = array(rows)
    arguments = here, array(cached), here.dtype.type(state[0]), policy.reference == "cached", chosen.numpy()
    launch(quantise.moved, quantise.moved_parallel, arguments, even_parts(len(rows), default_threads()))
    return chosen


def add_parts(
    action: AddParts, sums: torch.Tensor, rows: torch.Tensor, parts: torch.Tensor, counts: Sequence[int]
) -> torch.Tensor:
    """See :meth:`AddParts.add`."""
    return add_rows(sums, rows, parts, counts)


def _warm_up_moved(policy: AdaptiveVertex, rows: torch.Tensor) -> None:
    moved(policy, PolicyContext(0, 0, 0, 0, "forward", 0, 1), rows, rows, (0.0, 0.0))


KERNELS: Kernels = {AdaptiveVertex.moved: Kernel(moved, _warm_up_moved), AddParts.add: Kernel(add_parts)}
